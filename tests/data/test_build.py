"""Building tokenizers and stores: from real files, through real kills and a full disk."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chomp.config import config_to_mapping
from chomp.data import (
    StoreBuildConfig,
    TextSource,
    TokenizerBuildConfig,
    TokenStore,
    build_store,
    build_tokenizer,
    documents_of_split,
    source_documents,
    source_fingerprint,
)
from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer, load_tokenizer, save_tokenizer, train_bpe

FRACTION = 0.3


@pytest.fixture
def source(tmp_path: Path) -> TextSource:
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text(f"text number {i}\n" * (i + 1))
    return TextSource(paths=(str(tmp_path / "*.txt"),))


@pytest.fixture
def store_config(tmp_path: Path, source: TextSource) -> StoreBuildConfig:
    save_tokenizer(ByteTokenizer(), str(tmp_path / "tokenizer"))
    return StoreBuildConfig(
        output_path=str(tmp_path / "store"),
        name="texts",
        source=source,
        source_fingerprint=source_fingerprint(source),
        split="train",
        validation_fraction=FRACTION,
        tokenizer_path=str(tmp_path / "tokenizer"),
    )


@pytest.fixture
def tokenizer_config(tmp_path: Path, source: TextSource) -> TokenizerBuildConfig:
    return TokenizerBuildConfig(
        output_path=str(tmp_path / "built"),
        kind="bpe",
        vocab_size=280,
        sources=(source,),
        source_fingerprints=(source_fingerprint(source),),
        validation_fraction=FRACTION,
    )


def split_texts(source: TextSource, split: str) -> list[str]:
    return [d.text for d in documents_of_split(source_documents(source), split, FRACTION)]


def line_of(path: str, tokenizer_hash: str | None = None) -> list[int]:
    store = TokenStore.open(path, tokenizer_hash=tokenizer_hash or ByteTokenizer().content_hash)
    return store.read_windows(np.asarray([0]), store.num_tokens)[0].tolist()


def files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def run_python(program: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_store_holds_the_documents_of_its_split_each_with_its_end(store_config, split):
    build_store(replace(store_config, split=split))
    texts = split_texts(store_config.source, split)
    assert line_of(store_config.output_path) == [
        token for text in texts for token in [*text.encode(), 256]
    ]


def test_a_tokenizer_is_trained_on_the_train_split_alone(tokenizer_config):
    build_tokenizer(tokenizer_config)
    built = load_tokenizer(tokenizer_config.output_path)
    texts = split_texts(tokenizer_config.sources[0], "train")
    assert built.content_hash == train_bpe(texts, vocab_size=280).content_hash


def test_a_store_is_built_with_the_tokenizer_it_is_given(tokenizer_config, store_config):
    build_tokenizer(tokenizer_config)
    build_store(replace(store_config, tokenizer_path=tokenizer_config.output_path))
    tokenizer = load_tokenizer(tokenizer_config.output_path)
    line = line_of(store_config.output_path, tokenizer.content_hash)
    texts = split_texts(store_config.source, "train")
    assert line.count(tokenizer.eos_id) == len(texts)
    assert tokenizer.decode(line) == "".join(texts)


def test_a_document_that_quotes_the_end_token_stays_one_document(
    tmp_path: Path, tokenizer_config, store_config
):
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text(f"{i} is <|endoftext|> not over <|endoftext|>")
    fingerprint = source_fingerprint(store_config.source)
    build_tokenizer(replace(tokenizer_config, source_fingerprints=(fingerprint,)))
    path = tokenizer_config.output_path
    build_store(replace(store_config, source_fingerprint=fingerprint, tokenizer_path=path))
    tokenizer = load_tokenizer(path)
    line = line_of(store_config.output_path, tokenizer.content_hash)
    assert line.count(tokenizer.eos_id) == len(split_texts(store_config.source, "train"))


def test_a_byte_tokenizer_needs_no_sources(tokenizer_config):
    build_tokenizer(replace(tokenizer_config, kind="byte", sources=(), source_fingerprints=()))
    assert isinstance(load_tokenizer(tokenizer_config.output_path), ByteTokenizer)


def test_a_source_that_changed_since_the_plan_is_refused(tmp_path, tokenizer_config, store_config):
    (tmp_path / "03.txt").write_text("changed")
    for build, config in [(build_tokenizer, tokenizer_config), (build_store, store_config)]:
        with pytest.raises(DataError, match="its content when this build was planned") as caught:
            build(config)
        assert f"{tmp_path}/*.txt" in str(caught.value)
    assert not Path(tokenizer_config.output_path).exists()
    assert not (tmp_path / "store/manifest.json").exists()


def test_a_given_tokenizer_that_changed_since_the_plan_is_refused(store_config):
    with pytest.raises(DataError, match=r"tokenizer .*/tokenizer .*when this build was planned"):
        build_store(replace(store_config, tokenizer_hash="planned with another"))
    build_store(replace(store_config, tokenizer_hash=ByteTokenizer().content_hash))


def test_a_finished_store_is_left_as_it_is(tmp_path: Path, store_config):
    # A step killed after its last write is run again by the executor.
    build_store(store_config)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    build_store(store_config)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == times


def test_another_finished_store_in_its_place_is_never_overwritten(tmp_path: Path, store_config):
    build_store(store_config)
    before = files_of(tmp_path / "store")
    with pytest.raises(DataError, match="a finished store with another name, split at"):
        build_store(replace(store_config, name="other", split="validation"))
    assert files_of(tmp_path / "store") == before


@pytest.mark.parametrize("content", ["", " \n"])
def test_sources_without_a_document_are_named(tmp_path, tokenizer_config, store_config, content):
    for path in tmp_path.glob("*.txt"):
        path.write_text(content)
    with pytest.raises(DataError, match=r"no document to train a tokenizer on\. Allowed"):
        build_tokenizer(tokenizer_config)
    with pytest.raises(DataError, match=r"'texts' has no document in its train split\. Allowed"):
        build_store(store_config)
    assert not (tmp_path / "store/manifest.json").exists()


def test_a_file_that_is_not_utf8_stops_both_builds(tmp_path, tokenizer_config, store_config):
    for path in tmp_path.glob("*.txt"):
        path.write_bytes(b"\xff")
    for build, config in [(build_tokenizer, tokenizer_config), (build_store, store_config)]:
        with pytest.raises(DataError, match="which is not UTF-8 at byte 0"):
            build(config)


def test_builds_print_nothing_where_nothing_can_be_redrawn(tokenizer_config, store_config, capfd):
    build_tokenizer(tokenizer_config)
    build_store(store_config)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal_the_progress_is_gone_and_the_cursor_back_however_it_ends(
    store_config, capsys, monkeypatch, tmp_path, fails
):
    # How rich is told that its output is a terminal.
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    if fails:
        (tmp_path / "19.txt").write_bytes(b"\xff")
        with pytest.raises(DataError):
            build_store(store_config)
    else:
        build_store(store_config)
    shown = capsys.readouterr().out
    assert "tokenizing texts, train split" in shown
    hide, show, erase_line = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"
    assert shown.rindex(show) > shown.rindex(hide)
    assert shown.rindex(erase_line) > shown.rindex("tokenizing")


KILLED = """
import sys
from chomp.data import Document
from chomp.data.store_writer import StoreWriter
from chomp.tokenize import ByteTokenizer

