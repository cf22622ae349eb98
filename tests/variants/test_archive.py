"""The archive of variants: this repository's is right, faults are named, edits touch one entry."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chomp.errors import ConfigError
from chomp.variants.archive import (
    ARCHIVE,
    ARCHIVE_PAGE,
    ArchiveEntry,
    ArchiveProblem,
    archive_problems,
    fill_in_commits,
    read_archive,
    write_entry,
)
from tests.variants.small_checkout import ROOT, Checkout, quiet_git, small_checkout

MINE = ArchiveEntry(origin="base", status="active", purpose="To try something.")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkout(tmp_path_factory.mktemp("archive") / "checkout").root


@pytest.fixture
def checkout(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A copy, so that a test may damage it."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Checkout(Path(shutil.copytree(made_once, tmp_path / "checkout")))


def listed(problems: list[ArchiveProblem]) -> str:
    return "\n".join(f"{found.where} {found.what}. Fix: {found.fix}." for found in problems)


def test_the_archive_of_this_repository_knows_every_variant_and_is_complete():
    assert listed(archive_problems(ROOT)) == ""


def test_a_right_archive_has_no_faults(checkout: Checkout):
    assert listed(archive_problems(checkout.root)) == ""


def replaced(old: str, new: str) -> Callable[[Checkout], None]:
    """A fault that is other words in the file."""

    def plant(checkout: Checkout) -> None:
        assert checkout.read(ARCHIVE).count(old) >= 1
        checkout.write(ARCHIVE, checkout.read(ARCHIVE).replace(old, new, 1))

    return plant


def new_folder(checkout: Checkout) -> None:
    checkout.write("experiments/grug/mine/model.py", "x = 1\n")


def no_base(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / "experiments/grug/base")


def gone_is_back(checkout: Checkout) -> None:
    checkout.write("experiments/grug/gone/model.py", "x = 1\n")


FAULTS = {
    "a folder without an entry": (new_folder, 1, "no entry for the variant experiments/grug/mine"),
    "an entry without a folder": (no_base, 3, "base: active, but there is no variant"),
    "a missing field": (replaced("  status: active\n", ""), 3, "status"),
    "an empty field": (replaced("diff: '`git log`'", "diff: ''"), 10, "diff"),
    "no purpose": (replaced("  purpose: To be here.\n", ""), 10, "gone: no purpose"),
    "a misspelled field": (replaced("reason:", "result: it\n  reasons:"), 10, "reason"),
    "a field given twice": (replaced("  reason:", "  reason: it\n  reason:"), 1, "reason"),
    "an unknown status": (replaced("active", "paused"), 3, "'paused'"),
    "an active entry that was retired": (
        replaced("status: deleted", "status: active"),
        10,
        "gone: status: active with last_known_good",
    ),
    "a word for a commit": (
        replaced("introduced: ", "introduced: yesterday"),
        3,
        "base: introduced: yesterday",
    ),
    "a commit that does not exist": (
        replaced("last_known_good: ", "last_known_good: 0123"),
        10,
        "which this repository does not have",
    ),
    "a name that is used twice": (
        replaced("# Given up.", "base: {status: active}"),
        1,
        "base",
    ),
    "a retired variant whose folder exists": (
        gone_is_back,
        10,
        "gone: deleted, but experiments/grug/gone exists",
    ),
    "an origin that never was": (
        replaced("origin: base", "origin: bass"),
        10,
        "gone: origin is 'bass', which is not another entry. Allowed: base",
    ),
    "a deleted variant without a reason": (
        replaced("  reason: No better than base.\n", ""),
        10,
        "gone: status: deleted without a reason",
    ),
    "a superseded one without its successor": (
        replaced("status: deleted", "status: superseded"),
        10,
        "gone: status: superseded with superseded_by: null",
    ),
    "a retired one without its last commit": (
        replaced("  last_known_good:", "  issue:"),
        10,
        "gone: status: deleted with last_known_good: null",
    ),
    "a retired one that was never committed": (
        replaced("origin: base\n  introduced:", "origin: base\n  issue:"),
        10,
        "gone: status: deleted without introduced",
    ),
    "a list": (replaced("base:", "- base:"), 1, ARCHIVE),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_named_once_with_its_line_and_what_to_do(
    checkout: Checkout, fault: tuple[Callable[[Checkout], None], int, str]
):
    plant, line, words = fault
    plant(checkout)
    problems = archive_problems(checkout.root)
    assert len(problems) == 1, listed(problems)
    assert problems[0].where == f"{ARCHIVE}:{line}:"
    assert words in listed(problems)
    assert problems[0].fix


def test_a_superseded_variant_names_what_replaced_it(checkout: Checkout):
    replaced("status: deleted", "status: superseded\n  superseded_by: base")(checkout)
    fill_in_commits(checkout.root)
    assert listed(archive_problems(checkout.root)) == ""
    assert "## Superseded\n\nReplaced by something better.\n\n### gone\n" in checkout.read(
        ARCHIVE_PAGE
    )


def test_a_page_that_was_edited_by_hand_is_named_and_generated_again(checkout: Checkout):
    before = checkout.read(ARCHIVE_PAGE)
    checkout.write(ARCHIVE_PAGE, before.replace("To be here", "To be there"))
    (problem,) = archive_problems(checkout.root)
    assert problem.where == f"{ARCHIVE_PAGE}:1:"
    fill_in_commits(checkout.root)
    assert checkout.read(ARCHIVE_PAGE) == before


def test_a_last_commit_that_does_not_hold_the_folder_is_named(checkout: Checkout):
    head = checkout.git("rev-parse", "HEAD")
    old = read_archive(checkout.root)["gone"].last_known_good
    replaced(f"last_known_good: {old}", f"last_known_good: {head}")(checkout)
    assert f"{head}, a commit without experiments/grug/gone" in listed(
        archive_problems(checkout.root)
    )


def test_a_checkout_without_variants_and_archive_is_fine_and_one_with_variants_is_not(
    tmp_path: Path,
):
    assert archive_problems(tmp_path) == []
    fill_in_commits(tmp_path)
    (tmp_path / "experiments/grug/mine").mkdir(parents=True)
    (tmp_path / "experiments/grug/mine/model.py").touch()
    assert f"{ARCHIVE}:1: no such file, but variants (mine)" in listed(archive_problems(tmp_path))


def test_a_commit_is_looked_up_only_if_the_whole_history_is_there(
    checkout: Checkout, tmp_path: Path
):
    replaced("last_known_good: ", "last_known_good: 0123")(checkout)
    fill_in_commits(checkout.root)
    checkout.commit()
    assert len(archive_problems(checkout.root)) == 1
    shallow = tmp_path / "shallow"
    checkout.git("clone", "--quiet", "--depth=1", f"file://{checkout.root}", str(shallow))
    assert listed(archive_problems(shallow)) == ""
    shutil.rmtree(checkout.root / ".git")
    assert listed(archive_problems(checkout.root)) == ""


def test_a_new_variant_may_name_its_commit_whenever_it_likes(checkout: Checkout):
    write_entry(checkout.root, "mine", MINE)
    new_folder(checkout)
    assert listed(archive_problems(checkout.root)) == "", "before git knows it"
    checkout.git("add", "--all")
    assert listed(archive_problems(checkout.root)) == "", "when it is about to be committed"
    added = checkout.commit()
    assert listed(archive_problems(checkout.root)) == "", "in the commit that adds it"
    checkout.write("README.md", "more\n")
    checkout.commit()
    assert listed(archive_problems(checkout.root)) == "", "in any later commit"

    fill_in_commits(checkout.root)
    assert listed(archive_problems(checkout.root)) == ""
    assert read_archive(checkout.root)["mine"].introduced == added
    assert f"- Introduced: `{added}`\n" in checkout.read(ARCHIVE_PAGE)


def test_a_pull_request_is_right_on_its_branch_when_merged_and_when_squashed(checkout: Checkout):
    main = checkout.git("rev-parse", "--abbrev-ref", "HEAD")
    checkout.git("checkout", "--quiet", "-b", "branch")
    write_entry(checkout.root, "mine", MINE)
    new_folder(checkout)
    checkout.commit()
    checkout.git("checkout", "--quiet", "-b", "merged", main)
    checkout.git("merge", "--quiet", "--no-ff", "--message=merge", "branch")
    assert listed(archive_problems(checkout.root)) == "", "in a merge commit"

    # What `--fix` wrote on the branch is no commit of the squashed history.
    checkout.git("checkout", "--quiet", main)
    lost = ArchiveEntry(origin="base", status="active", purpose="One.", introduced="f" * 7)
    write_entry(checkout.root, "mine", lost)
    before = checkout.read(ARCHIVE)
    new_folder(checkout)
    squashed = checkout.commit("squashed")
    assert listed(archive_problems(checkout.root)) == ""
    fill_in_commits(checkout.root)
    assert read_archive(checkout.root)["mine"].introduced == squashed
    assert checkout.read(ARCHIVE).startswith(before[: before.index("mine:")])


def test_fix_leaves_the_commits_of_retired_entries_to_people(checkout: Checkout):
    old = read_archive(checkout.root)["gone"].introduced
    replaced(f"origin: base\n  introduced: {old}", "origin: base\n  introduced: 0123456")(checkout)
    before = checkout.read(ARCHIVE)
    fill_in_commits(checkout.root)
    assert checkout.read(ARCHIVE) == before
    assert "gone: introduced is 0123456, which" in listed(archive_problems(checkout.root))


def test_an_edit_keeps_every_line_that_is_not_of_its_entry(checkout: Checkout):
    before = checkout.read(ARCHIVE)
    entry = read_archive(checkout.root)["base"]
    assert entry.purpose == "What all are copied from."
    write_entry(checkout.root, "base", ArchiveEntry(status="active", purpose="Other."))
    assert checkout.read(ARCHIVE) == (
        before[: before.index("base:")]
        + "base:\n  status: active\n  purpose: Other.\n\n"
        + before[before.index("# Given up.") :]
    )


def test_an_entry_in_another_form_is_not_edited(checkout: Checkout):
    replaced("base:\n", "? base\n:\n")(checkout)
    before = checkout.read(ARCHIVE)
    with pytest.raises(ConfigError) as caught:
        write_entry(checkout.root, "base", MINE)
    assert ARCHIVE in caught.value.given
    assert checkout.read(ARCHIVE) == before


@pytest.mark.parametrize("commit", ["00e1234", "12345678", "0123456", "1234.56"])
def test_a_commit_without_quotes_is_never_read_as_a_number(checkout: Checkout, commit: str):
    old = read_archive(checkout.root)["base"].introduced
    replaced(f"introduced: {old}", f"introduced: {commit}")(checkout)
    if "." in commit:
        assert "base: introduced: 1234.56" in listed(archive_problems(checkout.root))
    else:
        assert read_archive(checkout.root)["base"].introduced == commit


WORDS = st.lists(st.text("abc:-`#_*1'\" \n", min_size=1).filter(str.strip), max_size=30)


@given(WORDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_an_entry_that_is_written_is_read_back_and_leaves_the_others(
    checkout: Checkout, words: list[str]
):
    before = read_archive(checkout.root)
    entry = ArchiveEntry(status="active", purpose=f"Why {' '.join(words)} so")
    write_entry(checkout.root, "mine", entry)
    write_entry(checkout.root, "second", MINE)
    after = read_archive(checkout.root)
    assert after == before | {"mine": entry, "second": MINE}


def test_git_finds_nothing_of_this_process_in_the_tests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert "GIT_DIR" not in quiet_git()
