"""Building tokenizers and stores: from real files of every kind, through whatever goes wrong."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from source_samples import source_of
from worker_processes import needs_proc, workers_of

from chomp.config import config_to_mapping
from chomp.data import (
    ChatFormat,
    JsonlSource,
    MemorySource,
    PrebuiltFormat,
    Source,
    StoreBuildConfig,
    StoreWriter,
    TextFormat,
    TextSource,
    TokenizerBuildConfig,
    TokenizerConfig,
    TokenStore,
    build_store,
    build_tokenizer,
    documents_of_split,
    source_documents,
    source_fingerprint,
)
from chomp.data.store import build
from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer, load_tokenizer, save_tokenizer, train_bpe

FRACTION = 0.3
TEXTS = [f"text number {i}\n" * (i + 1) for i in range(20)]
# The smallest that a float can say: next to nothing is held out.
NOTHING_HELD_OUT = 5e-324

Config = Callable[..., StoreBuildConfig]
Happening = Callable[[int, Callable[[], object]], None]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A config that builds a store from a source as it is now."""
    save_tokenizer(ByteTokenizer(), str(tmp_path / "tokenizer"))

    def of(source: Source, **changes: object) -> StoreBuildConfig:
        planned = StoreBuildConfig(
            output_path=str(tmp_path / "store"),
            name="texts",
            source=source,
            source_fingerprint=source_fingerprint(source),
            split="train",
            validation_fraction=FRACTION,
            tokenizer_path=str(tmp_path / "tokenizer"),
            with_held_out=False,
        )
        return replace(planned, **changes)

    return of


@pytest.fixture
def source(tmp_path: Path) -> TextSource:
    """Twenty files, the last of which is the longest."""
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i:02}.txt").write_text(text)
    return TextSource(paths=(str(tmp_path / "*.txt"),))


@pytest.fixture
def store_config(config: Config, source: TextSource) -> StoreBuildConfig:
    return config(source)


@pytest.fixture
def tokenizer_config(tmp_path: Path, source: TextSource) -> TokenizerBuildConfig:
    return TokenizerBuildConfig(
        output_path=str(tmp_path / "built"),
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=280),
        sources=(source,),
        formats=(TextFormat(),),
        source_fingerprints=(source_fingerprint(source),),
        validation_fraction=FRACTION,
    )


@pytest.fixture
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress after every 256 tokens, and batches of two documents."""
    writer = partial(StoreWriter, shard_tokens=256, chunk_tokens=64)
    monkeypatch.setattr(build, "StoreWriter", writer)
    monkeypatch.setattr(build, "_BATCH_DOCUMENTS", 2)


@pytest.fixture
def _early_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes after the first batch, however small."""
    monkeypatch.setattr(build, "_CHARACTERS_ENCODED_HERE", 1)


@pytest.fixture
def happening(monkeypatch: pytest.MonkeyPatch) -> Happening:
    """Let something happen once, when so many batches were appended to a store of small shards."""

    def let(batches: int, happen: Callable[[], object]) -> None:
        appended = []

        class Disturbed(StoreWriter):
            def append(self, locations, encoded):
                super().append(locations, encoded)
                appended.append(len(locations))
                if len(appended) == batches:
                    happen()

        writer = partial(Disturbed, shard_tokens=256, chunk_tokens=64)
        monkeypatch.setattr(build, "StoreWriter", writer)

    return let


def stop() -> None:
    raise DataError("stopped")


def split_texts(source: Source, split: str) -> list[str]:
    return [d.text for d in documents_of_split(source_documents(source), split, FRACTION)]


def line_of(path: str, tokenizer_hash: str | None = None) -> list[int]:
    store = TokenStore.open(path, tokenizer_hash=tokenizer_hash or ByteTokenizer().content_hash)
    return store.read(np.asarray([0]), np.asarray([store.num_tokens])).tolist()


def as_bytes(texts: list[str]) -> list[int]:
    return [token for text in texts for token in [*text.encode(), 256]]


