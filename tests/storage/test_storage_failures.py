"""What a person reads when a filesystem says no: the path, the reason, the way out."""

import errno
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from places import put

from chomp import storage
from chomp.errors import StorageError
from chomp.storage import join

three_parts = r"(?s).+\. Allowed: .+\. Fix: .+\.$"

# Writes under a file-size limit, which the kernel enforces on root too.
LIMITED = """
import os, resource, sys
from chomp import storage
from chomp.errors import StorageError

limit, path = int(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for write in (
    lambda: storage.write_bytes_atomic(path, bytes(10**6)),
    lambda: storage.require_writable_folder(os.path.dirname(path)),
):
    try:
        write()
    except StorageError as error:
        print(error.errno, error)
"""


def test_a_missing_file_names_its_neighbours_and_the_nearest_name(root: str):
    for name in ["metrics.jsonl", "train.log"]:
        put(join(root, name), b"")
    with pytest.raises(StorageError, match=three_parts) as caught:
        storage.read_bytes(join(root, "metric.jsonl"))
    text = str(caught.value)
    assert f"{join(root, 'metric.jsonl')}: 'metric.jsonl' does not exist" in text
    assert "holds metrics.jsonl, train.log" in text
    assert f"did you mean {join(root, 'metrics.jsonl')}" in text
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_missing_folder_is_found_from_the_nearest_parent_that_exists(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(StorageError) as caught:
        storage.list_folder(tmp_path / "checkpoint" / "step-1" / "x")
    assert f"'checkpoint' does not exist in {tmp_path}" in str(caught.value)
    assert f"did you mean {tmp_path}/checkpoints" in str(caught.value)
    assert caught.value.errno == errno.ENOENT


def test_a_long_listing_is_cut_short(tmp_path: Path):
    for index in range(20):
        (tmp_path / f"shard-{index:02}").touch()
    with pytest.raises(StorageError, match=r"shard-07 and 12 more\. Allowed"):
        storage.read_bytes(tmp_path / "zzz")


def test_a_missing_relative_path_names_the_real_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=rf"'runs' does not exist in {tmp_path}, which holds"):
        storage.read_json("runs/x.json")


def test_a_link_that_leads_nowhere_is_called_that(tmp_path: Path):
    (tmp_path / "latest").symlink_to(tmp_path / "gone")
    assert not storage.exists(tmp_path / "latest")
    with pytest.raises(StorageError, match="'latest' leads nowhere"):
        storage.read_bytes(tmp_path / "latest")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: storage.write_text_atomic(path, "x"),
        storage.make_folder,
        storage.require_writable_folder,
        lambda path: storage.FileLock.try_acquire(path),
    ],
    ids=["write", "make", "require", "lock"],
)
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("below a file", "is a file, so it cannot be used as a folder"),
        ("/sys", rf"user .*uid {os.geteuid()}\) is not permitted to do this in folder /sys"),
        ("/proc", "folder /proc exists, but takes no new files"),
    ],
)
def test_a_place_that_takes_no_files_is_explained(
    tmp_path: Path, write: Callable[[str], object], place: str, reason: str
):
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file") if place == "below a file" else place
    if not os.path.exists(folder):
        pytest.skip(f"this system has no {folder}")
    with pytest.raises(StorageError, match=three_parts) as caught:
        write(join(folder, "new"))
    assert folder in str(caught.value)
    assert re.search(reason, caught.value.given)
    assert isinstance(caught.value.__cause__, OSError)
    assert storage.list_folder(tmp_path) == ["file"]


def test_a_folder_in_the_way_is_named(tmp_path: Path):
    (tmp_path / "run").mkdir()
    write = lambda path: storage.write_bytes_atomic(path, b"x")  # noqa: E731
    for call in (storage.read_bytes, storage.open_stream, write):
        with pytest.raises(StorageError, match="run: it is a folder, not a file"):
            call(str(tmp_path / "run"))
    assert os.listdir(tmp_path) == ["run"]


def test_a_full_disk_keeps_the_old_content_leaves_no_trace_and_says_so(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    process = start(LIMITED, 1000, path)
    failures = process.communicate(timeout=120)[0].splitlines()
    assert failures[0].startswith(f"{errno.EFBIG} cannot write {path}: the disk is full")
    for failure in failures:
        assert "MiB free on the filesystem" in failure
        assert "nothing was replaced" in failure
    assert len(failures) == 2
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


def test_an_unknown_scheme_names_the_fix():
    with pytest.raises(StorageError, match="install the package that provides nosuch://"):
        storage.exists("nosuch://bucket/x")


def test_a_cloud_client_that_fails_in_its_own_way_is_explained(memory_root: str):
    # A file cannot be a folder in memory either; the memory filesystem says so with other types.
    put(join(memory_root, "file"), b"")
    with pytest.raises(StorageError, match=three_parts):
        storage.list_folder(join(memory_root, "file"))