writer = StoreWriter(sys.argv[1], ByteTokenizer(), shard_tokens=1024, chunk_tokens=256)
for i in range(100):
    writer.append([Document(id=str(i), text=f"half a store {i} " * 20)])
print("in the middle", flush=True)
sys.stdin.read()
"""


def test_a_kill_in_the_middle_leaves_no_store_and_the_next_build_no_trace_of_it(
    tmp_path: Path, store_config
):
    build_store(replace(store_config, output_path=str(tmp_path / "undisturbed")))
    with run_python(KILLED, store_config.output_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()
    assert list((tmp_path / "store/tokens/c").iterdir())
    with pytest.raises(DataError, match="no finished token store"):
        line_of(store_config.output_path)
    build_store(store_config)
    assert files_of(tmp_path / "store") == files_of(tmp_path / "undisturbed")


FULL_DISK = """
import json, resource, sys
from chomp.config import config_from_mapping
from chomp.data import StoreBuildConfig, build_store
from chomp.errors import StorageError

config = config_from_mapping(StoreBuildConfig, json.loads(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    build_store(config)
except StorageError as error:
    print(error)
"""


def test_a_full_disk_is_a_storage_error_and_leaves_no_store(tmp_path: Path, store_config):
    # A limit on the size of files is what a test can have of a full disk.
    with run_python(FULL_DISK, json.dumps(config_to_mapping(store_config))) as process:
        told, _ = process.communicate()
    assert process.returncode == 0
    assert told.startswith(f"token store {store_config.output_path} could not be written: ")
    assert "Fix: free space or choose another --prefix" in told
    assert not (tmp_path / "store/manifest.json").exists()
    build_store(store_config)
