"""Sources that cannot be used: every error names the file and the record, and says what to do."""

import errno
import io
import json
import sys
from pathlib import Path

import datasets
import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from source_samples import FILE_KINDS, compressed, jsonl_bytes, redirect_hub_cache, source_of

from chomp.data import (
    ArraysSource,
    ChatFormat,
    EmbeddedSource,
    Format,
    HuggingFaceSource,
    JsonlSource,
    MemorySource,
    ParquetSource,
    Position,
    PrebuiltFormat,
    Source,
    TextFormat,
    TextSource,
    located_documents,
    source_documents,
    source_fingerprint,
)
from chomp.errors import ConfigError, DataError, StorageError


def refusal(source: Source, format: Format = TextFormat(), read: int = 0) -> DataError:  # noqa: B008
    """What the error says that comes after `read` documents."""
    documents = source_documents(source, format)
    for _ in range(read):
        next(documents)
    with pytest.raises(DataError) as caught:
        list(documents)
    return caught.value


def jsonl(folder: Path, content: bytes, name: str = "a.jsonl") -> JsonlSource:
    (folder / name).write_bytes(content)
    return JsonlSource(paths=(str(folder / name),))


def test_a_missing_key_names_the_keys_there_are_and_the_nearest(tmp_path):
    source = jsonl(tmp_path, b'{"text": "a"}\n{"txt": "b", "url": 1}\n')
    said = refusal(source, read=1)
    assert f"record {tmp_path}/a.jsonl:1 has no key 'text' (did you mean txt?)" in said.given
    assert "its keys are 'txt', 'url'" in said.given
    assert "'txt'" in said.fix


