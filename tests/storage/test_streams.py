"""Files as streams, and what is known about them unread, locally and in memory."""

import errno
import io

import fsspec
import pytest
from places import put

from chomp import storage
from chomp.errors import StorageError
from chomp.storage import FileInfo, join

CONTENT = bytes(range(256)) * 20_000  # several buffers


def test_a_stream_reads_what_the_file_holds_from_anywhere_in_it(root: str):
    put(join(root, "file"), CONTENT)
    found = storage.file_info(join(root, "file"))
    assert found == FileInfo(size_bytes=len(CONTENT), checksum=None)
    with storage.open_stream(join(root, "file")) as stream:
        assert stream.read(300) == CONTENT[:300]
        assert stream.read() == CONTENT[300:]
        assert stream.seek(-5, io.SEEK_END) == stream.tell() == len(CONTENT) - 5
        assert stream.read() == CONTENT[-5:]
        stream.seek(0)
        assert b"".join(stream) == CONTENT
    assert stream.closed
    put(join(root, "empty"), b"")
    with storage.open_stream(join(root, "empty")) as stream:
        assert list(stream) == []


def test_a_missing_file_is_explained_when_it_is_opened(root: str):
    with pytest.raises(StorageError, match="'gone' does not exist in"):
        storage.open_stream(join(root, "gone"))
    with pytest.raises(StorageError, match="'gone' does not exist in"):
        storage.file_info(join(root, "gone"))


class BreakingFile(io.BytesIO):
    """A connection that is lost in the middle."""

    def readinto(self, buffer: memoryview) -> int:
        if self.tell() > 0:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        return super().readinto(buffer[:10])


class BreakingFileSystem(fsspec.AbstractFileSystem):
    """A cloud store that loses every connection."""

    protocol = "breaking"

    def _open(self, path: str, mode: str = "rb", **options: object) -> BreakingFile:
        return BreakingFile(CONTENT)


def test_a_read_that_fails_in_the_middle_is_explained_with_its_cause():
    fsspec.register_implementation("breaking", BreakingFileSystem, clobber=True)
    with storage.open_stream("breaking://bucket/file") as stream:
        assert stream.read(10) == CONTENT[:10]
        with pytest.raises(StorageError, match=r"cannot read breaking://bucket/file: .*timed out"):
            stream.read(10)
        with pytest.raises(StorageError) as caught:
            stream.read()
    assert caught.value.errno == errno.ETIMEDOUT
    assert isinstance(caught.value.__cause__, TimeoutError)


@pytest.mark.parametrize(
    ("info", "checksum"),
    [
        ({"ETag": '"abc-2"'}, 'ETag="abc-2"'),
        ({"etag": "C", "md5Hash": "M"}, "md5Hash=M"),
        ({"ETag": 'W/"abc"'}, None),
        ({"ETag": "", "etag": None}, None),
        ({"created": 1}, None),
    ],
)
def test_a_checksum_of_the_content_is_preferred_and_a_weak_one_is_none(
    monkeypatch: pytest.MonkeyPatch, info: dict[str, object], checksum: str | None
):
    fsspec.register_implementation("breaking", BreakingFileSystem, clobber=True)
    monkeypatch.setattr(
        BreakingFileSystem, "info", lambda self, path: {"size": 3, **info}, raising=False
    )
    found = storage.file_info("breaking://bucket/file")
    assert found == FileInfo(size_bytes=3, checksum=checksum)
