"""Building a token store from a source: an executor step, and what `chomp data build` runs.

Nothing looks finished before it is: the file that makes a folder valid is written last. And nothing
is filed under content it was not made from: a source that changed since the plan is an error.
A build that was killed goes on at the record it had come to.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from chomp.config import Config, fingerprint
from chomp.data.documents import LocatedDocument, Split, is_held_out
from chomp.data.progress import progress_bar
from chomp.data.sources.formats import Format, TextFormat
from chomp.data.sources.source import Source, located_documents, part_names, source_fingerprint
from chomp.data.store.encoding import encoded_in_order
from chomp.data.store.token_store import MANIFEST, StoreIdentity, location_of, read_manifest
from chomp.data.store.writer import PROGRESS, StoreWriter
from chomp.errors import DataError, StorageError
from chomp.storage import exists, join, remove_tree
from chomp.storage.secrets import redactor
from chomp.tokenize import Tokenizer, load_tokenizer
from chomp.tokenize.worker import available_cores

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StoreBuildConfig(Config):
    """One split of one component as tokens."""

    output_path: str
    name: str
    source: Source
    source_fingerprint: str  # its content when the build was planned
    format: Format = field(default_factory=TextFormat)
    split: Split
    validation_fraction: float
    max_documents: int | None = None  # only the first so many of the split; None: all
    tokenizer_path: str
    # Its content when the build was planned; None: a step of the same plan builds it.
    tokenizer_hash: str | None = None
    processes: int | None = None  # that tokenize; None: one per core


def build_store(config: StoreBuildConfig) -> None:
    """Tokenize one split of a source into the store at `output_path`.

    A store that was left unfinished is continued; one that is finished is left as it is.
    """
    try:
        tokenizer = load_tokenizer(config.tokenizer_path)
        _refuse_changed_tokenizer(config, tokenizer)
        identity = _identity(config, tokenizer)
        if _is_built(config.output_path, identity):
            # There if the build was killed right after its last write.
            remove_tree(join(config.output_path, PROGRESS))
        else:
            _write_store(config, tokenizer, identity)
    except (DataError, StorageError) as error:
        error.within(f"component {config.name!r}, {config.split} split")
        raise


def refuse_changed_source(source: Source, planned: str) -> None:
    """Raise `DataError` unless a source holds what it held when its fingerprint was taken."""
    found = source_fingerprint(source)
    if found != planned:
        raise DataError(
            f"{source} with content {found[:12]}"[:500],
            allowed=f"{planned[:12]}, its content when this build was planned",
            fix="wait until nothing writes there, then run the same command again",
        )


def _write_store(config: StoreBuildConfig, tokenizer: Tokenizer, identity: StoreIdentity) -> None:
    writer = StoreWriter(
        config.output_path, identity, tokenizer, has_loss_weights=config.format.has_loss_weights
    )
    if writer.is_resumed:
        # With a file gone, the position to go on from would be another record.
        refuse_changed_source(config.source, config.source_fingerprint)
    parts = part_names(config.source)
    batches = encoded_in_order(
        _documents(config, writer, parts),
        tokenizer,
        config.tokenizer_path,
        processes=config.processes or available_cores(),
    )
    # Closed, not left to the garbage collector: an error would keep the processes alive.
    with closing(batches), _progress(config, parts, writer) as advance_to:
        for batch, tokens in batches:
            locations = np.asarray([location_of(item.position) for item in batch], np.int64)
            writer.append(locations, tokens)
            advance_to(batch[-1].position.part)
    if writer.num_documents == 0:
        _refuse_nothing(config)
    _refuse_changed_content(config, writer)
    # Where documents came from, for people: no password in an address is kept.
    writer.finish(tuple(map(redactor(), parts)), has_whole_parts=config.source.has_whole_parts)


def _refuse_nothing(config: StoreBuildConfig) -> None:
    """Raise `DataError` for an empty split; only a held-out part of the documents may be empty."""
    if config.split == "validation" and config.validation_fraction < 1.0:
        log.warning(
            "no document of component %r is held out: evaluation will have nothing of it. More "
            "documents, or a larger validation_fraction, would change that.",
            config.name,
        )
        return
    is_whole = config.split == "validation"
    where = f"{config.source}"[:500] if is_whole else "the train split"
    other = "remove it" if is_whole else "a smaller validation_fraction"
    raise DataError(
        f"no document in {where}",
        allowed="at least one document with text other than white space",
        fix=f"add documents to the component, or {other}",
    )


@contextmanager
def _progress(
    config: StoreBuildConfig, parts: tuple[str, ...], writer: StoreWriter
) -> Iterator[Callable[[int], None]]:
    """A function to call with the part that was come to: files of many, else documents are told."""
    has_files = len(parts) > 1
    with progress_bar(
        f"tokenizing {config.name}, {config.split} split",
        total=len(parts) if has_files else None,
        unit="files" if has_files else "documents",
    ) as advance:
        done = 0

        def advance_to(part: int) -> None:
            nonlocal done
            now = part if has_files else writer.num_documents
            advance(now - done)
            done = now

        advance_to(writer.next_position.part)
        yield advance_to


def _refuse_changed_content(config: StoreBuildConfig, writer: StoreWriter) -> None:
    # A file that is gone raises here, and the progress stays: it may come back as it was.
    if source_fingerprint(config.source) != config.source_fingerprint:
        # Some of what was read may be of the other content, and nobody can tell which.
        writer.forget_progress()
        refuse_changed_source(config.source, config.source_fingerprint)


def _documents(
    config: StoreBuildConfig, writer: StoreWriter, parts: tuple[str, ...]
) -> Iterator[LocatedDocument]:
    """The documents of the split that are not in the store yet."""
    wants_held_out = config.split == "validation"
    documents = (
        item
        for item in located_documents(
            config.source, config.format, start=writer.next_position, parts=parts
        )
        if is_held_out(item.document, config.validation_fraction) == wants_held_out
    )
    if config.max_documents is None:
        return documents
    return islice(documents, config.max_documents - writer.num_documents)


def _identity(config: StoreBuildConfig, tokenizer: Tokenizer) -> StoreIdentity:
    return StoreIdentity(
        name=config.name,
        split=config.split,
        validation_fraction=config.validation_fraction,
        source_fingerprint=config.source_fingerprint,
        format_fingerprint=fingerprint(config.format),
        tokenizer_hash=tokenizer.content_hash,
        max_documents=config.max_documents,
    )


def _is_built(path: str, wanted: StoreIdentity) -> bool:
    """Whether this very store is finished; any other finished store in its place is an error."""
    if not exists(join(path, MANIFEST)):
        return False
    found = read_manifest(path).identity
    other = [name for name, value in vars(wanted).items() if getattr(found, name) != value]
    if other:
        raise DataError(
            f"{path} has a finished store with another {', '.join(other)}",
            allowed="a folder without a finished store, or with this same store",
            fix=f"choose another folder, or move {path} away first",
        )
    return True


def _refuse_changed_tokenizer(config: StoreBuildConfig, tokenizer: Tokenizer) -> None:
    planned = config.tokenizer_hash
    if planned is not None and planned != tokenizer.content_hash:
        raise DataError(
            f"tokenizer {config.tokenizer_path} has the content {tokenizer.content_hash[:12]}",
            allowed=f"{planned[:12]}, its content when this build was planned",
            fix="run the same command again: it uses the tokenizer that is there now",
        )
