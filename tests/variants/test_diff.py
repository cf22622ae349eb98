"""What differs between two folders: which files are compared, and which lines count as changed."""

import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.errors import ConfigError
from chomp.variants.ci_report import closest
from chomp.variants.diff import (
    Content,
    FileChange,
    FolderChanges,
    changed_files,
    folder_changes,
    line_hunks,
)

Tree = dict[str, str | bytes]
FEW_KINDS = st.lists(st.sampled_from(["a\n", "b\n", "    c\n", "\n"]), max_size=12)

# Bytes before and after, where programs that count lines are known to disagree.
EDGES = {
    "both empty": (b"", b""),
    "from empty": (b"", b"a\nb\n"),
    "to empty": (b"a\nb\n", b""),
    "one empty line": (b"", b"\n"),
    "newline at the end taken away": (b"a\nb\n", b"a\nb"),
    "newline at the end added": (b"a\nb", b"a\nb\n"),
    "no newline on either side": (b"a\nb", b"a\nc"),
    "line added behind a last line without newline": (b"a", b"a\nb"),
    "windows line ends": (b"a\r\nb\r\n", b"a\nb\n"),
    "a form feed and a line separator end no line": (b"a\x0cb\n", "a\u2028b\nc\n".encode()),
    "not UTF-8": (b"\xff\xfe\n\xff\n", b"\xff\xfe\n\xfe\n"),
    "binary": (b"\x00\x01\n", b"\x00\x02\n\n"),
    "one line of a million characters": (b"x" * 10**6 + b"\n", b"x" * 10**6 + b"y\n"),
    "all lines alike": (b"a\n" * 900, b"a\n" * 400),
    "alike with one change": (b"a\n" * 400 + b"b\n" + b"a\n" * 9, b"a\n" * 380),
    "the longest run is not in the best answer": (
        b"".join(b"%d\n" % i for i in [9, 1, 9, 2, 9, 3, 7, 7, 7]),
        b"".join(b"%d\n" % i for i in [7, 7, 7, 9, 1, 9, 2, 9, 3]),
    ),
    "reversed": (
        b"".join(b"%d\n" % i for i in range(99)),
        b"".join(b"%d\n" % i for i in reversed(range(99))),
    ),
}


