"""Building a token store from a source: an executor step, and what `chomp data build` runs.

Nothing looks finished before it is: tokens go to disk in whole shards, after each shard
`progress.json` says how far the store is good and which record comes next, and the manifest, which
makes a folder a store, is written last. A build that was killed goes on at the record it had come
to. Nothing is filed under content it was not made from: a source that changed since the plan is an
error. What a store holds does not depend on how many processes made it.
"""

import logging
from array import array
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int, Integer, Num, UInt32

from chomp.config import Config, fingerprint, setting
from chomp.data.contamination import (
    CONTAMINATION,
    ValidationSet,
    keys_of_sets,
    write_contamination,
)
from chomp.data.documents import (
    Document,
    LocatedDocument,
    Position,
    Split,
    content_key,
    is_held_out,
)
from chomp.data.formats import Format, TextFormat
from chomp.data.progress import progress_bar
from chomp.data.sources import (
    Source,
    located_documents,
    refuse_changed_source,
    source_fingerprint,
)
from chomp.data.store.array import (
    FlatArray,
    FlatArrayWriter,
    checksum,
    chunk_checksums,
    damaged,
)
from chomp.data.store.store import (
    CHUNK_CHECKSUMS,
    DOCUMENT_ENDS,
    DOCUMENT_MARKS,
    FORMAT_VERSION,
    LOCATIONS,
    LOSS_WEIGHTS,
    MANIFEST,
    PACKING,
    PARTS,
    TOKENS,
    StoreIdentity,
    StoreManifest,
    location_of,
    marks_of,
    position_of,
    read_manifest,
)
from chomp.errors import DataError, StorageError
from chomp.storage import (
    exists,
    is_folder,
    join,
    list_folder,
    make_folder,
    name_of,
    parent_of,
    read_json,
    remove_tree,
    rename_folder,
    write_bytes_atomic,
    write_json_atomic,
)
from chomp.storage.secrets import redactor
from chomp.tokenize import Tokenizer, UnencodableText, load_tokenizer
from chomp.tokenize.worker import TokenizerProcesses, available_cores

# Axes: L tokens of a whole batch, N documents, P positions of one document, C chunks.

log = logging.getLogger(__name__)

# A shard is one file; a chunk is the least that is read. 32 Ki tokens are 64 KiB as uint16.
SHARD_TOKENS = 1 << 23
CHUNK_TOKENS = 1 << 15
# Of the arrays with one number per document: 2 MiB and 32 KiB.
SHARD_DOCUMENTS = 1 << 18
CHUNK_DOCUMENTS = 1 << 12
PROGRESS = "progress.json"
# In the folder of a train store: the store of the held-out documents, written in the same pass. It
# waits there for the step of the validation split.
HELD_OUT = "held_out"
_TAKEN = "held_out_taken"
# All of a store. What makes it look finished, or half done, goes first where it is begun anew.
_WRITTEN = (
    MANIFEST, PROGRESS, PARTS, PACKING,
    TOKENS, LOSS_WEIGHTS, DOCUMENT_ENDS, DOCUMENT_MARKS, LOCATIONS, CONTAMINATION,
)  # fmt: skip
# A batch is some tenths of a second of work, so that handing it over costs nothing beside it.
_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 1 << 20
# Starting processes takes about as long as tokenizing this much.
_CHARACTERS_ENCODED_HERE = 4 << 20
# Batches in flight per process: one being worked on, one waiting.
_BATCHES_PER_PROCESS = 2