def files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def build_undisturbed(config: StoreBuildConfig, tmp_path: Path) -> dict[str, bytes]:
    """The files of the same store, built beside it in one go."""
    build_store(replace(config, output_path=str(tmp_path / "undisturbed")))
    return files_of(tmp_path / "undisturbed")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_store_holds_the_documents_of_its_split_each_with_its_end(store_config, split):
    build_store(replace(store_config, split=split))
    assert line_of(store_config.output_path) == as_bytes(split_texts(store_config.source, split))
    store = TokenStore.open(store_config.output_path)
    for document in documents_of_split(source_documents(store_config.source), split, FRACTION):
        number = store.locations.find(document.id)
        assert number is not None
        assert store.locations.document_id(number) == document.id
        begin, end = store.documents.span(number)
        tokens = store.read(np.asarray([begin]), np.asarray([end - begin]))
        assert tokens.tolist() == as_bytes([document.text])


@pytest.mark.parametrize("kind", ["jsonl.zst", "parquet", "memory"])
def test_sources_of_every_kind_become_the_same_line(tmp_path: Path, config: Config, kind: str):
    (tmp_path / "files").mkdir()
    # White space is no document, and has no place in the store.
    source = source_of(kind, tmp_path / "files", [[*TEXTS[:9], " \n", *TEXTS[9:]]])
    build_store(config(source))
    assert [document.text for document in source_documents(source)] == TEXTS
    assert line_of(str(tmp_path / "store")) == as_bytes(split_texts(source, "train"))


@pytest.mark.usefixtures("_small_shards", "_early_processes")
def test_two_processes_make_the_store_of_one(tmp_path: Path, config: Config):
    (tmp_path / "files").mkdir()
    # Long documents first and last in turn: what is asked later is often ready earlier.
    texts = [f"document {i} " * (80 if i % 9 == 0 else 1 + i % 9) for i in range(150)]
    source = source_of("jsonl", tmp_path / "files", [texts[:70], texts[70:]])
    undisturbed = build_undisturbed(config(source, processes=1), tmp_path)
    build_store(config(source, processes=2))
    assert files_of(tmp_path / "store") == undisturbed
    assert len([name for name in undisturbed if name.startswith("tokens/c/")]) > 50


@pytest.mark.usefixtures("_small_shards")
@pytest.mark.parametrize("count", [10, 11, 99])
def test_a_bounded_build_that_was_stopped_ends_at_the_same_document(
    tmp_path: Path, config: Config, source, happening: Happening, count: int
):
    bounded = config(source, max_documents=count)
    undisturbed = build_undisturbed(bounded, tmp_path)
    happening(5, stop)
    with pytest.raises(DataError) as caught:
        build_store(bounded)
    assert "stopped" in caught.value.given
    progress = json.loads((tmp_path / "store/progress.json").read_text())
    assert progress["num_documents"] == 9  # the tenth is there in part
    build_store(bounded)
    assert files_of(tmp_path / "store") == undisturbed
    texts = split_texts(source, "train")[:count]
    assert line_of(str(tmp_path / "store")) == as_bytes(texts)


CONVERSATIONS = [
    [{"role": "user", "content": f"and {i}?"}, {"role": "assistant", "content": f"{i + 1}!"}]
    for i in range(12)
]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.usefixtures("_small_shards", "_early_processes")
def test_conversations_are_stored_with_the_weights_of_their_turns(tmp_path, config, processes):
    source = MemorySource(documents=tuple({"messages": turns} for turns in CONVERSATIONS))
    build_store(
        config(
            source,
            format=ChatFormat(),
            validation_fraction=NOTHING_HELD_OUT,
            processes=processes,
        )
    )
    line, weights = [], []
    for user, assistant in CONVERSATIONS:
        asked = f"<|user|>\n{user['content']}\n<|assistant|>\n".encode()
        answered = f"{assistant['content']}\n".encode()
        line += [*asked, *answered, 256]
        # A position counts if what it predicts is of the answer, or the end behind it.
        weights += [0.0] * (len(asked) - 1) + [1.0] * (len(answered) + 1) + [0.0]
    store = TokenStore.open(str(tmp_path / "store"))
    everything = np.asarray([0]), np.asarray([store.num_tokens])
    assert store.manifest.has_loss_weights
    assert store.read(*everything).tolist() == line
    stored = store.read_loss_weights(*everything)
    assert stored is not None
    assert stored.tolist() == weights


