"""Sources of every kind made from the same documents, for the tests that read them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from chomp.data import (
    ArraysSource,
    Format,
    JsonlSource,
    MemorySource,
    ParquetSource,
    PrebuiltFormat,
    Source,
    TextFormat,
    TextSource,
)

SEPARATOR = 999
FILE_KINDS = ("text", "jsonl", "jsonl.gz", "jsonl.zst", "parquet")


def redirect_hub_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` prepares is written below the folder and not into the user's cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")


def jsonl_bytes(texts: Sequence[str], key: str = "text") -> bytes:
    """One line a text; every other one in escaped ASCII, with a number beside the text."""
    lines = [
        json.dumps({key: text, "n": number}, ensure_ascii=number % 2 == 0)
        for number, text in enumerate(texts)
    ]
    return "".join(line + "\n" for line in lines).encode()


def compressed(content: bytes, suffix: str) -> bytes:
    """The content as a file of that suffix holds it; zstd in two frames."""
    if suffix.endswith(".gz"):
        return gzip.compress(content)
    if suffix.endswith(".zst"):
        half = len(content) // 2
        return zstandard.compress(content[:half]) + zstandard.compress(content[half:])
    return content


def source_of(kind: str, folder: Path, parts: Sequence[Sequence[str]]) -> Source:
    """A source whose parts hold these texts; a text file holds the first of its part."""
    if kind == "memory":
        return MemorySource(documents=tuple(parts[0]))
    for number, texts in enumerate(parts):
        path = folder / f"{number:03}.{kind}"
        if kind == "text":
            path.write_text(texts[0], newline="")
        elif kind == "parquet":
            columns = {"text": pyarrow.array(texts, pyarrow.string()), "n": range(len(texts))}
            pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
        else:
            path.write_bytes(compressed(jsonl_bytes(texts), kind))
    paths = (str(folder / f"*.{kind}"),)
    if kind == "text":
        return TextSource(paths=paths)
    return ParquetSource(paths=paths) if kind == "parquet" else JsonlSource(paths=paths)


def ids_source(
    kind: str, folder: Path, documents: Sequence[Sequence[int]]
) -> tuple[Source, Format]:
    """One file of token ids and the format that reads it; rows are as long as the first."""
    if kind == "prebuilt parquet":
        table = pyarrow.table(
            {"input_ids": pyarrow.array(documents, pyarrow.list_(pyarrow.int32()))}
        )
        pyarrow.parquet.write_table(table, folder / "ids.parquet", row_group_size=3)
        return ParquetSource(paths=(str(folder / "ids.parquet"),)), PrebuiltFormat()
    if kind == "one axis":
        flat = [number for ids in documents for number in (*ids, SEPARATOR)]
        np.save(folder / "ids.npy", np.asarray(flat, np.uint16))
    else:
        np.save(folder / "ids.npy", np.asarray(documents, np.uint16).reshape(len(documents), -1))
    return ArraysSource(paths=(str(folder / "ids.npy"),), separator_id=SEPARATOR), TextFormat()