@dataclass(frozen=True, kw_only=True)
class StoreBuildConfig(Config):
    """One split of one component as tokens."""

    output_path: str
    name: str
    source: Source
    source_fingerprint: str  # its content when the build was planned
    format: Format = field(default_factory=TextFormat)
    split: Split
    validation_fraction: float = setting(ge=0, le=1)
    # Only the first so many of the split; None: all.
    max_documents: int | None = setting(default=None, ge=0)
    tokenizer_path: str
    # Its content when the build was planned; None: a step of the same plan builds it.
    tokenizer_hash: str | None = None
    processes: int | None = setting(default=None, ge=1)  # that tokenize; None: one per core
    # Of a train split: also write the held-out documents, for the step of the validation split.
    with_held_out: bool = setting(default=True, is_added=True)
    # Of a train split: validation sets, whose documents are left out unless contamination is
    # allowed, and the hash of both.
    validation_sets: tuple[ValidationSet, ...] = setting(default=(), is_added=True)
    allow_contamination: bool = setting(default=False, is_added=True)
    kept_out: str | None = setting(default=None, is_added=True)

    def identity(self, tokenizer: Tokenizer, split: Split) -> StoreIdentity:
        """What the store of a split is made from."""
        source = self.source_fingerprint
        if split == "train" and self.kept_out is not None:
            source = fingerprint([source, self.kept_out])
        return StoreIdentity(
            name=self.name,
            split=split,
            validation_fraction=self.validation_fraction,
            source_fingerprint=source,
            format_fingerprint=fingerprint(self.format),
            tokenizer_hash=tokenizer.content_hash,
            max_documents=self.max_documents,
        )


def build_store(config: StoreBuildConfig) -> None:
    """Tokenize one split of a source into the store at `output_path`.

    A store that was left unfinished is continued; one that is finished is left as it is. A train
    split writes the held-out documents in the same pass, and the validation split then takes them.
    """
    try:
        tokenizer = load_tokenizer(config.tokenizer_path)
        planned = config.tokenizer_hash
        if planned is not None and planned != tokenizer.content_hash:
            raise DataError(
                f"tokenizer {config.tokenizer_path} has the content {tokenizer.content_hash[:12]}",
                allowed=f"{planned[:12]}, its content when this build was planned",
                fix="run the same command again: it uses the tokenizer that is there now",
            )
        identity = config.identity(tokenizer, config.split)
        if exists(join(config.output_path, MANIFEST)):
            found = vars(read_manifest(config.output_path).identity)
            other = [name for name, value in vars(identity).items() if found[name] != value]
            if other:
                raise DataError(
                    f"{config.output_path} has a finished store with another {', '.join(other)}",
                    allowed="a folder without a finished store, or with this same store",
                    fix=f"choose another folder, or move {config.output_path} away first",
                )
            # There if the build was killed right after its last write.
            for name in (PROGRESS, _TAKEN):
                remove_tree(join(config.output_path, name))
        elif not (config.split == "validation" and _take_held_out(config, identity)):
            _write_stores(config, tokenizer)
            # Both splits may have been built at the same time: then the one in its folder stays.
            held_out = config.identity(tokenizer, "validation")
            if _find_beside(config, "validation", held_out):
                spare = _find_beside(config, "train", held_out, HELD_OUT)
                if spare:
                    remove_tree(spare)
    except (DataError, StorageError) as error:
        error.within(f"component {config.name!r}, {config.split} split")
        raise


def _find_beside(
    config: StoreBuildConfig, split: Split, identity: StoreIdentity, inner: str = ""
) -> str:
    """The finished store of that identity in the folder of a step of a split; "" if there is none.

    Steps of one component have their folders side by side: NAME-train-HASH, NAME-validation-HASH.
    """
    folder = parent_of(config.output_path)
    for each in list_folder(folder) if is_folder(folder) else []:
        path = join(folder, each, inner) if inner else join(folder, each)
        is_of_split = each.startswith(f"{name_of(config.name)}-{split}-")
        if is_of_split and exists(join(path, MANIFEST)):
            try:
                if read_manifest(path).identity == identity:
                    return path
            except (DataError, StorageError) as error:
                log.warning("not looked at for held-out documents: %s", error)
    return ""