@pytest.mark.usefixtures("_small_shards")
def test_ids_that_came_with_weights_are_stored_with_them(tmp_path: Path, config: Config):
    random = np.random.default_rng(3)
    records = []
    for length in random.integers(1, 400, 15).tolist():
        ids = random.integers(0, 256, length).tolist()
        records.append({"input_ids": ids, "w": random.random(length, np.float32).tolist()})
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = JsonlSource(paths=(str(tmp_path / "ids.jsonl"),))
    weighted = config(
        source,
        format=PrebuiltFormat(loss_weights_key="w"),
        validation_fraction=NOTHING_HELD_OUT,
    )
    build_store(weighted)
    store = TokenStore.open(str(tmp_path / "store"))
    everything = np.asarray([0]), np.asarray([store.num_tokens])
    assert store.read(*everything).tolist() == [
        token for record in records for token in [*record["input_ids"], 256]
    ]
    stored = store.read_loss_weights(*everything)
    assert stored is not None
    # The end that was added predicts nothing.
    assert stored.tolist() == [weight for record in records for weight in [*record["w"], 0.0]]


def test_a_tokenizer_is_trained_on_the_train_split_alone(tokenizer_config):
    build_tokenizer(tokenizer_config)
    built = load_tokenizer(tokenizer_config.output_path)
    texts = split_texts(tokenizer_config.sources[0], "train")
    assert built.content_hash == train_bpe(texts, vocab_size=280).content_hash


def test_a_tokenizer_learns_from_conversations_and_not_from_ids(tokenizer_config, tmp_path: Path):
    chat = MemorySource(documents=tuple({"messages": turns} for turns in CONVERSATIONS))
    ids = MemorySource(documents=tuple({"input_ids": [1, 2, 3 + i]} for i in range(9)))
    only_ids = replace(
        tokenizer_config,
        sources=(ids,),
        formats=(PrebuiltFormat(),),
        source_fingerprints=(source_fingerprint(ids),),
    )
    with pytest.raises(DataError) as caught:
        build_tokenizer(only_ids)
    assert "no text" in caught.value.given
    build_tokenizer(
        replace(
            tokenizer_config,
            sources=(chat, ids),
            formats=(ChatFormat(), PrebuiltFormat()),
            source_fingerprints=(source_fingerprint(chat), source_fingerprint(ids)),
        )
    )
    texts = [
        "".join(span.text for span in document.spans)
        for document in documents_of_split(source_documents(chat, ChatFormat()), "train", FRACTION)
    ]
    built = load_tokenizer(tokenizer_config.output_path)
    assert built.content_hash == train_bpe(texts, vocab_size=280).content_hash


def test_a_store_is_built_with_the_tokenizer_it_is_given(tokenizer_config, store_config):
    build_tokenizer(tokenizer_config)
    build_store(replace(store_config, tokenizer_path=tokenizer_config.output_path))
    tokenizer = load_tokenizer(tokenizer_config.output_path)
    line = line_of(store_config.output_path, tokenizer.content_hash)
    texts = split_texts(store_config.source, "train")
    assert line.count(tokenizer.eos_id) == len(texts)
    assert tokenizer.decode(line) == "".join(texts)
    with pytest.raises(DataError) as caught:
        line_of(store_config.output_path)
    assert "tokenizer" in caught.value.allowed


def test_a_byte_tokenizer_needs_no_sources(tmp_path: Path):
    build_tokenizer(
        TokenizerBuildConfig(
            output_path=str(tmp_path / "built"), tokenizer=TokenizerConfig(kind="byte")
        )
    )
    assert isinstance(load_tokenizer(str(tmp_path / "built")), ByteTokenizer)


