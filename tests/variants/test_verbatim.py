"""`# verbatim: base`: what is compared, what counts as equal, and what a stale copy is told."""

from pathlib import Path

import pytest

from chomp.variants.marks import verbatim_violations

BASE = '''"""The loop."""

from functools import partial


def pace(x):
    """How fast."""
    return x + 1  # one more


class Loop:
    """All of it."""

    size: int = 3

    @property
    @partial(lambda f: f)
    def speed(self):
        # As measured.
        return pace(self.size)

    @speed.setter
    def speed(self, value):
        self.size = value
'''


def violations(root: Path, copy: str, *, file: str = "train.py", origin: str = BASE) -> list[str]:
    """What is said of a variant with one file, beside a base with the loop."""
    for name, text in {"base/model.py": "", "base/train.py": origin, "odd/model.py": ""}.items():
        path = root / "experiments/grug" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder = root / "experiments/grug/odd"
    (folder / file).write_text(copy)
    return verbatim_violations(folder)


def marked(name: str, source: str = BASE) -> str:
    """The source with a mark above the line that begins with `name`."""
    lines = source.split("\n")
    (at,) = (i for i, line in enumerate(lines) if line.strip().startswith(name))
    indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
    return "\n".join([*lines[:at], f"{indent}# verbatim: base", *lines[at:]])


@pytest.mark.parametrize("name", ["def pace", "class Loop", "@property", "@speed.setter"])
def test_an_equal_copy_is_left_alone(name: str, tmp_path: Path):
    assert violations(tmp_path, marked(name)) == []


def test_all_of_them_at_once_and_marks_inside_a_copy_are_no_difference(tmp_path: Path):
    source = marked("class Loop", marked("@property", marked("def pace")))
    assert source.count("# verbatim") == 3
    assert violations(tmp_path, source) == []


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("def pace", ("return x + 1", "return x + 2"), "pace"),
        ("def pace", ("# one more", "# another"), "pace"),
        ("class Loop", ("size: int = 3", "size: int = 4"), "Loop"),
        ("class Loop", ("self.size = value", "self.size = value or 1"), "Loop"),
        ("@property", ("@partial(lambda f: f)", "@partial(lambda g: g)"), "Loop.speed"),
        ("@property", ("# As measured.", "# As guessed."), "Loop.speed"),
        # A setter has its getter's name.
        ("@speed.setter", ("self.size = value", "self.size = 7"), "Loop.speed"),
    ],
)
def test_a_stale_copy_is_named_with_both_places_and_the_difference(
    name: str, change: tuple[str, str], told: str, tmp_path: Path
):
    source = marked(name).replace(*change)
    (violation,) = violations(tmp_path, source)
    line = source.split("# verbatim")[0].count("\n") + 1
    assert violation.startswith(f"experiments/grug/odd/train.py:{line}: {told} is marked as a copy")
    assert "experiments/grug/base/train.py:" in violation
    old, new = change
    diff = [row.strip() for row in violation.split("\n")]
    assert any(row.startswith("-") and old in row for row in diff)
    assert any(row.startswith("+") and new in row for row in diff)
    assert "Allowed: the same text" in violation
    assert "Fix: " in violation


def test_what_is_not_marked_may_differ(tmp_path: Path):
    source = marked("def pace").replace("self.size = value", "self.size = 7")
    assert violations(tmp_path, source) == []


def test_a_fix_in_the_origin_turns_the_copy_red(tmp_path: Path):
    fixed = BASE.replace("x + 1", "max(x, 0) + 1")
    (violation,) = violations(tmp_path, marked("def pace"), origin=fixed)
    assert "max(x, 0) + 1" in violation


def test_a_long_difference_is_cut_short(tmp_path: Path):
    body = "".join(f"    x = {i}\n" for i in range(60))
    origin = f"def f(x):\n{body}    return x\n"
    copy = "# verbatim: base\n" + origin.replace("x = ", "x += ")
    (violation,) = violations(tmp_path, copy, origin=origin)
    assert violation.count("\n") < 20
    assert "more lines" in violation


def test_a_copy_may_live_in_another_file_and_at_another_depth(tmp_path: Path):
    copy = 'if True:\n    # verbatim: base\n    def pace(x):\n        """How fast."""\n'
    copy += "        return x + 1  # one more\n"
    assert violations(tmp_path, copy, file="pacing.py") == []


def test_a_comment_may_stand_between_a_mark_and_its_copy(tmp_path: Path):
    source = marked("def pace").replace("# verbatim: base\n", "# verbatim: base\n# As in base.\n")
    assert violations(tmp_path, source) == []
    (violation,) = violations(tmp_path, source.replace("x + 1", "x + 2"))
    assert "pace is marked as a copy" in violation


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("# verbatim: base\n\ndef pace(x): ...\n", "is not above a function, class or method"),
        ("# verbatim: base\nx = 1\n", "is not above a function, class or method"),
        ("def pace(x):  # verbatim: base\n    ...\n", "is not above a function"),
        ("# verbatim: moe\ndef pace(x): ...\n", "the name of another variant: base"),
        ("# verbatim: odd\ndef pace(x): ...\n", "the name of another variant: base"),
        ("# verbatim:\ndef pace(x): ...\n", "the name of another variant: base"),
        ("# verbatim: base, nearly\ndef pace(x): ...\n", "the name of another variant"),
        ("# verbatim: base\ndef gone(x): ...\n", "gone is marked as a copy, but experiments/grug"),
        ("# verbatim: base\ndef pace(x:\n", "valid Python"),
    ],
)
def test_a_mark_that_marks_nothing_is_told_apart(source: str, words: str, tmp_path: Path):
    (violation,) = violations(tmp_path, source)
    assert words in violation
    assert violation.startswith("experiments/grug/odd/train.py:")


def test_an_origin_that_cannot_be_parsed_is_told(tmp_path: Path):
    (violation,) = violations(tmp_path, marked("def pace"), origin="def (\n")
    assert violation.startswith("experiments/grug/base/train.py:1: ")


@pytest.mark.parametrize(
    "source",
    [
        'TEXT = """\n# verbatim: base\n"""\n\n\ndef pace(x): ...\n',
        "# What is verbatim: base has it too.\ndef pace(x): ...\n",
    ],
)
def test_a_mention_of_a_mark_is_none(source: str, tmp_path: Path):
    assert violations(tmp_path, source) == []


def test_another_variant_may_be_the_origin(tmp_path: Path):
    grug = tmp_path / "experiments/grug"
    (grug / "moe").mkdir(parents=True)
    (grug / "moe/model.py").write_text("def route(x):\n    return x\n")
    same = "# verbatim: moe\ndef route(x):\n    return x\n"
    assert violations(tmp_path, same) == []
    (violation,) = violations(tmp_path, same.replace("return x", "return -x"))
    assert "experiments/grug/moe/model.py:1" in violation