def _take_held_out(config: StoreBuildConfig, identity: StoreIdentity) -> bool:
    """Move the store that the train split's build wrote here; False if there is none."""
    taken = join(config.output_path, _TAKEN)
    if not exists(taken):
        found = _find_beside(config, "train", identity, HELD_OUT)
        if not found:
            return False
        make_folder(config.output_path)
        for name in _WRITTEN:
            remove_tree(join(config.output_path, name))
        rename_folder(found, taken)
    # One rename took it whole. Killed from here on, the next call moves the rest.
    for name in list_folder(taken):
        if is_folder(join(taken, name)):
            rename_folder(join(taken, name), join(config.output_path, name))
    for name in (PARTS, MANIFEST):
        content = read_json(join(taken, name))
        indent = None if name == PARTS else 2
        write_json_atomic(join(config.output_path, name), content, indent=indent)
    remove_tree(taken)
    return True


def _write_stores(config: StoreBuildConfig, tokenizer: Tokenizer) -> None:
    has_weights = config.format.has_loss_weights
    identity = config.identity(tokenizer, config.split)
    writer = StoreWriter(config.output_path, identity, tokenizer, has_loss_weights=has_weights)
    if writer.is_resumed:
        # With a file gone, the position to go on from would be another record.
        refuse_changed_source(config.source, config.source_fingerprint)
    writers = {config.split: writer}
    aside = join(config.output_path, HELD_OUT)
    identity = config.identity(tokenizer, "validation")
    is_wanted = config.split == "train" and config.with_held_out and config.max_documents is None
    if is_wanted and not exists(join(aside, MANIFEST)):
        # One that was cut short is left to the validation split's own pass.
        remove_tree(aside)
        if not writer.is_resumed and not _find_beside(config, "validation", identity):
            writers["validation"] = StoreWriter(
                aside, identity, tokenizer, has_loss_weights=has_weights
            )
    parts = config.source.part_names()
    keys = keys_of_sets(config.validation_sets)
    held_out: deque[bool] = deque()  # of the documents that are on their way

    def chosen_documents() -> Iterator[LocatedDocument]:
        """The documents that are not in the stores yet."""
        start = writer.next_position
        for item in located_documents(config.source, config.format, start=start, parts=parts):
            is_validation = is_held_out(item.document, config.validation_fraction)
            if keys and not is_validation:
                shared = keys.get(content_key(item.document))
                if shared is not None:
                    place = location_of(item.position)
                    writer.contaminated.append((place, shared, item.document.id))
                    if not config.allow_contamination:
                        continue
            if ("validation" if is_validation else "train") in writers:
                held_out.append(is_validation)
                yield item

    left = None if config.max_documents is None else config.max_documents - writer.num_documents
    batches = encode_in_order(
        islice(chosen_documents(), left),
        tokenizer,
        config.tokenizer_path,
        processes=config.processes or available_cores(),
    )
    has_files = len(parts) > 1
    bar = progress_bar(
        f"tokenizing {config.name}, {' and '.join(writers)} split",
        total=len(parts) if has_files else None,
        unit="files" if has_files else "documents",
    )
    # Closed, not left to the garbage collector: an error would keep the processes alive.
    with closing(batches), bar as advance:
        shown = 0
        for batch, tokens in batches:
            done = sum(each.num_documents for each in writers.values())
            now = batch[-1].position.part if has_files else done + len(batch)
            locations = np.asarray([location_of(item.position) for item in batch], np.int64)
            mask = np.asarray([held_out.popleft() for _ in batch])
            if len(writers) == 1:
                writer.append(locations, tokens)
            else:
                for split, each in writers.items():
                    chosen = mask if split == "validation" else ~mask
                    if chosen.any():
                        each.append(locations[chosen], tokens.only(chosen))
            advance(now - shown)
            shown = now
    for split, each in writers.items():
        if each.num_documents:
            continue
        if split == "validation" and config.validation_fraction < 1.0:
            log.warning(
                "no document of component %r is held out: evaluation will have nothing of it. More "
                "documents, or a larger validation_fraction, would change that.",
                config.name,
            )
            continue
        where, other = "the train split", "a smaller validation_fraction"
        if split == "validation":
            where, other = f"{config.source}"[:500], "remove it"
        if writer.contaminated and not config.allow_contamination:
            count = len(writer.contaminated)
            where += f": {count} documents are in data.validation too and were left out"
        raise DataError(
            f"no document in {where}",
            allowed="at least one document with text other than white space",
            fix=f"add documents to the component, or {other}",
        )
    # A file that is gone raises here, and the progress stays: it may come back as it was.
    if source_fingerprint(config.source) != config.source_fingerprint:
        # Some of what was read may be of the other content, and nobody can tell which.
        for each in writers.values():
            each.forget_progress()
        refuse_changed_source(config.source, config.source_fingerprint)
    if writer.contaminated:
        found: dict[str, list[str]] = {}
        for _, name, document_id in writer.contaminated:
            found.setdefault(name, []).append(document_id)
        write_contamination(
            config.output_path, config.name, found, is_left_out=not config.allow_contamination
        )
    # Where documents came from, for people: no password in an address is kept.
    names = tuple(map(redactor(), parts))
    for each in reversed(writers.values()):  # the build's own store last
        each.finish(names, has_whole_parts=config.source.has_whole_parts)


