"""Looking at, listing, reading, making, moving and removing, locally and in memory."""

import os
from pathlib import Path

import pytest
from places import put, put_folder

from chomp import storage
from chomp.errors import StorageError
from chomp.storage import join


def test_a_new_folder_exists_and_is_empty(tmp_path: Path):
    folder = join(tmp_path, "a", "b")
    assert not storage.exists(folder)
    storage.make_folder(folder)
    storage.make_folder(folder)
    assert storage.is_folder(folder)
    assert storage.list_folder(folder) == []
    assert storage.list_folder(tmp_path) == ["a"]


def test_a_file_reads_back_and_is_no_folder(root: str):
    path = join(root, "note.txt")
    put(path, ("grüße\r\n").encode())
    assert storage.exists(path)
    assert not storage.is_folder(path)
    assert storage.read_text(path) == "grüße\r\n"
    assert storage.read_bytes(path) == "grüße\r\n".encode()


def test_listing_is_sorted_and_leaves_out_unfinished_files(tmp_path: Path):
    for name in ["b", "a", ".executor_info", ".a.0123456789abcdef.tmp"]:
        (tmp_path / name).touch()
    assert storage.list_folder(tmp_path) == [".executor_info", "a", "b"]


def test_listing_a_file_is_an_error(root: str):
    path = join(root, "file")
    put(path, b"")
    with pytest.raises(StorageError, match="file is a file, so it cannot be used as a folder"):
        storage.list_folder(path)


def test_making_a_folder_where_a_file_is_is_an_error(tmp_path: Path):
    path = join(tmp_path, "file")
    storage.write_bytes_atomic(path, b"")
    with pytest.raises(StorageError, match="is already there"):
        storage.make_folder(path)


def test_removing_a_tree_removes_all_of_it_and_may_be_repeated(tmp_path: Path):
    folder = join(tmp_path, "tree")
    storage.make_folder(join(folder, "deep"))
    storage.write_bytes_atomic(join(folder, "deep", "file"), b"x")
    storage.remove_tree(folder)
    storage.remove_tree(folder)
    assert not storage.exists(folder)
    assert storage.exists(tmp_path)


def test_removing_a_link_keeps_what_it_points_to(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    storage.remove_tree(tmp_path / "link")
    assert storage.list_folder(tmp_path) == ["kept"]


@pytest.mark.parametrize("path", ["/", "/usr/.."])
def test_the_root_of_a_filesystem_is_never_removed(path: str):
    with pytest.raises(StorageError, match="root of its filesystem"):
        storage.remove_tree(path)


def test_a_renamed_folder_keeps_its_files(tmp_path: Path):
    storage.make_folder(join(tmp_path, "old", "deep"))
    storage.write_bytes_atomic(join(tmp_path, "old", "deep", "file"), b"x")
    storage.make_folder(join(tmp_path, "other"))
    storage.rename_folder(join(tmp_path, "old"), join(tmp_path, "other", "new"))
    assert not storage.exists(join(tmp_path, "old"))
    assert storage.read_bytes(join(tmp_path, "other", "new", "deep", "file")) == b"x"


@pytest.mark.parametrize("kind", ["file", "empty folder", "full folder", "broken link"])
def test_renaming_never_overwrites(tmp_path: Path, kind: str):
    old, new = join(tmp_path, "old"), join(tmp_path, "new")
    storage.make_folder(old)
    storage.write_bytes_atomic(join(old, "mine"), b"x")
    if kind == "file":
        storage.write_bytes_atomic(new, b"theirs")
    elif kind == "broken link":
        os.symlink(join(tmp_path, "nowhere"), new)
    else:
        storage.make_folder(new)
    if kind == "full folder":
        storage.write_bytes_atomic(join(new, "theirs"), b"")
    with pytest.raises(StorageError, match="new is already there"):
        storage.rename_folder(old, new)
    assert storage.list_folder(old) == ["mine"]


def test_renaming_between_disks_is_refused(tmp_path: Path):
    other = Path("/dev/shm")
    if not other.is_dir() or os.stat(other).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("needs two mounted filesystems")
    (tmp_path / "old").mkdir()
    with pytest.raises(StorageError, match="different filesystems"):
        storage.rename_folder(tmp_path / "old", other / f"new-{os.getpid()}")
    assert (tmp_path / "old").is_dir()


def test_the_size_of_a_folder_counts_every_file_below_it(tmp_path: Path):
    storage.make_folder(join(tmp_path, "deep"))
    storage.write_bytes_atomic(join(tmp_path, "a"), b"12345")
    storage.write_bytes_atomic(join(tmp_path, "deep", "b"), b"123")
    assert storage.folder_size_bytes(tmp_path) == 8
    with pytest.raises(StorageError):
        storage.folder_size_bytes(join(tmp_path, "a"))


def test_globbing_gives_files_only_in_the_spelling_of_the_pattern(root: str):
    for name in ["b.txt", "a.txt", "c.json"]:
        put(join(root, name), b"")
    put_folder(join(root, "deep.txt"))
    put(join(root, "deep.txt", "d.txt"), b"")
    flat = [join(root, "a.txt"), join(root, "b.txt")]
    assert storage.glob_files(join(root, "*.txt")) == flat
    assert storage.glob_files(join(root, "**", "*.txt")) == [
        *flat,
        join(root, "deep.txt", "d.txt"),
    ]
    assert storage.glob_files(join(root, "*.csv")) == []


def test_a_wildcard_in_the_bucket_is_refused():
    with pytest.raises(StorageError, match="write the bucket's name in full"):
        storage.glob_files("s3://buck*/x")


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path):
    folder = join(tmp_path, "new", "run")
    storage.require_writable_folder(folder)
    assert storage.is_folder(folder)
    assert os.listdir(folder) == []


def test_a_file_address_reads_the_plain_file(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"a": [1, 2.5, null]}')
    assert storage.read_json(f"file://{tmp_path}/x.json") == {"a": [1, 2.5, None]}
    assert storage.glob_files(f"file://{tmp_path}/*.json") == [f"{tmp_path}/x.json"]


def test_broken_json_and_text_that_is_not_utf8_say_where(root: str):
    put(join(root, "x.json"), b'{"a": 1,\n "b": }')
    with pytest.raises(StorageError, match=r"x\.json .*is not JSON.*line 2 column 7"):
        storage.read_json(join(root, "x.json"))
    put(join(root, "x.txt"), b"ab\xff")
    with pytest.raises(StorageError, match="byte 0xff at offset 2 of 3"):
        storage.read_text(join(root, "x.txt"))