def test_a_source_that_changed_since_the_plan_is_refused(tmp_path, tokenizer_config, store_config):
    (tmp_path / "03.txt").write_text("changed")
    for build_it, config in [(build_tokenizer, tokenizer_config), (build_store, store_config)]:
        with pytest.raises(DataError) as caught:
            build_it(config)
        assert "when this build was planned" in caught.value.allowed
        assert f"{tmp_path}/*.txt" in caught.value.given
    assert not Path(tokenizer_config.output_path).exists()
    assert not (tmp_path / "store/manifest.json").exists()


@pytest.mark.usefixtures("_small_shards")
def test_nothing_of_a_changed_source_is_kept_for_when_it_is_as_planned_again(
    tmp_path: Path, store_config
):
    undisturbed = build_undisturbed(store_config, tmp_path)
    (tmp_path / "03.txt").write_text("changed " * 100)
    with pytest.raises(DataError) as caught:
        build_store(store_config)
    assert "when this build was planned" in caught.value.allowed
    (tmp_path / "03.txt").write_text(TEXTS[3])
    build_store(store_config)
    assert files_of(tmp_path / "store") == undisturbed


def test_a_given_tokenizer_that_changed_since_the_plan_is_refused(store_config):
    with pytest.raises(DataError) as caught:
        build_store(replace(store_config, tokenizer_hash="planned with another"))
    assert "/tokenizer " in caught.value.given
    assert "when this build was planned" in caught.value.allowed
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
    with pytest.raises(DataError) as caught:
        build_store(replace(store_config, name="other", split="validation"))
    assert "name, split" in caught.value.given
    save_tokenizer(train_bpe(iter(TEXTS), vocab_size=280), str(tmp_path / "bpe"))
    with pytest.raises(DataError) as caught:
        build_store(replace(store_config, tokenizer_path=str(tmp_path / "bpe")))
    assert "tokenizer_hash" in caught.value.given
    with pytest.raises(DataError) as caught:
        build_store(replace(store_config, format=TextFormat(text_key="body")))
    assert "format_fingerprint" in caught.value.given
    assert files_of(tmp_path / "store") == before


def test_sources_without_a_document_are_named(tmp_path, tokenizer_config, store_config):
    for number, path in enumerate(tmp_path.glob("*.txt")):
        path.write_text(" \n" * (number % 2))
    with pytest.raises(DataError) as caught:
        build_tokenizer(tokenizer_config)
    assert "no text" in caught.value.given
    with pytest.raises(DataError) as caught:
        build_store(store_config)
    assert "component 'texts', train split: no document" in caught.value.given
    assert not (tmp_path / "store/manifest.json").exists()


def test_a_split_without_a_held_out_document_is_built_and_said(store_config, caplog):
    build_store(replace(store_config, split="validation", validation_fraction=0.0))
    assert "no document of component 'texts' is held out" in caplog.text
    assert TokenStore.open(store_config.output_path).num_tokens == 0


@pytest.mark.parametrize(
    ("record", "format", "given"),
    [
        ({"body": "x"}, TextFormat(), "memory:1 has no key 'text'"),
        ({"text": 3}, TextFormat(), "memory:1 holds 3"),
        ({"input_ids": [1, 2, 257]}, PrebuiltFormat(), "memory:1 has the id 257"),
    ],
)
def test_errors_name_the_component_and_the_record(config: Config, record, format, given):
    fine = {"text": "fine", "input_ids": [1]}
    source = MemorySource(documents=(fine, record))
    broken = config(source, name="web", format=format, validation_fraction=NOTHING_HELD_OUT)
    with pytest.raises(DataError) as caught:
        build_store(broken)
    assert caught.value.given.startswith("component 'web', train split: ")
    assert given in caught.value.given
    assert not Path(broken.output_path, "manifest.json").exists()