# --- documents as token ids ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedBatch:
    """The tokens of some documents, one after the other, as the smallest type that fits.

    `lengths` counts the tokens of each document with its BOS and EOS. `loss_weights` is None when
    no document has any, which means 1 everywhere.
    """

    ids: Integer[np.ndarray, " L"]
    lengths: Int[np.ndarray, " N"]
    loss_weights: Float32[np.ndarray, " L"] | None

    def only(self, chosen: Bool[np.ndarray, " N"]) -> "EncodedBatch":
        """The chosen ones of the documents."""
        tokens = np.repeat(chosen, self.lengths)
        weights = self.loss_weights
        return EncodedBatch(
            ids=self.ids[tokens],
            lengths=self.lengths[chosen],
            loss_weights=None if weights is None else weights[tokens],
        )


def encode_documents(
    documents: Sequence[Document], tokenizer: Tokenizer | TokenizerProcesses
) -> EncodedBatch:
    """The documents as ids, each ended by EOS, and begun by BOS if the tokenizer has one.

    Ids that came tokenized stay as they are; EOS is appended unless it is their last. The weight of
    a position scores the prediction of the next token: a span's tokens are trained from the
    position before each, an EOS as part of the last span, and an appended EOS predicts nothing.
    """
    # All texts in one call: the tokenizer spreads it on cores.
    texts = [text for document in documents for text in document.texts]
    try:
        pieces = iter(tokenizer.encode_batch(texts) if texts else [])
    except UnencodableText as error:
        owners = [document.id for document in documents for _ in document.texts]
        error.within(f"document {owners[error.text_index]}")
        raise
    # Python sees documents, never single tokens. `array` takes in a list of ints three times as
    # fast as numpy does, and an `array` as it is.
    line, lengths = array("I"), np.zeros(len(documents), np.int64)
    weights: list[Float32[np.ndarray, " P"]] = []
    is_weighted = any(each.spans or each.loss_weights is not None for each in documents)
    for number, document in enumerate(documents):
        begin, piece_lengths = len(line), list[int]()
        if document.ids is not None:
            ids = document.ids
            outside = np.flatnonzero((ids < 0) | (ids >= tokenizer.vocab_size))
            if len(outside):
                raise DataError(
                    f"document {document.id} has the id {ids[outside[0]]} at {outside[0]}",
                    allowed=f"ids of the tokenizer, 0 to {tokenizer.vocab_size - 1}",
                    fix="set the tokenizer that the ids were made with, or tokenize again",
                )
            line.frombytes(ids.astype(np.uintc).tobytes())
            if not len(ids) or ids[-1] != tokenizer.eos_id:
                line.append(tokenizer.eos_id)
        else:
            if tokenizer.bos_id is not None:
                line.append(tokenizer.bos_id)
            for piece in islice(pieces, len(document.texts)):
                line.fromlist(piece) if isinstance(piece, list) else line.extend(piece)
                piece_lengths.append(len(piece))
            line.append(tokenizer.eos_id)
        length = lengths[number] = len(line) - begin
        if is_weighted:
            of_document = np.zeros(length, np.float32)
            if document.loss_weights is not None:
                of_document[: len(document.loss_weights)] = document.loss_weights
            elif document.spans:
                # One flag for every token after a BOS; the EOS counts as part of the last span.
                piece_lengths[-1] += 1
                scored = np.repeat([span.is_trained for span in document.spans], piece_lengths)
                # Without a BOS nothing predicts the first token.
                of_document[:-1] = scored[len(scored) - (length - 1) :]
            else:
                of_document[:] = 1
            weights.append(of_document)
    flat = np.frombuffer(line, np.uintc) if line else np.empty(0, np.uintc)
    return EncodedBatch(
        ids=flat.astype(smallest_dtype(tokenizer.vocab_size)),
        lengths=lengths,
        loss_weights=np.concatenate(weights) if is_weighted else None,
    )


