"""`# GRUG NOVERIFY`: what counts as one, for how long, and what is wrong with the others."""

from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.variants.marks import NotVerified, no_verify_mark

TODAY = date(2026, 11, 16)


def mark_in(folder: Path, source: str, file: str = "train.py") -> NotVerified | None:
    folder = folder / "experiments/grug/odd"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(source)
    return no_verify_mark(folder)


def fault_of(folder: Path, source: str) -> str | None:
    mark = mark_in(folder, source)
    assert mark is not None
    return mark.fault(TODAY)


def test_a_mark_with_a_reason_and_a_day_to_come_excludes_its_variant(tmp_path: Path):
    source = '"""Loop."""\n\n# GRUG NOVERIFY: it does not resume, until 2026-12-24\nx = 1\n'
    mark = mark_in(tmp_path, source)
    assert mark == NotVerified(
        where="experiments/grug/odd/train.py:3",
        text="# GRUG NOVERIFY: it does not resume, until 2026-12-24",
        reason="it does not resume",
        until=date(2026, 12, 24),
    )
    assert mark.fault(TODAY) is None


@given(days=st.integers(-1000, 1000))
def test_a_mark_counts_up_to_its_day_which_is_near_and_not_after(days: int):
    until = TODAY + timedelta(days=days)
    fault = NotVerified("train.py:1", "# …", "a reason", until).fault(TODAY)
    assert (fault is None) == (0 <= days <= 180)
    if fault is not None:
        wrong = "has expired" if days < 0 else "ends more than 180 days ahead"
        assert f"{wrong}, today is {TODAY}" in fault


@pytest.mark.parametrize(
    "source",
    [
        'TEXT = "# GRUG NOVERIFY: in a string, until 2100-01-01"\n',
        '"""\n# GRUG NOVERIFY: in a docstring, until 2100-01-01\n"""\n',
        "# A line GRUG NOVERIFY: mid-sentence, until 2100-01-01\n",
        "# To switch checks off, write # GRUG NOVERIFY: why, until 2100-01-01\n",
        "# GRUG NOVERIFYING is another word\n",
        "",
    ],
)
def test_a_mention_is_no_mark(source: str, tmp_path: Path):
    assert mark_in(tmp_path, source) is None


def test_only_the_loop_is_asked(tmp_path: Path):
    assert mark_in(tmp_path, "# GRUG NOVERIFY: why, until 2100-01-01\n", "model.py") is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("# GRUG NOVERIFY", "is not in the form of a mark"),
        ("# GRUG NOVERIFY until 2100-01-01", "is not in the form of a mark"),
        ("#GRUG NOVERIFY: why, until 2100-01-01", "is not in the form of a mark"),
        ("# grug noverify: why, until 2100-01-01", "is not in the form of a mark"),
        ("# GRUG NOVERIFY:", "gives no reason"),
        ("# GRUG NOVERIFY: , until 2100-01-01", "gives no reason"),
        ("# GRUG NOVERIFY: ..., until 2100-01-01", "gives no reason"),
        ("# GRUG NOVERIFY: it is broken", "gives no date"),
        ("# GRUG NOVERIFY: it is broken, until Christmas", "gives no date"),
        ("# GRUG NOVERIFY: it is broken, until 2100-02-31", "gives no date"),
        ("# GRUG NOVERIFY: it is broken, until 21000101", "gives no date"),
        ("x = 1  # GRUG NOVERIFY: why, until 2100-01-01", "is behind code"),
        ("# GRUG NOVERIFY: why, until 9999-12-31", "ends more than 180 days ahead"),
        ("# GRUG NOVERIFY: why, until 2026-11-15", "has expired, today is 2026-11-16"),
    ],
)
def test_a_mark_that_does_not_count_says_why_and_where(line: str, words: str, tmp_path: Path):
    fault = fault_of(tmp_path, f"import os\n{line}\n")
    assert fault is not None
    assert fault.startswith("experiments/grug/odd/train.py:2: `")
    assert words in fault
    assert "Allowed: `# GRUG NOVERIFY: <reason>, until <YYYY-MM-DD>`" in fault
    assert "Fix: " in fault


def test_the_last_until_gives_the_date(tmp_path: Path):
    line = "# GRUG NOVERIFY: waits, until JAX 0.12, until 2027-01-31.\n"
    mark = mark_in(tmp_path, line)
    assert mark is not None
    assert (mark.reason, mark.until) == ("waits, until JAX 0.12", date(2027, 1, 31))
    assert mark.fault(TODAY) is None


def test_of_several_marks_the_one_that_excludes_least_holds(tmp_path: Path):
    good, ended = (f"# GRUG NOVERIFY: why, until {day}\n" for day in ("2027-01-31", "2020-01-01"))
    assert fault_of(tmp_path, good + good) is None
    assert "has expired" in (fault_of(tmp_path, good + ended) or "")
    assert "gives no date" in (fault_of(tmp_path, good + ended + "# GRUG NOVERIFY: why\n") or "")