@pytest.mark.usefixtures("_small_shards")
def test_a_file_that_vanishes_in_the_middle_costs_nothing_once_it_is_back(
    tmp_path: Path, store_config, happening: Happening
):
    undisturbed = build_undisturbed(store_config, tmp_path)
    later = tmp_path / "15.txt"
    happening(3, lambda: later.rename(tmp_path / "away"))
    with pytest.raises(DataError) as caught:
        build_store(store_config)
    assert "component 'texts', train split: " in caught.value.given
    assert "15.txt" in caught.value.given
    progress = json.loads((tmp_path / "store/progress.json").read_text())
    assert progress["num_documents"] > 3
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "store/tokens/c").iterdir()}
    # Without the file, the place to go on from would be another one: nothing is added.
    with pytest.raises(DataError) as caught:
        build_store(store_config)
    assert "when this build was planned" in caught.value.allowed
    assert json.loads((tmp_path / "store/progress.json").read_text()) == progress
    (tmp_path / "away").rename(later)
    build_store(store_config)
    assert files_of(tmp_path / "store") == undisturbed
    assert {path: path.stat().st_mtime_ns for path in written} == written


@needs_proc
@pytest.mark.usefixtures("_small_shards", "_early_processes")
def test_a_killed_tokenizer_process_is_an_error_and_the_next_build_goes_on(
    tmp_path: Path, config: Config, happening: Happening
):
    (tmp_path / "files").mkdir()
    source = source_of("jsonl", tmp_path / "files", [[f"document {i} " * 30 for i in range(150)]])
    undisturbed = build_undisturbed(config(source, processes=1), tmp_path)
    tokenizer = str(tmp_path / "tokenizer")
    happening(20, lambda: os.kill(workers_of(tokenizer)[0], signal.SIGKILL))
    with pytest.raises(DataError) as caught:
        build_store(config(source, processes=2))
    assert "component 'texts', train split: " in caught.value.given
    assert "exited with code -9" in caught.value.given
    assert workers_of(tokenizer) == []  # though the error is still held
    assert "same command continues" in caught.value.fix
    begun = json.loads((tmp_path / "store/progress.json").read_text())["num_documents"]
    assert begun > 30
    build_store(config(source, processes=1))
    assert files_of(tmp_path / "store") == undisturbed


@needs_proc
@pytest.mark.usefixtures("_small_shards", "_early_processes")
def test_a_build_that_fails_for_another_reason_ends_its_processes(
    tmp_path: Path, config: Config, happening: Happening
):
    source = MemorySource(documents=tuple(f"document {i} " * 30 for i in range(50)))
    happening(9, stop)
    with pytest.raises(DataError) as caught:
        build_store(config(source, processes=2))
    assert "component 'texts', train split: stopped" in caught.value.given
    assert workers_of(str(tmp_path / "tokenizer")) == []
    assert caught.value.__traceback__ is not None  # whose frames could have kept them


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


FULL_DISK = """
import json, resource, sys
from functools import partial
from chomp.config import config_from_mapping
from chomp.data import StoreBuildConfig, build_store
from chomp.data.store import build
from chomp.errors import StorageError

build.StoreWriter = partial(build.StoreWriter, shard_tokens=256, chunk_tokens=64)
build.SHARD_DOCUMENTS, build.CHUNK_DOCUMENTS = 1024, 16
build._BATCH_DOCUMENTS = 2
config = config_from_mapping(StoreBuildConfig, json.loads(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1200, 1200))
try:
    build_store(config)
except StorageError as error:
    print(error)
"""


@pytest.mark.usefixtures("_small_shards")
def test_a_full_disk_is_a_storage_error_and_the_next_build_goes_on(
    tmp_path: Path, store_config, monkeypatch: pytest.MonkeyPatch
):
    # Small enough that the first of them fit on the disk.
    monkeypatch.setattr(build, "SHARD_DOCUMENTS", 1024)
    monkeypatch.setattr(build, "CHUNK_DOCUMENTS", 16)
    undisturbed = build_undisturbed(store_config, tmp_path)
    # A limit on the size of files is what a test can have of a full disk.
    program = [sys.executable, "-c", FULL_DISK, json.dumps(config_to_mapping(store_config))]
    told = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.startswith("component 'texts', train split: ")
    assert "Allowed: " in told
    assert "Fix: " in told
    assert not (tmp_path / "store/manifest.json").exists()
    assert json.loads((tmp_path / "store/progress.json").read_text())["num_documents"] > 0
    build_store(store_config)
    assert files_of(tmp_path / "store") == undisturbed