def smallest_dtype(vocab_size: int) -> str:
    """The smallest unsigned dtype that holds every id of a vocabulary."""
    return np.min_scalar_type(vocab_size - 1).name


def encode_in_order(
    documents: Iterable[LocatedDocument], tokenizer: Tokenizer, folder: str, *, processes: int
) -> Generator[tuple[list[LocatedDocument], EncodedBatch], None, None]:
    """Batches of documents with their tokens; `folder` is where `tokenizer` is saved.

    A small source is tokenized in this process, with the threads of the tokenizers library. Close
    the generator if it is left early: its processes end with it.
    """
    batches = _batches(documents)
    characters = 0
    for batch in batches:
        yield batch, encode_documents([item.document for item in batch], tokenizer)
        characters += sum(item.document.size for item in batch)
        if processes > 1 and characters >= _CHARACTERS_ENCODED_HERE:
            break
    else:
        return
    with (
        TokenizerProcesses(tokenizer, folder, processes) as remote,
        ThreadPoolExecutor(processes) as threads,
    ):
        waiting: deque[tuple[list[LocatedDocument], Future[EncodedBatch]]] = deque()
        try:
            for batch in batches:
                documents_of_batch = [item.document for item in batch]
                future = threads.submit(encode_documents, documents_of_batch, remote)
                waiting.append((batch, future))
                if len(waiting) >= _BATCHES_PER_PROCESS * processes:
                    first, oldest = waiting.popleft()
                    yield first, oldest.result()
            for batch, future in waiting:
                yield batch, future.result()
        finally:
            threads.shutdown(cancel_futures=True)


def _batches(documents: Iterable[LocatedDocument]) -> Iterator[list[LocatedDocument]]:
    """Cut by size alone."""
    batch: list[LocatedDocument] = []
    characters = 0
    for item in documents:
        batch.append(item)
        characters += item.document.size
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


# --- writing ------------------------------------------------------------------------------------