def written(folder: Path, files: Tree) -> Path:
    """A folder that holds these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def compared(tmp_path: Path, left: Tree, right: Tree, **options) -> FolderChanges:
    return folder_changes(
        written(tmp_path / "left", left), written(tmp_path / "right", right), **options
    )


def facts(changes: FolderChanges) -> list[tuple[str, str, int, int]]:
    return [(f.status, f.path, f.added_lines, f.deleted_lines) for f in changes.files]


def named(changes: FolderChanges, path: str) -> FileChange:
    return next(file for file in changes.files if file.path == path)


def test_files_come_by_status_then_path_and_lines_of_both_sides_count(tmp_path):
    left = {"z.py": "a\nb\n", "a.py": "1\n", "same.py": "x\n", "gone/old.py": "o\np\nq\n"}
    right = {"z.py": "a\nc\nd\n", "a.py": "2\n", "same.py": "x\n", "new.py": "n\n", "empty.py": ""}
    changes = compared(tmp_path, left, right)
    assert facts(changes) == [
        ("changed", "a.py", 1, 1),
        ("changed", "z.py", 2, 1),
        ("added", "empty.py", 0, 0),
        ("added", "new.py", 1, 0),
        ("removed", "gone/old.py", 0, 3),
        ("unchanged", "same.py", 0, 0),
    ]
    assert changes.status_counts == {"changed": 2, "added": 2, "removed": 1, "unchanged": 1}
    assert (changes.added_lines, changes.deleted_lines) == (4, 5)
    assert not changes.is_empty


def test_a_folder_is_equal_to_itself(tmp_path):
    folder = written(tmp_path, {"a.py": "x\n", "b.md": ""})
    assert folder_changes(folder, folder).is_empty


@pytest.mark.parametrize(
    ("extensions", "seen"),
    [
        ((".py", ".md"), ["a.py", "b.md"]),
        ((".yaml",), ["c.yaml"]),
        (None, ["LICENSE", "a.py", "b.md", "c.yaml"]),
    ],
)
def test_only_files_with_the_asked_extensions_are_looked_at(tmp_path, extensions, seen):
    files: Tree = {"a.py": "", "b.md": "", "c.yaml": "", "LICENSE": ""}
    changes = compared(tmp_path, files, {}, extensions=extensions)
    assert [file.path for file in changes.files] == seen


def test_caches_environments_and_version_control_are_passed_over(tmp_path):
    ignored = ["__pycache__", ".git", ".venv", "node_modules", ".mypy_cache"]
    files: Tree = {f"sub/{name}/x.py": "x\n" for name in ignored}
    changes = compared(tmp_path, files, {"sub/kept.py": ""})
    assert [file.path for file in changes.files] == ["sub/kept.py"]


def test_a_binary_file_has_no_lines_and_is_still_changed(tmp_path):
    changes = compared(tmp_path, {"a.py": b"\0one\n"}, {"a.py": "text\n"})
    assert facts(changes) == [("changed", "a.py", 0, 0)]
    assert changes.files[0].is_binary


def test_a_link_is_where_it_points_to_and_is_never_followed(tmp_path):
    outside = written(tmp_path / "outside", {"secret.py": "password\n"})
    left = written(tmp_path / "left", {})
    right = written(tmp_path / "right", {})
    (right / "file.py").symlink_to(outside / "secret.py")
    (right / "folder.py").symlink_to(outside)
    (right / "nowhere.py").symlink_to("missing")
    changes = folder_changes(left, right)
    assert [file.path for file in changes.files] == ["file.py", "folder.py", "nowhere.py"]
    assert named(changes, "nowhere.py").right.data == b"missing"
    assert all(b"password" not in file.right.data for file in changes.files)


def test_a_renamed_file_is_told_and_counts_as_one_removed_and_one_added(tmp_path):
    body = "".join(f"line {i}\n" for i in range(10))
    changes = compared(
        tmp_path, {"old.py": body, "other.py": "x\ny\n"}, {"new.py": body + "more\n"}
    )
    assert facts(changes) == [
        ("added", "new.py", 11, 0),
        ("removed", "old.py", 0, 10),
        ("removed", "other.py", 0, 2),
    ]
    rename = named(changes, "new.py").rename
    assert rename == named(changes, "old.py").rename
    assert (rename.left, rename.right) == ("old.py", "new.py")
    assert rename.likeness == pytest.approx(10 / 11)
    assert named(changes, "other.py").rename is None


def test_each_file_is_renamed_at_most_once_and_the_most_alike_first(tmp_path):
    body = [f"line {i}\n" for i in range(10)]
    left: Tree = {"a.py": "".join(body), "b.py": "".join(body[:6])}
    right: Tree = {"c.py": "".join(body), "d.py": "".join(body[:5]) + "new\n"}
    changes = compared(tmp_path, left, right)
    renames = {file.rename for file in changes.files}
    assert {(pair.left, pair.right) for pair in renames} == {("a.py", "c.py"), ("b.py", "d.py")}


def test_files_without_content_and_files_unlike_each_other_are_no_renames(tmp_path):
    changes = compared(
        tmp_path,
        {"empty.py": "", "a.py": "a\nb\nc\n", "x.py": b"\0binary"},
        {"void.py": "", "b.py": "a\nd\ne\n", "y.py": b"\0other"},
    )
    assert [file.rename for file in changes.files] == [None] * 6


def test_equal_binary_files_are_a_rename(tmp_path):
    changes = compared(tmp_path, {"a.py": b"\0same"}, {"b.py": b"\0same"})
    assert named(changes, "b.py").rename.likeness == 1


def test_what_is_no_folder_is_refused_by_name(tmp_path):
    file = tmp_path / "file.py"
    file.write_text("")
    for wrong in (file, tmp_path / "missing"):
        with pytest.raises(ConfigError) as caught:
            folder_changes(tmp_path, wrong)
        assert wrong.name in caught.value.given
        assert "two folders" in caught.value.allowed


# --- lines ----------------------------------------------------------------------------------------


def longest_by_table(left: list[str], right: list[str]) -> int:
    """The length of the longest common subsequence as textbooks have it."""
    above = [0] * (len(right) + 1)
    for item in left:
        row = [0]
        for index, other in enumerate(right):
            row.append(above[index] + 1 if item == other else max(above[index + 1], row[index]))
        above = row
    return above[-1]


def change_of(left: bytes, right: bytes) -> FileChange:
    (change,) = changed_files({"a": Content(left)}, {"a": Content(right)})
    return change


@given(FEW_KINDS, FEW_KINDS)
def test_as_many_lines_stay_as_possible_and_the_hunks_are_in_order(left, right):
    change = change_of("".join(left).encode(), "".join(right).encode())
    kept = longest_by_table(left, right)
    assert (change.deleted_lines, change.added_lines) == (len(left) - kept, len(right) - kept)
    i = j = 0
    for hunk in [*change.hunks, (len(left), len(left), len(right), len(right))]:
        assert left[i : hunk[0]] == right[j : hunk[2]]
        _, i, _, j = hunk
    assert all(a.left_end < b.left_start for a, b in pairwise(change.hunks))


@pytest.mark.parametrize("name", EDGES)
def test_lines_are_counted_as_git_counts_them(name: str, tmp_path: Path):
    left, right = EDGES[name]
    (tmp_path / "left").write_bytes(left)
    (tmp_path / "right").write_bytes(right)
    command = ["git", "diff", "--no-index", "--no-ext-diff", "--minimal", "--numstat"]
    printed = subprocess.run(
        [*command, "left", "right"], cwd=tmp_path, capture_output=True, text=True
    ).stdout.split("\t")[:2]
    counts = [int(number) for number in printed if number.isdigit()] or [0, 0]
    change = change_of(left, right)
    assert [change.added_lines, change.deleted_lines] == counts


def test_an_added_function_is_shown_as_itself_and_not_across_its_neighbour():
    first, second = b"def f():\n    return 1\n\n\n", b"def g():\n    return 1\n\n\n"
    assert change_of(first + b"x = 1\n", first + second + b"x = 1\n").hunks == ((4, 4, 4, 8),)


def test_two_long_texts_that_share_every_line_in_another_order_are_compared_exactly():
    lines = [f"{i}\n" for i in range(5000)]
    shifted = [*lines[1666:], *lines[:1666]]
    assert sum(hunk.left_end - hunk.left_start for hunk in line_hunks(lines, shifted)) == 1666
    assert sum(hunk.left_end - hunk.left_start for hunk in line_hunks(lines, lines[::-1])) == 4999


# --- what cannot be read --------------------------------------------------------------------------


# Compares a folder with itself as a user who may not read all of it. Root may, so it becomes
# another once all is imported.
READER = """
import os, sys
from pathlib import Path
from chomp.errors import StorageError
from chomp.variants.diff import folder_changes

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    folder_changes(Path(sys.argv[1]), Path(sys.argv[1]))
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["a.py", "folder"])
def test_what_cannot_be_read_is_an_error_that_names_it(name):
    # Not in pytest's own folder, which no other user reaches.
    with tempfile.TemporaryDirectory() as reachable:
        Path(reachable).chmod(0o755)
        folder = written(Path(reachable, "left"), {"a.py": "", "folder/b.py": ""})
        (folder / name).chmod(0)
        command = [sys.executable, "-c", READER, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        (folder / name).chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert name in done.stdout


def test_the_closest_candidate_has_the_fewest_lines_and_ties_go_to_the_first_name(tmp_path):
    candidates = {
        "far": written(tmp_path / "far", {"m.py": "1\n2\n3\n"}),
        "b": written(tmp_path / "b", {"m.py": "x\ny\nz\n"}),
        "a": written(tmp_path / "a", {"m.py": "x\ny\nw\n"}),
    }
    folder = written(tmp_path / "new", {"m.py": "x\ny\nv\n"})
    found = closest(folder, candidates, label="new")
    assert (found.left_label, found.right_label, found.distance) == ("a", "new", 2)
    assert closest(folder, {}) is None
