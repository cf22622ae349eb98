"""The data path: tokenizing, loading, opening stores, memory, packing, streams.

    uv run --group bench python -m benchmarks.data [--quick]

Ratios are to the bare `tokenizers` library and to a plain Grain pipeline, in turn with ours on the
same texts and stores. What is read is made in a temporary folder: about 400 MB. Three minutes on
two quiet cores, which have to be quiet: ours and the peers' use them differently.
"""

import argparse
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as BareTokenizer

from benchmarks.data_inputs import (
    TOKENIZER,
    corpus_texts,
    web_lengths,
    web_texts,
    write_components,
    write_jsonl,
    write_large_store,
    write_store,
)
from benchmarks.data_loading import first_batch, loading, loading_packed
from benchmarks.peers.grain_mixture import grain_package
from benchmarks.record import Figure, record
from benchmarks.resident_memory import BATCH_SIZE, SEQ_LEN
from benchmarks.timing import in_turn, phase
from chomp.data import (
    JsonlSource,
    LmComponentConfig,
    LmDataConfig,
    PackingConfig,
    StoreBuildConfig,
    StreamConfig,
    StreamRows,
    TokenStore,
    build_store,
    documents_of_split,
    source_documents,
    source_fingerprint,
)
from chomp.data.packing import PACKING_WINDOW, PackingRule, pack_documents
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.tokenize import save_tokenizer, train_bpe

ROOT = Path(__file__).parents[1]
VALIDATION_FRACTION = 0.01
MAX_DOCUMENTS_PER_ROW = 64
VOCAB_SIZE = 16_384
NUM_SHARDS, SMALL_SHARD_TOKENS = 1_000, 8_192
LARGE_STORE_BYTES = 20 * 10**9
# Texts the bare library gets at once, of 12 kB each: its best. Of all texts at once it keeps
# gigabytes of offsets, and is half as fast.
TEXTS_AT_ONCE = 128


def tokenizing(folder: Path, num_bytes: int, rounds: int) -> list[Figure]:
    """A file of texts to a finished store, beside the bare library on the same texts in memory."""
    source, tokenizer_path = _texts_and_tokenizer(folder, num_bytes)
    documents = documents_of_split(source_documents(source), "train", VALIDATION_FRACTION)
    texts = [document.text for document in documents]
    bare = BareTokenizer.from_file(f"{tokenizer_path}/tokenizer.json")

    def build() -> None:
        shutil.rmtree(folder / "texts", ignore_errors=True)
        config = StoreBuildConfig(
            output_path=str(folder / "texts"),
            name="texts",
            source=source,
            source_fingerprint=source_fingerprint(source),
            split="train",
            validation_fraction=VALIDATION_FRACTION,
            tokenizer_path=tokenizer_path,
            with_held_out=False,
        )
        build_store(config)

    def encode(encode_batch: Callable[[list[str]], Any]) -> None:
        with phase("tokenizing with the bare library"):
            for first in range(0, len(texts), TEXTS_AT_ONCE):
                encode_batch(texts[first : first + TEXTS_AT_ONCE])

    ours, bare_s, bare_fast_s = in_turn(
        rounds, build, lambda: encode(bare.encode_batch), lambda: encode(bare.encode_batch_fast)
    )
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    figure: dict[str, Any] = {"value": megabytes / ours, "unit": "MB/s", "better": "higher"}
    return [
        Figure(
            name="text file to store",
            **figure,
            peer="tokenizers encode_batch",
            peer_value=megabytes / bare_s,
            goal=0.8,
            goal_on="ratio",
        ),
        # Harder than what was promised: the library's way without offsets, which ours uses.
        Figure(
            name="text file to store, beside encode_batch_fast",
            **figure,
            peer="tokenizers encode_batch_fast",
            peer_value=megabytes / bare_fast_s,
        ),
    ]


def opening(folder: Path) -> list[Figure]:
    """A store of a thousand shards, opened."""
    tokens = NUM_SHARDS * SMALL_SHARD_TOKENS
    path = write_store(folder / "shards", tokens, seed=0, shard_tokens=SMALL_SHARD_TOKENS)
    (seconds,) = in_turn(5, lambda: TokenStore.open(path))
    name = f"open a store of {NUM_SHARDS:,} shards"
    return [Figure(name=name, value=seconds, unit="s", better="lower", goal=1.0)]