class StoreWriter:
    """Appends documents to the store at `path`, from wherever an earlier writer was stopped."""

    def __init__(
        self,
        path: str,
        identity: StoreIdentity,
        tokenizer: Tokenizer,
        *,
        has_loss_weights: bool = False,
        shard_tokens: int = SHARD_TOKENS,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        self._path = path
        self._identity = identity
        self._eos_id = tokenizer.eos_id
        self._sizes = [shard_tokens, chunk_tokens]
        # What a progress must agree in to be continued.
        self._made_from = {
            "format_version": FORMAT_VERSION,
            "identity": asdict(identity),
            "sizes": self._sizes,
        }
        make_folder(path)
        progress: dict[str, Any] | None = None
        location = join(path, PROGRESS)
        if exists(location):
            noted: dict[str, Any] = read_json(location)
            # Earlier versions wrote none.
            if noted.pop("own_hash", None) not in (None, fingerprint(noted)):
                raise damaged(location, "it was changed after it was written")
            if all(noted.get(name) == value for name, value in self._made_from.items()):
                progress = noted
        self.is_resumed = progress is not None
        if progress is None:
            for name in _WRITTEN:
                remove_tree(join(path, name))
            progress = {"num_tokens": 0, "num_documents": 0, "next": 0, "checksums": {}}
        self.num_documents: int = progress["num_documents"]  # all that were appended
        self.next_position: Position = position_of(progress["next"])
        # Documents that are in a validation set too: where, the set, and the id.
        self.contaminated: list[tuple[int, str, str]] = [
            (place, name, document_id)
            for place, name, document_id in progress.get("contaminated", [])
        ]
        self._num_tokens: int = progress["num_tokens"]  # on disk
        self._num_ends: int = progress["num_documents"]  # on disk
        self._checksums: dict[str, list[str]] = {}
        self._chunk_checksums: dict[str, list[UInt32[np.ndarray, " C"]]] = {}
        if self.is_resumed:
            self._compare_checksums(progress["checksums"])
        dtypes = {TOKENS: smallest_dtype(tokenizer.vocab_size), LOSS_WEIGHTS: "float32"}
        dtypes |= {DOCUMENT_ENDS: "int64", LOCATIONS: "int64"}
        if not has_loss_weights:
            del dtypes[LOSS_WEIGHTS]
        is_new = not self.is_resumed
        self._arrays = {
            name: self._array(name, dtype, is_new=is_new) for name, dtype in dtypes.items()
        }
        self._pending = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}
        # The document that was being written when the progress was noted begins before its end.
        self._line_end = 0
        if self.num_documents:
            last = np.asarray([self.num_documents - 1])
            ends = FlatArray.open(join(path, DOCUMENT_ENDS))
            self._line_end = int(ends.read(last, np.ones(1, int))[0])
        self._skip = self._num_tokens - self._line_end

    def append(self, locations: Int[np.ndarray, " N"], encoded: EncodedBatch) -> None:
        """Append documents, each with its end, and note the progress after whole shards."""
        ends = self._line_end + np.cumsum(encoded.lengths)
        more = {TOKENS: encoded.ids[self._skip :], DOCUMENT_ENDS: ends, LOCATIONS: locations}
        if LOSS_WEIGHTS in self._arrays:
            weights = encoded.loss_weights
            weights = np.ones(len(encoded.ids), np.float32) if weights is None else weights
            more[LOSS_WEIGHTS] = weights[self._skip :]
        for name, values in more.items():
            waiting = self._pending[name]
            self._pending[name] = np.concatenate([waiting, values.astype(waiting.dtype)])
        self._line_end, self._skip = int(ends[-1]), max(self._skip - len(encoded.ids), 0)
        self.num_documents += len(ends)
        # Whole shards only: a shard written twice would be read back to be written again.
        shard_tokens = self._sizes[0]
        whole = len(self._pending[TOKENS]) // shard_tokens * shard_tokens
        if not whole:
            return
        self._write(whole)
        waiting = self._pending[LOCATIONS]
        next_location = int(waiting[0] if len(waiting) else locations[-1] + 1)
        progress = {
            **self._made_from,
            "num_tokens": self._num_tokens,
            "num_documents": self._num_ends,
            "next": next_location,
            "checksums": self._checksums,
        }
        contaminated = [each for each in self.contaminated if each[0] < next_location]
        if contaminated:
            progress["contaminated"] = contaminated
        progress["own_hash"] = fingerprint(progress)
        write_json_atomic(join(self._path, PROGRESS), progress, indent=None)

    def finish(self, parts: tuple[str, ...], *, has_whole_parts: bool) -> None:
        """Write what is left, the marks and the names of the parts, and last the manifest."""
        self._write(len(self._pending[TOKENS]))
        marks = marks_of(FlatArray.open(join(self._path, DOCUMENT_ENDS)))
        self._array(DOCUMENT_MARKS, "int64", is_new=True).write(0, marks)
        for name in (DOCUMENT_ENDS, DOCUMENT_MARKS, LOCATIONS):
            self._add_checksums(name, FlatArray.open(join(self._path, name)).shards())
        names = {"names": list(parts), "has_whole_parts": has_whole_parts}
        write_json_atomic(join(self._path, PARTS), names, indent=None)
        checksums = {**self._checksums, PARTS: [fingerprint(names)]}
        for array_name, found in self._chunk_checksums.items():
            content = np.concatenate([np.empty(0, np.uint32), *found]).view(np.uint8)
            name = join(array_name, CHUNK_CHECKSUMS)
            write_bytes_atomic(join(self._path, name), content.tobytes())
            checksums[name] = [checksum(content)]
        manifest = StoreManifest(
            format_version=FORMAT_VERSION,
            identity=self._identity,
            eos_id=self._eos_id,
            num_tokens=self._num_tokens,
            num_documents=self.num_documents,
            dtype=self._pending[TOKENS].dtype.name,
            has_loss_weights=LOSS_WEIGHTS in self._arrays,
            checksums=checksums,
        )
        manifest = replace(manifest, own_hash=manifest.hash_of_content())
        write_json_atomic(join(self._path, MANIFEST), asdict(manifest))
        self.forget_progress()

    def forget_progress(self) -> None:
        """Let the next writer begin anew: what was appended is not to be relied on."""
        remove_tree(join(self._path, PROGRESS))

    def _write(self, count: int) -> None:
        """Put the first `count` pending tokens on disk, and the documents that end in them."""
        shard_len = self._sizes[0]
        for name in (TOKENS, LOSS_WEIGHTS):
            if name not in self._arrays:
                continue
            values = self._take(name, count)
            firsts = range(0, count, shard_len)
            self._add_checksums(name, (values[first : first + shard_len] for first in firsts))
            self._arrays[name].write(self._num_tokens, values)
        self._num_tokens += count
        ends = self._pending[DOCUMENT_ENDS]
        whole = int(np.searchsorted(ends, self._num_tokens, side="right"))
        for name in (DOCUMENT_ENDS, LOCATIONS):
            self._arrays[name].write(self._num_ends, self._take(name, whole))
        self._num_ends += whole

    def _take(self, name: str, count: int) -> Num[np.ndarray, " L"]:
        values, self._pending[name] = np.split(self._pending[name], [count])
        return values

    def _compare_checksums(self, noted: dict[str, list[str]]) -> None:
        """Make the checksums of the shards that an earlier writer has noted, from the shards."""
        total = sum(map(len, noted.values()))
        with progress_bar(f"checking {self._path}", total=total, unit="shards") as advance:
            for name, expected in noted.items():
                path = join(self._path, name)
                for shard in islice(FlatArray.open(path).shards(), len(expected)):
                    self._add_checksums(name, [shard])
                    advance(1)
                if self._checksums[name] != expected:
                    raise damaged(path, "other numbers than the build has noted the checksums of")

    def _add_checksums(self, name: str, shards: Iterable[Num[np.ndarray, " L"]]) -> None:
        by_shard = self._checksums.setdefault(name, [])
        by_chunk = self._chunk_checksums.setdefault(name, [])
        for numbers in shards:
            by_shard.append(checksum(numbers))
            by_chunk.append(chunk_checksums(numbers, self._sizes_of(name)[1]))

    def _array(self, name: str, dtype: str, *, is_new: bool) -> FlatArrayWriter:
        shard_len, chunk_len = self._sizes_of(name)
        return FlatArrayWriter(
            join(self._path, name), dtype, shard_len=shard_len, chunk_len=chunk_len, is_new=is_new
        )

    def _sizes_of(self, name: str) -> list[int]:
        is_by_token = name in (TOKENS, LOSS_WEIGHTS)
        return self._sizes if is_by_token else [SHARD_DOCUMENTS, CHUNK_DOCUMENTS]
