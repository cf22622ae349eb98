"""`chomp data inspect`: what stores hold, for a person to look at."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chomp.cli.given_config import GivenConfig
from chomp.cli.run_data import RunData
from chomp.cli.stores import places_of
from chomp.cli.terminal import one_line, print_table, say
from chomp.errors import ChompError

if TYPE_CHECKING:  # for annotations alone
    from rich.table import Table

    from chomp.data import TokenStore
    from chomp.tokenize import Tokenizer

_BAR_CELLS = 40
# Parts of a cell, so that a bar tells eight times as much as its length in characters.
_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Ends of documents read at once: 8 MiB.
_ENDS_AT_ONCE = 1 << 20
# Enough tokens for the characters that are shown of a document.
_SHOWN_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """How many documents have a length from `low` to `high`."""

    low: int
    high: int
    documents: int


def inspect_data(given: GivenConfig, num_documents: int) -> int:
    """Print what each store of a CONFIG holds, or the store that was given."""
    from chomp.data import TokenStore

    places, run = places_of(given)
    for place in places:
        store = TokenStore.open(place.path)
        print_table(_facts(store))
        for line in histogram_lines(length_bins(store)):
            say(line)
        if num_documents:
            print_table(_first_documents(store, num_documents, _tokenizer_of(store, run)))
    return 0


def length_bins(store: TokenStore) -> list[LengthBin]:
    """Documents by length, in bins that double: 1, 2 to 3, 4 to 7 and so on, without empty ends."""
    import numpy as np

    counts, before = np.zeros(64, np.int64), 0
    for first in range(0, len(store.documents), _ENDS_AT_ONCE):
        ends = store.documents.ends(first, min(first + _ENDS_AT_ONCE, len(store.documents)))
        # The exponent of a number is exact, where a logarithm next to a power of two is not.
        _, exponents = np.frexp(np.diff(ends, prepend=before))
        counts += np.bincount(exponents - 1, minlength=64)
        before = int(ends[-1])
    used = np.flatnonzero(counts)
    return [
        LengthBin(low=1 << i, high=(2 << i) - 1, documents=int(counts[i]))
        for i in range(int(used[0]), int(used[-1]) + 1)
    ]


def histogram_lines(bins: list[LengthBin]) -> list[str]:
    """A bar for each bin, as long as its count."""
    ranges = [f"{item.low:,} to {item.high:,}" if item.low > 1 else "1" for item in bins]
    width, most = max(map(len, ranges)), max(item.documents for item in bins)
    return [
        f"{label:>{width}} tokens {_bar(item.documents / most)} {item.documents:,}"
        for label, item in zip(ranges, bins, strict=True)
    ]


def _bar(share: float) -> str:
    eighths = round(share * _BAR_CELLS * 8)
    # What is there at all is seen, however little it is.
    eighths = max(eighths, 1) if share else 0
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _facts(store: TokenStore) -> Table:
    """The manifest, and what follows from it."""
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    from chomp.storage import folder_size_bytes

    manifest, identity = store.manifest, store.manifest.identity
    fraction = identity.validation_fraction
    held_out = "all" if fraction == 1.0 else f"{fraction:g} of"
    held_out += " documents are held out"
    facts = {
        "folder": store.path,
        "component": identity.name,
        "split": f"{identity.split} ({held_out})",
        "documents": f"{manifest.num_documents:,}",
        "tokens": f"{manifest.num_tokens:,}, "
        f"{manifest.num_tokens / max(manifest.num_documents, 1):,.0f} a document",
        "dtype": manifest.dtype,
        "loss weights": "one for each token" if manifest.has_loss_weights else "none: all count",
        "end of document": f"id {manifest.eos_id}",
        "size": decimal(folder_size_bytes(store.path)),
        "shards": f"{len(manifest.checksums['tokens']):,} of tokens",
        "tokenizer": identity.tokenizer_hash[:12],
        "source": identity.source_fingerprint[:12],
        "format": f"{identity.format_fingerprint[:12]}, store format {manifest.format_version}",
    }
    if identity.max_documents is not None:
        facts["documents"] += f", at most {identity.max_documents:,}"
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, Text(value))
    return table


def _first_documents(store: TokenStore, count: int, tokenizer: Tokenizer | None) -> Table:
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    table = Table("document")
    table.add_column("tokens", justify="right")
    table.add_column("begins with" if tokenizer else "begins with the ids")
    for document in range(min(count, len(store.documents))):
        begin, end = store.documents.span(document)
        length = min(end - begin, _SHOWN_TOKENS)
        ids = store.read(np.asarray([begin]), np.asarray([length])).tolist()
        table.add_row(
            Text(store.locations.document_id(document)),
            f"{end - begin:,}",
            Text(one_line(tokenizer.decode(ids) if tokenizer else " ".join(map(str, ids)))),
        )
    return table


def _tokenizer_of(store: TokenStore, run: RunData | None) -> Tokenizer | None:
    """The tokenizer a store was made with, if it can be found; never another one."""
    from chomp.executor.status import read_info
    from chomp.tokenize import load_tokenizer

    info = read_info(store.path)
    config = info.config if info is not None and isinstance(info.config, dict) else {}
    for folder in (run.data.tokenizer.path if run else None, config.get("tokenizer_path")):
        if folder is None:
            continue
        try:
            tokenizer = load_tokenizer(folder)
        except ChompError:
            continue  # it is gone or another; ids are shown instead of its text
        if tokenizer.content_hash == store.manifest.identity.tokenizer_hash:
            return tokenizer
    return None
