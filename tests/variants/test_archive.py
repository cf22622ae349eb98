"""The archive of variants: this repository's is right, faults are told, edits touch one entry."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.variants.archive import archive_of, moved_entry, with_entry, without_entry
from chomp.variants.archive_lint import ArchiveProblem, archive_problems, fill_in_commits
from tests.variants.small_checkout import ARCHIVE, PAGE, ROOT, Checkout, quiet_git, small_checkout

MINE = {
    "Path": "experiments/grug/mine",
    "Origin": "base",
    "Introduced": "not committed yet",
    "Status": "active",
    "Purpose": "To try something.",
    "Superseded by": "none",
    "Diff": "uv run chomp variant diff mine",
    "Issue": "none",
}


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkout(tmp_path_factory.mktemp("archive") / "checkout").root


@pytest.fixture
def checkout(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A copy, so that a test may damage it."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Checkout(Path(shutil.copytree(made_once, tmp_path / "checkout")))


def told(problems: list[ArchiveProblem]) -> str:
    return "\n".join(f"{found.where} {found.what}. Fix: {found.fix}." for found in problems)


def test_the_archive_of_this_repository_knows_every_variant_and_is_complete():
    assert told(archive_problems(ROOT)) == ""


def test_a_right_archive_has_no_faults(checkout: Checkout):
    assert told(archive_problems(checkout.root)) == ""


def replaced(old: str, new: str) -> Callable[[Checkout], None]:
    """A fault that is other words on the page."""

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


def second_entry(checkout: Checkout) -> None:
    page = checkout.read(ARCHIVE)
    checkout.write(ARCHIVE, page + "\n### base\n\n- Status: deleted\n")


FAULTS = {
    "a folder without an entry": (new_folder, 9, "no entry for the variant experiments/grug/mine"),
    "an entry without a folder": (no_base, 11, "base: active, but there is no variant"),
    "a missing field": (replaced("- Diff: none\n", ""), 11, "base: no Diff"),
    "an empty field": (replaced("- Issue: none", "- Issue:"), 21, "base: Issue is empty"),
    "a purpose that nobody wrote": (
        replaced("To be here.", "to be filled in"),
        36,
        "gone: Purpose is to be filled in",
    ),
    "a field that is misspelled": (
        replaced("- Reason:", "- Reasons: they\n- Reason:"),
        37,
        "gone: unknown field 'Reasons'. Fix: write 'Reason'",
    ),
    "a field given twice": (
        replaced("- Diff: none\n", "- Diff: none\n- Diff: none\n"),
        21,
        "base: a second Diff",
    ),
    "an unknown status": (
        replaced("Status: active", "Status: paused"),
        16,
        "base: unknown status 'paused'. Fix: write one of active, superseded, deleted",
    ),
    "an active entry in the section of deleted ones": (
        replaced("### base", "## Deleted\n\n### base"),
        18,
        "base: status active in the section deleted",
    ),
    "a word for a commit": (
        replaced("Introduced: `", "Introduced: `yesterday"),
        15,
        "base: Introduced is 'yesterday",
    ),
    "a commit that is not there": (
        replaced("Last known-good: `", "Last known-good: `0123"),
        34,
        "a commit that this repository does not have",
    ),
    "another folder's path": (
        replaced("`experiments/grug/base`", "`experiments/grug/bass`"),
        13,
        "base: path experiments/grug/bass. Fix: write experiments/grug/base",
    ),
    "an id that is used twice": (second_entry, 42, "a second entry base; the first is on line 11"),
    "a retired variant whose folder is there": (
        gone_is_back,
        29,
        "gone: deleted, but experiments/grug/gone is there",
    ),
    "an origin that never was": (
        replaced("- Origin: base", "- Origin: bass"),
        32,
        "gone: Origin is 'bass', which is no other entry here",
    ),
    "a deleted variant without a reason": (
        replaced("- Reason: No better than base.\n", ""),
        29,
        "gone: deleted, without a word on why",
    ),
    "a page without a section": (replaced("## Superseded\n", ""), 1, "no section '## Superseded'"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_told_once_with_its_line_and_what_to_do(
    checkout: Checkout, fault: tuple[Callable[[Checkout], None], int, str]
):
    plant, line, words = fault
    plant(checkout)
    problems = archive_problems(checkout.root)
    assert len(problems) == 1, told(problems)
    assert problems[0].where == f"{ARCHIVE}:{line}:"
    assert words in told(problems)
    assert problems[0].fix


def test_a_superseded_variant_needs_its_last_commit_and_what_took_its_place(checkout: Checkout):
    page = archive_of(checkout.read(ARCHIVE))
    gone = page.entry("gone")
    assert gone is not None
    values = gone.values | {"Status": "superseded", "Superseded by": "base, since 1234567"}
    checkout.write(ARCHIVE, moved_entry(page, gone, values).text)
    assert told(archive_problems(checkout.root)) == ""

    del values["Last known-good"]
    values["Superseded by"] = "none"
    checkout.write(ARCHIVE, moved_entry(page, gone, values).text)
    found = told(archive_problems(checkout.root))
    assert "gone: superseded, without a last known-good commit" in found
    assert "gone: superseded, but not by what" in found


def test_an_active_variant_has_no_last_commit_since_its_folder_is_there(checkout: Checkout):
    replaced("- Status: active", "- Last known-good: `1234567`\n- Status: active")(checkout)
    assert "base: active, with a last known-good commit" in told(archive_problems(checkout.root))


def test_a_last_commit_that_does_not_hold_the_folder_is_told(checkout: Checkout):
    head = checkout.git("rev-parse", "HEAD")
    old = archive_of(checkout.read(ARCHIVE)).entries[1].get("Last known-good")
    replaced(f"Last known-good: `{old}`", f"Last known-good: `{head}`")(checkout)
    assert f"{head}, a commit without experiments/grug/gone" in told(
        archive_problems(checkout.root)
    )


def test_a_checkout_without_variants_and_archive_is_fine_and_one_with_variants_is_not(
    tmp_path: Path,
):
    assert archive_problems(tmp_path) == []
    (tmp_path / "experiments/grug/mine").mkdir(parents=True)
    (tmp_path / "experiments/grug/mine/model.py").touch()
    assert f"{ARCHIVE}:1: no such file, but variants (mine)" in told(archive_problems(tmp_path))


def test_a_commit_is_looked_up_only_where_the_whole_history_is_there(
    checkout: Checkout, tmp_path: Path
):
    replaced("Last known-good: `", "Last known-good: `0123")(checkout)
    checkout.commit()
    assert len(archive_problems(checkout.root)) == 1
    shallow = tmp_path / "shallow"
    checkout.git("clone", "--quiet", "--depth=1", f"file://{checkout.root}", str(shallow))
    assert told(archive_problems(shallow)) == ""
    shutil.rmtree(checkout.root / ".git")
    assert told(archive_problems(checkout.root)) == ""


def test_a_new_variant_may_name_its_commit_whenever_it_likes(checkout: Checkout):
    page = archive_of(checkout.read(ARCHIVE))
    checkout.write(ARCHIVE, with_entry(page, "mine", MINE).text)
    new_folder(checkout)
    assert told(archive_problems(checkout.root)) == "", "before git knows it"
    checkout.git("add", "--all")
    assert told(archive_problems(checkout.root)) == "", "when it is about to be committed"
    brought = checkout.commit()
    assert told(archive_problems(checkout.root)) == "", "in the commit that brings it"
    checkout.write("README.md", "more\n")
    checkout.commit()
    assert told(archive_problems(checkout.root)) == "", "in any later commit"

    before = checkout.read(ARCHIVE)
    fill_in_commits(checkout.root)
    assert told(archive_problems(checkout.root)) == ""
    assert checkout.read(ARCHIVE) == before.replace("not committed yet", f"`{brought}`")


def test_a_pull_request_is_right_on_its_branch_when_merged_and_when_squashed(checkout: Checkout):
    main = checkout.git("rev-parse", "--abbrev-ref", "HEAD")
    checkout.git("checkout", "--quiet", "-b", "branch")
    checkout.write(ARCHIVE, with_entry(archive_of(checkout.read(ARCHIVE)), "mine", MINE).text)
    new_folder(checkout)
    checkout.commit()
    checkout.git("checkout", "--quiet", "-b", "merged", main)
    checkout.git("merge", "--quiet", "--no-ff", "--message=merge", "branch")
    assert told(archive_problems(checkout.root)) == "", "in a merge commit"

    # What `--fix` wrote on the branch is no commit of the squashed history.
    checkout.git("checkout", "--quiet", main)
    text = with_entry(archive_of(checkout.read(ARCHIVE)), "mine", MINE | {"Introduced": "f" * 7})
    checkout.write(ARCHIVE, text.text)
    new_folder(checkout)
    squashed = checkout.commit("squashed")
    assert told(archive_problems(checkout.root)) == ""
    fill_in_commits(checkout.root)
    assert checkout.read(ARCHIVE) == text.text.replace("f" * 7, squashed)


def test_fix_leaves_the_commits_of_retired_entries_to_people(checkout: Checkout):
    old = archive_of(checkout.read(ARCHIVE)).entries[1].get("Introduced")
    replaced(f"Introduced: `{old}`\n- Last", "Introduced: `0123456`\n- Last")(checkout)
    before = checkout.read(ARCHIVE)
    fill_in_commits(checkout.root)
    assert checkout.read(ARCHIVE) == before
    assert "gone: Introduced is 0123456, a commit that" in told(archive_problems(checkout.root))


def test_an_edited_page_keeps_every_other_line_and_an_entry_keeps_its_prose():
    page = archive_of(
        PAGE.replace("- Issue: none\n", "- Issue: none\n\nThe curves:\n\n- a, b\n", 1)
    )
    assert [entry.name for entry in page.entries] == ["base", "gone"]
    base = page.entries[0]
    assert base.get("Purpose") == "What all are copied from."
    assert base.prose == ("The curves:", "", "- a, b")
    moved = moved_entry(page, base, base.values | {"Status": "deleted"})
    assert [(entry.name, entry.section) for entry in moved.entries] == [
        ("gone", "deleted"),
        ("base", "deleted"),
    ]
    assert moved.entries[1].prose == base.prose
    assert set(page.text.split("\n")) - set(moved.text.split("\n")) == {
        "- Status: active",
        "- Purpose: What all",  # now on one line
        "  are copied from.",
    }


WORDS = st.lists(st.text("abc:-`#_*1 \n", min_size=1).filter(str.strip), max_size=30)


@given(WORDS)
def test_an_entry_that_is_added_is_read_back_and_taken_out_without_a_trace(words: list[str]):
    page = archive_of(PAGE)
    values = MINE | {"Purpose": f"Why {' '.join(words)} so"}
    added = with_entry(page, "mine", values)
    entry = added.entry("mine")
    assert entry is not None
    assert [e.name for e in added.entries] == ["base", "mine", "gone"]
    assert entry.values == values | {"Purpose": " ".join(values["Purpose"].split())}
    assert without_entry(added, entry).text == PAGE


def test_git_finds_nothing_of_this_process_in_the_tests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert "GIT_DIR" not in quiet_git()
