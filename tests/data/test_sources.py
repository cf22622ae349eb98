"""Sources of every kind: which documents, in which order, from which record on."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import datasets
import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from source_samples import (
    FILE_KINDS,
    SEPARATOR,
    compressed,
    ids_source,
    jsonl_bytes,
    redirect_hub_cache,
    source_of,
)

from chomp.config import config_from_mapping, config_to_mapping
from chomp.data import (
    ArraysSource,
    ChatFormat,
    Document,
    EmbeddedSource,
    Format,
    HuggingFaceSource,
    JsonlSource,
    LmComponentConfig,
    LocatedDocument,
    MemorySource,
    ParquetSource,
    Position,
    PrebuiltFormat,
    Source,
    TextFormat,
    TextSource,
    located_documents,
    source_documents,
    source_files,
    source_fingerprint,
)

texts = st.text(st.characters(codec="utf-8"), max_size=20)
some_parts = st.lists(st.lists(texts, min_size=1, max_size=6), min_size=1, max_size=3)
some_ids = st.lists(st.integers(0, SEPARATOR - 1), max_size=5)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redirect_hub_cache(tmp_path, monkeypatch)


def hub_folder(folder: Path, parts: list[list[str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(parts):
        (folder / f"train-{number}.jsonl").write_bytes(jsonl_bytes(part))
    return folder


def check_every_start(
    source: Source, parts: list[list[object]], full: list[LocatedDocument], **how: Format
) -> None:
    """From any record on, and from beyond the end, come the documents that are left."""
    for part, records in enumerate([*parts, []]):
        for record in [*range(len(records) + 2), 10**9]:
            start = Position(part, record)
            left = [found for found in full if found.position >= start]
            assert list(located_documents(source, start=start, **how)) == left


@pytest.mark.parametrize("kind", [*FILE_KINDS, "memory"])
@settings(max_examples=15, deadline=None)
@given(parts=some_parts)
def test_documents_come_in_order_and_from_any_record_on(kind, parts, tmp_path_factory):
    parts = parts[:1] if kind == "memory" else parts
    parts = [part[:1] for part in parts] if kind == "text" else parts
    source = source_of(kind, tmp_path_factory.mktemp("source"), parts)
    names = source.part_names()
    expected = [
        (Position(part, record), source.document_id(names[part], record), text)
        for part, part_texts in enumerate(parts)
        for record, text in enumerate(part_texts)
        if text.strip()
    ]
    full = list(located_documents(source))
    assert [(at, document.id, document.text) for at, document in full] == expected
    assert list(source_documents(source)) == [found.document for found in full]
    check_every_start(source, parts, full)


@pytest.mark.parametrize("kind", ["one axis", "two axes", "prebuilt parquet"])
@settings(max_examples=15, deadline=None)
@given(documents=st.lists(some_ids, min_size=1, max_size=8), step=st.integers(1, 9))
def test_ids_come_in_order_and_from_any_record_on(kind, documents, step, tmp_path_factory):
    if kind == "two axes":
        documents = [ids for ids in documents if len(ids) == len(documents[0])]
    source, how = ids_source(kind, tmp_path_factory.mktemp("source"), documents)
    with pytest.MonkeyPatch.context() as patch:
        # So that documents and separators lie across the edges of what is searched at once.
        patch.setattr("chomp.data.sources._TOKENS_PER_SEARCH", step)
        full = list(located_documents(source, how))
        expected = [(record, ids) for record, ids in enumerate(documents) if ids]
        assert [(at.record, document.ids.tolist()) for at, document in full] == expected
        check_every_start(source, [documents], full, format=how)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_dataset_comes_in_order_and_from_any_record_on(tmp_path, hub_cache, streaming):
    folder = hub_folder(tmp_path / "set", [["a", " ", "c"], ["d", "e"]])
    source = HuggingFaceSource(path=str(folder), streaming=streaming)
    full = list(located_documents(source))
    assert [(at.record, document.text) for at, document in full] == [
        *((0, "a"), (2, "c"), (3, "d"), (4, "e"))
    ]
    assert full[1].document.id == f"{folder}/train:2"
    check_every_start(source, [["a", " ", "c", "d", "e"]], full)
    from_files = HuggingFaceSource(
        path="json", data_files=(f"{folder}/*.jsonl",), streaming=streaming
    )
    assert [found.text for found in source_documents(from_files)] == ["a", "c", "d", "e"]


def test_embedded_documents_are_parts_and_keep_their_names(tmp_path, monkeypatch):
    for name in ["a.py", "b.py", "sub/c.py", "d.py"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "b.py" else f"# {name}\n")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    source = EmbeddedSource(part="code")
    names = source.part_names()
    assert names == ("a.py", "d.py", "sub/c.py")
    full = list(located_documents(source))
    assert [(at, document.id, document.text) for at, document in full] == [
        (Position(part), name, f"# {name}\n") for part, name in enumerate(names)
    ]
    assert source.document_id(names[1], 0) == full[1].document.id
    check_every_start(source, [[name] for name in names], full)


def test_files_come_in_the_order_of_patterns_and_each_once(tmp_path):
    for name in ["b", "a", "c"]:
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl_bytes([name]))
    paths = tuple(str(tmp_path / name) for name in ["c.jsonl", "*.jsonl", "a.jsonl"])
    source = JsonlSource(paths=paths)
    assert [Path(name).stem for name in source.part_names()] == ["c", "a", "b"]
    assert [document.text for document in source_documents(source)] == ["c", "a", "b"]


def test_files_that_came_since_the_listing_are_not_read(tmp_path):
    source = source_of("jsonl", tmp_path, [["a"], ["b"]])
    parts = source.part_names()
    (tmp_path / "0000.jsonl").write_bytes(jsonl_bytes(["new"]))
    found = [document.text for _, document in located_documents(source, parts=parts)]
    assert found == ["a", "b"]


def test_blank_lines_and_a_byte_order_mark_are_no_documents_but_lines(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": "b"}')
    found = list(located_documents(JsonlSource(paths=(str(tmp_path / "a.jsonl"),))))
    assert [(at.record, document.text) for at, document in found] == [(0, "a"), (3, "b")]


def test_line_separators_inside_a_text_end_no_line(tmp_path):
    text = "one\u2028two\x85three\rfour\x0bfive"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False), newline="")
    (document,) = source_documents(JsonlSource(paths=(str(tmp_path / "a.jsonl"),)))
    assert document.text == text


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_file_larger_than_every_buffer_reads_whole(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(source_files, "_ZSTD_CHUNK_BYTES", 100)
    numbers = np.random.default_rng(0).integers(0, 10**9, (1000, 150))
    written = [" ".join(map(str, row)) for row in numbers.tolist()]
    (tmp_path / f"a.{suffix}").write_bytes(compressed(jsonl_bytes(written), suffix))
    source = JsonlSource(paths=(str(tmp_path / "*"),))
    assert [document.text for document in source_documents(source)] == written
    (found,) = located_documents(source, start=Position(0, 999))
    assert found.document.text == written[999]


def test_only_the_columns_that_the_format_names_are_read(tmp_path):
    source = source_of("parquet", tmp_path, [["a"]])
    (_, record), *_ = source.records(source.part_names(), Position(), ("text",))
    assert record == {"text": "a"}


def test_columns_of_every_text_and_list_type_are_read(tmp_path):
    for number, kind in enumerate([pyarrow.string(), pyarrow.large_string()]):
        texts = pyarrow.array(["a", "b", "a"], kind)
        for column in (texts, texts.dictionary_encode()):
            path = tmp_path / f"{number} {column.type}.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
            found = source_documents(ParquetSource(paths=(str(path),)))
            assert [document.text for document in found] == ["a", "b", "a"]
    for width in (pyarrow.list_(pyarrow.uint16()), pyarrow.large_list(pyarrow.int64())):
        ids = pyarrow.array([[1, 2], [], [3]], width)
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": ids}), tmp_path / "ids.parquet")
        source = ParquetSource(paths=(str(tmp_path / "ids.parquet"),))
        found = source_documents(source, PrebuiltFormat())
        assert [document.ids.tolist() for document in found] == [[1, 2], [3]]


def test_conversations_are_read_from_columns_and_lines_alike(tmp_path):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": turns}))
    pyarrow.parquet.write_table(pyarrow.table({"messages": [turns]}), tmp_path / "a.parquet")
    (line,) = source_documents(JsonlSource(paths=(str(tmp_path / "a.jsonl"),)), ChatFormat())
    (row,) = source_documents(ParquetSource(paths=(str(tmp_path / "a.parquet"),)), ChatFormat())
    assert row.spans == line.spans
    assert len(row.spans) == 6


def test_only_the_row_groups_that_are_needed_are_read(tmp_path):
    source = source_of("parquet", tmp_path, [[f"{n} {'x' * 5000}" for n in range(10)]])
    (path,) = source.part_names()
    content = bytearray(Path(path).read_bytes())
    content[4:200] = bytes(196)  # in the first row group
    Path(path).write_bytes(content)
    found = list(located_documents(source, start=Position(0, 5)))
    assert [at.record for at, _ in found] == [5, 6, 7, 8, 9]


def test_the_end_of_an_array_needs_no_separator(tmp_path):
    for name, ids in {"a": [1, 2, SEPARATOR, 3], "b": [SEPARATOR, SEPARATOR], "c": []}.items():
        np.save(tmp_path / f"{name}.npy", np.asarray(ids, np.int32))
    source = ArraysSource(paths=(str(tmp_path / "*.npy"),), separator_id=SEPARATOR)
    found = [document.ids.tolist() for document in source_documents(source, PrebuiltFormat())]
    assert found == [[1, 2], [3]]


def test_a_document_of_an_array_does_not_hold_on_to_its_file(tmp_path):
    source, how = ids_source("two axes", tmp_path, [[1, 2], [3, 4]])
    documents = list(source_documents(source, how))
    np.save(tmp_path / "ids.npy", np.zeros((2, 2), np.uint16))
    assert documents[1].ids.tolist() == [3, 4]


@pytest.mark.parametrize("kind", [*FILE_KINDS, "arrays"])
def test_cloud_files_read_as_local_ones_do(tmp_path, kind):
    if kind == "arrays":
        source, _ = ids_source("one axis", tmp_path, [[1], [2, 3], [4]])
    else:
        source = source_of(kind, tmp_path, [["a", "b", "c"], ["d"]])
    for path in tmp_path.iterdir():
        fsspec.filesystem("memory").pipe_file(f"memory://cloud/{path.name}", path.read_bytes())
    try:
        paths = tuple(path.replace(str(tmp_path), "memory://cloud") for path in source.paths)
        cloud = config_from_mapping(type(source), {**config_to_mapping(source), "paths": paths})
        names = cloud.part_names()
        assert [name.removeprefix("memory://cloud") for name in names] == [
            name.removeprefix(str(tmp_path)) for name in source.part_names()
        ]
        for start in (Position(), Position(0, 1), Position(0, 2)):
            local, remote = (
                [(at, found.text, found.ids) for at, found in located_documents(where, start=start)]
                for where in (source, cloud)
            )
            assert len(local) >= 1 or kind == "text"
            assert repr(remote) == repr(local)
        # Where the files are is not part of what they are.
        assert source_fingerprint(cloud) == source_fingerprint(source)
    finally:
        fsspec.filesystem("memory").rm("memory://cloud", recursive=True)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_fingerprint_is_of_contents_and_their_order_alone(tmp_path, kind):
    parts = [["a", "b"], ["c"], ["d"]]
    sources = []
    for folder, order in {"one": [0, 1, 2], "two": [0, 1, 2], "other": [0, 2, 1]}.items():
        (tmp_path / folder).mkdir()
        sources.append(source_of(kind, tmp_path / folder, [parts[number] for number in order]))
    one, two, other = map(source_fingerprint, sources)
    assert one == two != other
    assert len(one) == 64
    (tmp_path / "two" / f"001.{kind}").unlink()
    assert source_fingerprint(sources[1]) != one


def test_a_text_is_taken_as_it_is_and_a_blank_one_is_no_document(tmp_path):
    raw = "\ufeffline\r\nüñí\0code \u2028 end".encode()
    for name, content in {"a": raw, "b": b" \n\t", "c": b""}.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    (document,) = source_documents(TextSource(paths=(str(tmp_path / "*.txt"),)))
    assert document.text.encode() == raw


def test_what_decides_the_documents_besides_the_content_is_in_the_fingerprint(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    paths = (str(tmp_path / "a.npy"),)
    kinds = [ArraysSource(paths=paths, separator_id=number) for number in (1, 2)]
    kinds += [TextSource(paths=paths), JsonlSource(paths=paths), ParquetSource(paths=paths)]
    assert len({source_fingerprint(source) for source in kinds}) == 5


def test_documents_in_memory_are_their_own_fingerprint():
    sources = [
        MemorySource(documents=documents)
        for documents in [("a", "b"), ("ab",), ("b", "a"), ("a", {"text": "b"})]
    ]
    assert len({source_fingerprint(source) for source in sources}) == 4
    again = MemorySource(documents=("a", {"text": "b"}))
    assert source_fingerprint(again) == source_fingerprint(sources[-1])
    assert hash(again) == hash(sources[-1])


@pytest.mark.parametrize("streaming", [False, True])
def test_a_local_dataset_is_known_by_its_files(tmp_path, hub_cache, streaming):
    def fingerprint(folder: str, parts: list[list[str]], **more: str) -> str:
        path = str(hub_folder(tmp_path / folder, parts))
        return source_fingerprint(HuggingFaceSource(path=path, streaming=streaming, **more))

    one = fingerprint("one", [["a"], ["b"]])
    assert fingerprint("two", [["a"], ["b"]]) == one
    assert fingerprint("three", [["a"], ["c"]]) != one
    assert fingerprint("one", [["a"], ["b"]], split="test") != one


def test_a_dataset_of_the_hub_is_known_by_its_names_and_its_own_fingerprint(monkeypatch):
    asked = []

    def load_dataset(*names: str, **options: object) -> datasets.Dataset:
        asked.append((names, options))
        return datasets.Dataset.from_dict({"text": ["a", options["revision"]]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    first, second, stream = (
        HuggingFaceSource(path="some/set", name="en", revision=revision, streaming=streaming)
        for revision, streaming in [("r1", False), ("r2", False), ("r1", True)]
    )
    assert [document.text for document in source_documents(first)] == ["a", "r1"]
    assert asked[0][0] == ("some/set", "en")
    assert asked[0][1] == {
        "data_files": None,
        "split": "train",
        "revision": "r1",
        "streaming": False,
    }
    assert len({source_fingerprint(source) for source in (first, second, stream)}) == 3


class TaggedFileSystem(MemoryFileSystem):
    """A cloud store that keeps a checksum with each file, and whose files cannot be read."""

    protocol = "tagged"
    store: dict[str, object] = {}  # noqa: RUF012 (its own, not the memory filesystem's)
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("tagged://", "memory://"))

    def info(self, path: str, **options: object) -> dict[str, object]:
        facts = super().info(path, **options)
        return {**facts, "ETag": f"tag of {path}"} if facts["type"] == "file" else facts

    def _open(self, path: str, mode: str = "rb", **options: object) -> object:
        if mode == "wb":
            return super()._open(path, mode, **options)
        raise AssertionError(f"{path} is read, though its checksum is known")


def test_a_cloud_file_with_a_checksum_is_known_without_being_read():
    fsspec.register_implementation("tagged", TaggedFileSystem, clobber=True)
    store = TaggedFileSystem()
    seen = []
    for name, content in {"a": b"x", "b": b"x", "a ": b"xy"}.items():
        store.pipe_file(f"/bucket/{name}.txt", content)
        seen.append(source_fingerprint(TextSource(paths=(f"tagged://bucket/{name}.txt",))))
    assert len(set(seen)) == 3


def test_a_long_hashing_ends_the_same_with_its_bar(tmp_path, monkeypatch, capsys):
    source = source_of("text", tmp_path, [["x" * 10**6 + str(n)] for n in range(20)])
    expected = source_fingerprint(source)
    monkeypatch.setattr(source_files, "_BYTES_WORTH_A_BAR", 0)
    assert source_fingerprint(source) == expected
    assert capsys.readouterr().out.strip() == ""  # not a terminal: nothing to redraw


@pytest.mark.parametrize(
    "mapping",
    [
        {"kind": "jsonl", "paths": ["a.jsonl", "b/*.zst"]},
        {"kind": "parquet", "paths": ["a.parquet"]},
        {"kind": "memory", "documents": ["a", {"text": "b", "ids": [1, 2]}]},
        {"kind": "arrays", "paths": ["a.npy"], "separator_id": 0},
        {"kind": "hf", "path": "allenai/c4", "name": "en", "revision": "abc", "streaming": True},
    ],
    ids=lambda mapping: mapping["kind"],
)
def test_every_kind_can_be_written_in_a_config(mapping):
    component = config_from_mapping(LmComponentConfig, {"source": mapping})
    assert component.source.kind == mapping["kind"]
    again = config_from_mapping(LmComponentConfig, config_to_mapping(component))
    assert again == component
    assert hash(again.source) == hash(component.source)


def test_texts_in_mappings_and_plain_ones_may_stand_together():
    source = MemorySource(documents=("a", {"body": "b"}, {"body": ""}, "c"))
    found = list(source_documents(source, TextFormat(text_key="body")))
    assert found == [
        Document(id=f"memory:{record}", text=text)
        for record, text in [(0, "a"), (1, "b"), (3, "c")]
    ]


# Uses one of the ways to the hub, then lets its libraries warn, as a command would show it.
WARNED = """
import logging, sys
from chomp.data import HuggingFaceSource, TextFormat, source_documents
from chomp.errors import StorageError
from chomp.launch.console import show_log_warnings
from chomp.tokenize import load_hub_tokenizer

show_log_warnings()
way, file = sys.argv[1:]
if way == "dataset":
    source = HuggingFaceSource(path="json", data_files=(file,), streaming=True)
    assert [each.text for each in source_documents(source, TextFormat())] == ["hello"]
else:
    try:
        load_hub_tokenizer("nobody/nothing")
    except StorageError:
        pass
for name in ("huggingface_hub.utils", "datasets.load"):
    logging.getLogger(name).warning("warned by %s", name)
"""


@pytest.mark.parametrize("way", ["dataset", "tokenizer"])
def test_a_warning_of_a_hub_library_is_shown_once(tmp_path: Path, way: str):
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({"text": "hello"}))
    shown = subprocess.run(
        [sys.executable, "-c", WARNED, way, str(file)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stderr
    assert shown.count("warned by huggingface_hub.utils") == 1
    assert shown.count("warned by datasets.load") == 1