def test_a_missing_column_names_the_columns_there_are(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    said = refusal(ParquetSource(paths=(str(tmp_path / "a.parquet"),)))
    assert f"{tmp_path}/a.parquet:0 has no key 'text'; its keys are 'body', 'n'" in said.given


@pytest.mark.parametrize("value", [None, 3, 1.5, True, ["a"], {"a": 1}])
def test_a_text_that_is_no_text_is_refused(tmp_path, value):
    content = jsonl_bytes(["fine"]) + json.dumps({"text": value}).encode()
    said = refusal(jsonl(tmp_path, content), read=1)
    assert f"record {tmp_path}/a.jsonl:1 holds " in said.given
    assert said.given.endswith("under 'text'")
    table = pyarrow.table({"text": [value]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    said = refusal(ParquetSource(paths=(str(tmp_path / "a.parquet"),)))
    assert f"record {tmp_path}/a.parquet:0 holds " in said.given


@pytest.mark.parametrize(
    "line", [b"no json", b'{"text": "cut', b"{'text': 1}", b"\0", b"[" * 10**5, b'{"text": "a"} x']
)
def test_a_line_that_is_not_json_is_named(tmp_path, line):
    said = refusal(jsonl(tmp_path, jsonl_bytes(["fine"]) + line + b"\n"), read=1)
    assert f"record {tmp_path}/a.jsonl:1 (line 2) is not JSON (" in said.given
    assert len(str(said)) < 1000


@pytest.mark.parametrize("line", [b"[]", b'"text"', b"3", b"null"])
def test_a_line_that_is_no_object_is_named(tmp_path, line):
    assert f"{tmp_path}/a.jsonl:0 (line 1) holds " in refusal(jsonl(tmp_path, line)).given


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    text = TextSource(paths=(str(tmp_path / "b.txt"),))
    assert f"{tmp_path}/b.txt is not UTF-8 at byte 3" in refusal(text).given
    source = jsonl(tmp_path, b'{"text": "a"}\n{"text": "caf\xe9"}\n')
    said = refusal(source, read=1)
    assert f"{tmp_path}/a.jsonl:1 (line 2) is not UTF-8 at byte 13 of its line" in said.given
    # UTF-16 is JSON to Python, and a surrogate in UTF-8 is text to it.
    assert "is not" in refusal(jsonl(tmp_path, '{"text": "a"}'.encode("utf-16"))).given
    assert "is not UTF-8" in refusal(jsonl(tmp_path, b'{"text": "\xed\xa0\x80"}')).given
    assert (
        "half of a surrogate pair under 'text', at character 1"
        in refusal(jsonl(tmp_path, b'{"text": "a\\ud800"}')).given
    )


def test_bytes_in_a_column_that_are_no_text_are_named(tmp_path):
    raw = pyarrow.array([b"fine", b"caf\xe9", b"fine"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": raw}), tmp_path / "a.parquet")
    said = refusal(ParquetSource(paths=(str(tmp_path / "a.parquet"),)))
    assert f"record {tmp_path}/a.parquet:1 is not UTF-8 at byte 3" in said.given


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst"])
def test_a_compressed_file_that_is_cut_short_is_no_shorter_file(tmp_path, suffix):
    texts = [str(number) * 10 for number in range(100)]
    whole = compressed(jsonl_bytes(texts), suffix)
    for length in [1, 5, len(whole) // 3, len(whole) - 5, len(whole) - 1]:
        source = jsonl(tmp_path, whole[:length], f"a.{suffix}")
        said = refusal(source)
        assert f"record {tmp_path}/a.{suffix}:" in said.given
        assert "cannot be decompressed: " in said.given
        # Nor when the cut lies behind what is asked for by number.
        with pytest.raises(DataError) as caught:
            list(located_documents(source, start=Position(0, 10**6)))
        assert "cannot be decompressed" in caught.value.given


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst"])
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path, suffix):
    said = refusal(jsonl(tmp_path, jsonl_bytes(["a"]), f"a.{suffix}"))
    assert f"a.{suffix}:0 cannot be decompressed: " in said.given


def test_a_flipped_byte_in_a_compressed_file_is_found(tmp_path):
    whole = bytearray(compressed(jsonl_bytes([str(n) for n in range(1000)]), ".gz"))
    whole[-6] ^= 1  # in the checksum
    said = refusal(jsonl(tmp_path, bytes(whole), "a.jsonl.gz"))
    assert "cannot be decompressed: CRC check failed" in said.given


def test_a_damaged_parquet_file_is_named(tmp_path):
    source = source_of("parquet", tmp_path, [[f"{n} {'x' * 50}" for n in range(100)]])
    (path,) = map(Path, source.part_names())
    whole = path.read_bytes()
    for content in [b"", b"text", whole[: len(whole) // 2], whole[:4] + bytes(200) + whole[204:]]:
        path.write_bytes(content)
        assert f"record {path}:0 or a later one cannot be read: " in refusal(source).given


@pytest.mark.parametrize(
    ("array", "fault"),
    [
        (np.zeros(3), "it has the type float64 and 1 axes"),
        (np.zeros((1, 1, 1), int), "it has the type int64 and 3 axes"),
        (np.array(["a"]), "it has the type <U1 and 1 axes"),
        (np.array([None]), "Python objects in dtype"),
    ],
)
def test_arrays_that_hold_no_ids_are_named(tmp_path, array, fault):
    np.save(tmp_path / "a.npy", array)
    said = refusal(ArraysSource(paths=(str(tmp_path / "a.npy"),), separator_id=0))
    assert f"{tmp_path}/a.npy cannot be used: " in said.given
    assert fault in said.given


@pytest.mark.parametrize("content", [b"", b"text", "cut", "zip"])
def test_files_that_are_no_arrays_are_named(tmp_path, content):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3)) if content == "zip" else np.save(buffer, np.arange(1000))
    raw = content if isinstance(content, bytes) else buffer.getvalue()
    (tmp_path / "a.npy").write_bytes(raw[:500] if content == "cut" else raw)
    said = refusal(ArraysSource(paths=(str(tmp_path / "a.npy"),), separator_id=0))
    assert f"{tmp_path}/a.npy cannot be used: " in said.given


def test_an_array_with_one_axis_needs_its_separator(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    said = refusal(ArraysSource(paths=(str(tmp_path / "a.npy"),)))
    assert f"{tmp_path}/a.npy has one axis" in said.given


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_file_that_vanished_since_it_was_listed_is_named(tmp_path, kind):
    source = source_of(kind, tmp_path, [["a"], ["b"]])
    parts = source.part_names()
    Path(parts[1]).unlink()
    documents = located_documents(source, parts=parts)
    next(documents)
    with pytest.raises(DataError) as caught:
        next(documents)
    assert f"001.{kind}" in caught.value.given


def test_a_document_that_another_python_lacks_is_named():
    documents = located_documents(EmbeddedSource(), parts=("no_such_module.py",))
    with pytest.raises(DataError) as caught:
        next(documents)
    assert "no_such_module.py" in caught.value.given


@pytest.mark.parametrize("kind", [TextSource, JsonlSource, ParquetSource, ArraysSource])
def test_a_pattern_without_files_is_named(tmp_path, kind):
    source = kind(paths=(str(tmp_path / "*.none"),))
    assert "/*.none' matches no file" in refusal(source).given
    with pytest.raises(DataError) as caught:
        source_fingerprint(source)
    assert ".none'" in caught.value.given


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TextSource(paths=()), "a text source without paths"),
        (lambda: JsonlSource(paths=()), "a jsonl source without paths"),
        (lambda: ParquetSource(paths=()), "a parquet source without paths"),
        (lambda: ArraysSource(paths=()), "an arrays source without paths"),
        (lambda: ArraysSource(paths=("a",), separator_id=-1), "separator_id=-1"),
        (lambda: TextSource(paths=("",)), "a text source with an empty path"),
        (lambda: MemorySource(documents=()), "a memory source without documents"),
        (lambda: HuggingFaceSource(path=""), "path='' and split='train'"),
        (lambda: HuggingFaceSource(path="a", split=""), "path='a' and split=''"),
    ],
)
def test_sources_that_cannot_have_documents_are_refused(make, said):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.given.startswith(said)


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        ("jsonl.zst", "zstandard", "zstd"),
        ("parquet", "pyarrow", "parquet"),
        ("hf", "datasets", "hf"),
    ],
)
def test_a_missing_package_names_the_extra_to_install(tmp_path, monkeypatch, kind, package, extra):
    if kind == "hf":
        source = HuggingFaceSource(path=str(tmp_path))
    else:
        source = source_of(kind, tmp_path, [["a"]])
    monkeypatch.setitem(sys.modules, package, None)
    said = refusal(source)
    assert f"needs the package {package}: " in said.given
    assert f"pip install 'chomp[{extra}]'" in said.fix


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_that_cannot_be_loaded_is_named(tmp_path, monkeypatch, streaming):
    redirect_hub_cache(tmp_path, monkeypatch)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(jsonl_bytes(["a"]))
    source = HuggingFaceSource(path=str(folder), streaming=streaming)
    no_split = HuggingFaceSource(path=str(folder), split="dev", streaming=streaming)
    assert f"dataset {folder}/dev cannot be read: " in refusal(no_split).given
    assert (
        "has no key 'body'; its keys are 'text', 'n'"
        in refusal(source, TextFormat(text_key="body")).given
    )
    no_folder = HuggingFaceSource(path=str(tmp_path / "none"), streaming=streaming)
    assert f"dataset {tmp_path}/none/train cannot be read: " in refusal(no_folder).given
    (folder / "train.jsonl").write_bytes(b'{"text": "a"\n}{')
    assert f"{folder}/train" in refusal(source).given


@pytest.mark.parametrize("error", [ConnectionError("no route"), RuntimeError("client closed")])
def test_a_hub_that_cannot_be_reached_is_no_fault_of_the_data(monkeypatch, error):
    def load_dataset(*names: str, **options: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = HuggingFaceSource(path="some/set")
    with pytest.raises(StorageError) as caught:
        next(source_documents(source))
    assert "some/set/train" in caught.value.given
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("format", [PrebuiltFormat(), ChatFormat()])
def test_a_text_file_has_no_keys(tmp_path, format):
    source = source_of("text", tmp_path, [["a"]])
    said = refusal(source, format)
    assert f"record {tmp_path}/000.text has no keys: it is a whole text" in said.given
    said = refusal(EmbeddedSource(), format)
    assert "has no keys: it is a whole text" in said.given


class FlakyFileSystem(MemoryFileSystem):
    """A cloud store whose connection breaks in the middle of a file."""

    protocol = "flaky"
    store: dict[str, object] = {}  # noqa: RUF012 (its own, not the memory filesystem's)
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("flaky://", "memory://"))

    def _open(self, path: str, mode: str = "rb", **options: object) -> object:
        if mode == "wb":
            return super()._open(path, mode, **options)
        return BreakingFile(self.store[path].getvalue()[: 3 << 20])


class BreakingFile(io.BytesIO):
    """A connection that is lost at the end of what it has, or near the beginning."""

    broken_before = 0

    def readinto(self, buffer: memoryview) -> int:
        is_broken = self.tell() < self.broken_before
        count = super().readinto(buffer)
        if count == 0 or is_broken:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was reset")
        return count


def test_a_connection_that_breaks_is_no_fault_of_the_data():
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem().pipe_file("/bucket/a.jsonl", jsonl_bytes(["x" * 10**5] * 50))
    source = JsonlSource(paths=("flaky://bucket/a.jsonl",))
    documents = source_documents(source)
    for _ in range(20):
        next(documents)
    with pytest.raises(StorageError) as caught:
        list(documents)
    assert "flaky://bucket/a.jsonl" in caught.value.given
    assert "was reset" in caught.value.given
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    assert caught.value.errno == errno.ECONNRESET


def test_a_connection_that_breaks_below_pyarrow_is_no_fault_of_the_data(tmp_path, monkeypatch):
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    (path,) = source_of("parquet", tmp_path, [["x" * 10**5] * 50]).part_names()
    FlakyFileSystem().pipe_file("/bucket/a.parquet", Path(path).read_bytes())
    source = ParquetSource(paths=("flaky://bucket/a.parquet",))
    assert len(list(source_documents(source))) == 50
    # The footer still reads, the rows do not.
    monkeypatch.setattr(BreakingFile, "broken_before", 1000)
    with pytest.raises(StorageError) as caught:
        list(source_documents(source))
    assert "flaky://bucket/a.parquet" in caught.value.given
    assert "was reset" in caught.value.given
    assert isinstance(caught.value.__cause__, ConnectionResetError)