@pytest.fixture
def splits(tmp_path: Path, config: Config, source: TextSource) -> dict[str, StoreBuildConfig]:
    """Both splits in folders named as those of steps."""
    return {
        split: config(
            source,
            split=split,
            output_path=str(tmp_path / "tokens" / f"texts-{split}-0123456789ab"),
            with_held_out=True,
        )
        for split in ("train", "validation")
    }


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the source is read again")

    monkeypatch.setattr(TextSource, "records", refuse)


def test_both_splits_are_written_in_one_pass_over_the_source(splits, tmp_path, monkeypatch):
    expected = {
        split: build_undisturbed(replace(each, with_held_out=False), tmp_path / split)
        for split, each in splits.items()
    }
    build_store(splits["train"])
    unread(monkeypatch)
    build_store(splits["validation"])
    for split, each in splits.items():
        assert files_of(Path(each.output_path)) == expected[split]
        build_store(each)  # finished: nothing is read


@pytest.mark.parametrize("moved", [0, 2, 5])
def test_a_store_that_was_taken_in_part_is_taken_whole_by_the_next_build(
    splits, tmp_path, monkeypatch, moved: int
):
    expected = build_undisturbed(splits["validation"], tmp_path)
    build_store(splits["train"])
    folder = Path(splits["validation"].output_path)
    folder.mkdir()
    taken = folder / "held_out_taken"
    (Path(splits["train"].output_path) / "held_out").rename(taken)
    for each in sorted(path for path in taken.iterdir() if path.is_dir())[:moved]:
        each.rename(folder / each.name)
    unread(monkeypatch)
    build_store(splits["validation"])
    assert files_of(folder) == expected


@pytest.mark.usefixtures("_small_shards")
def test_a_train_build_that_goes_on_leaves_held_out_documents_to_their_own_pass(
    splits, happening, tmp_path, monkeypatch
):
    expected = {
        split: build_undisturbed(replace(each, with_held_out=False), tmp_path / split)
        for split, each in splits.items()
    }
    happening(12, stop)
    with pytest.raises(DataError, match="stopped"):
        build_store(splits["train"])
    assert (Path(splits["train"].output_path) / "progress.json").exists()
    happening(10**6, stop)
    for split in ("train", "validation"):
        build_store(splits[split])
        assert files_of(Path(splits[split].output_path)) == expected[split]


def test_held_out_documents_of_another_tokenizer_are_not_taken(splits, tmp_path):
    build_store(splits["train"])
    tokenizer = train_bpe(TEXTS, vocab_size=300)
    save_tokenizer(tokenizer, str(tmp_path / "other"))
    validation = replace(splits["validation"], tokenizer_path=str(tmp_path / "other"))
    build_store(validation)
    store = TokenStore.open(validation.output_path, tokenizer_hash=tokenizer.content_hash)
    assert store.num_tokens < len(line_of(str(Path(splits["train"].output_path) / "held_out")))


def test_a_validation_store_that_is_there_is_not_written_again(splits):
    for split in ("validation", "train"):
        build_store(splits[split])
    assert not (Path(splits["train"].output_path) / "held_out").exists()


def test_splits_that_are_built_at_the_same_time_leave_no_third_store(splits, monkeypatch):
    class Meanwhile(StoreWriter):
        """While the train split is written, another process builds the validation split."""

        def append(self, locations, encoded):
            super().append(locations, encoded)
            monkeypatch.setattr(build, "StoreWriter", StoreWriter)
            build_store(splits["validation"])

    monkeypatch.setattr(build, "StoreWriter", Meanwhile)
    build_store(splits["train"])
    assert TokenStore.open(splits["validation"].output_path).num_tokens
    assert not (Path(splits["train"].output_path) / "held_out").exists()