def memory(folder: Path, batches: int) -> list[Figure]:
    """What a process of its own takes that only reads batches of a store of 20 GB."""
    with phase(f"{batches:,} batches of a store of 20 GB"):
        store = write_large_store(folder / "large", LARGE_STORE_BYTES)
        command = [sys.executable, "-m", "benchmarks.resident_memory", store, str(batches)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found = json.loads(done.stdout)
    resident: dict[str, Any] = {"unit": "MB", "better": "lower"}
    return [
        Figure(
            name=f"20 GB store, resident at most in {batches:,} batches",
            value=found["peak"] / 1e6,
            goal=300.0,
            **resident,
        ),
        Figure(name="resident after the imports", value=found["imported"] / 1e6, **resident),
        Figure(
            name="20 GB store, host batches, most chunks new",
            value=found["tokens_per_second"] / 1e6,
            unit="M tokens/s",
            better="higher",
        ),
    ]


def packing(num_documents: int) -> list[Figure]:
    """Planning packed rows from lengths alone."""
    lengths = web_lengths(500 * num_documents, seed=0)
    windows = [lengths[i : i + PACKING_WINDOW] for i in range(0, len(lengths), PACKING_WINDOW)]
    rule = PackingRule(row_len=SEQ_LEN, max_documents=MAX_DOCUMENTS_PER_ROW, long_documents="split")
    with phase("planning packed rows"):
        begin = time.perf_counter()
        planned = [pack_documents(window, rule) for window in windows]
        seconds = time.perf_counter() - begin
    speed = sum(len(window.length) for window in planned) / seconds / 1e6
    positions = SEQ_LEN * sum(len(window.pieces_per_row) for window in planned)
    used = 100 * float(lengths.sum()) / positions
    return [
        Figure(name="packing, planned", value=speed, unit="M pieces/s", better="higher"),
        Figure(name="packing, positions that hold a token", value=used, unit="%", better="higher"),
    ]


def streams(folder: Path, num_bytes: int) -> list[Figure]:
    """Rows straight from a file of documents of web lengths, one byte being a token."""
    # Every stream warns that it is shuffled within windows only.
    logging.getLogger("chomp.data.stream").setLevel(logging.ERROR)
    path = folder / "web.jsonl"
    write_jsonl(path, web_texts(num_bytes))
    modes: tuple[Literal["concat", "packed"], ...] = ("concat", "packed")
    return [
        Figure(
            name=f"stream, {mode} rows",
            value=_stream_speed(path, mode, num_bytes) / 1e6,
            unit="M tokens/s",
            better="higher",
            goal=2.0,
        )
        for mode in modes
    ]


def _texts_and_tokenizer(folder: Path, num_bytes: int) -> tuple[JsonlSource, str]:
    path, tokenizer_path = folder / "texts.jsonl", str(folder / "bpe")
    with phase("training a tokenizer"):
        texts = corpus_texts(num_bytes)
        write_jsonl(path, texts)
        # The corpus is repeated to its size; a tokenizer learns from it once.
        save_tokenizer(train_bpe(dict.fromkeys(texts), vocab_size=VOCAB_SIZE), tokenizer_path)
    return JsonlSource(paths=(str(path),)), tokenizer_path


def _stream_speed(path: Path, mode: Literal["concat", "packed"], num_tokens: int) -> float:
    """Tokens a second; positions that hold none do not count."""
    source = JsonlSource(paths=(str(path),))
    packing = PackingConfig(max_documents_per_row=MAX_DOCUMENTS_PER_ROW)
    data = LmDataConfig(
        components={"web": LmComponentConfig(source=source, stream=StreamConfig())},
        packing_mode=mode,
        packing=packing if mode == "packed" else None,
        validation_fraction=VALIDATION_FRACTION,
    )
    stream = StreamRows("web", data, TOKENIZER, seq_len=SEQ_LEN, seed=0)
    batches = num_tokens // (BATCH_SIZE * SEQ_LEN)
    try:
        with phase(f"a stream, {mode} rows"):
            begin = time.perf_counter()
            read = [stream.read(BATCH_SIZE) for _ in range(batches)]
            seconds = time.perf_counter() - begin
        return sum(int((rows.segment_ids != PAD_SEGMENT).sum()) for rows in read) / seconds
    finally:
        stream.close()


def figures_of(folder: Path, *, is_quick: bool) -> list[Figure]:
    """All figures; everything is written under `folder`."""
    rounds = 1 if is_quick else 3
    figures = tokenizing(folder, 6_000_000 if is_quick else 40_000_000, rounds)
    stores = write_components(folder, 10_000_000 if is_quick else 50_000_000)
    figures += loading(stores, rounds)
    figures += loading_packed(stores, rounds)
    figures += first_batch(stores)
    figures += opening(folder)
    figures += memory(folder, 200 if is_quick else 2_000)
    figures += packing(100_000 if is_quick else 1_000_000)
    return figures + streams(folder, 10_000_000 if is_quick else 50_000_000)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of it; nothing is written")
    quick = parser.parse_args().quick
    grain_package()  # that it is missing shows now, not after a minute
    with tempfile.TemporaryDirectory() as temporary:
        found = figures_of(Path(temporary), is_quick=quick)
    record("data", found, is_quick=quick)
