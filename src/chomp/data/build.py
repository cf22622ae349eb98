"""Building what training reads: a tokenizer folder, and token stores. Both are executor steps.

Nothing looks finished before it is: the file that makes a folder valid is written last. And nothing
is filed under content it was not made from: a source that changed since the plan is an error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from chomp.config import Config
from chomp.data.documents import Split, documents_of_split
from chomp.data.sources import Source, source_documents, source_fingerprint
from chomp.data.store import MANIFEST, read_manifest
from chomp.data.store_writer import StoreWriter
from chomp.errors import DataError, message
from chomp.storage import exists, join
from chomp.tokenize import ByteTokenizer, Tokenizer, load_tokenizer, save_tokenizer, train_bpe

# Documents handed to the tokenizer at once: enough to keep all cores busy.
_DOCUMENTS_PER_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class TokenizerBuildConfig(Config):
    """A tokenizer for a run, trained on the train split of its sources."""

    output_path: str
    kind: Literal["bpe", "byte"]
    vocab_size: int
    sources: tuple[Source, ...]
    source_fingerprints: tuple[str, ...]  # content of each source when the build was planned
    validation_fraction: float


@dataclass(frozen=True, kw_only=True)
class StoreBuildConfig(Config):
    """One split of one component as tokens."""

    output_path: str
    name: str
    source: Source
    source_fingerprint: str  # its content when the build was planned
    split: Split
    validation_fraction: float
    tokenizer_path: str
    # Its content when the build was planned; None: a step of the same plan builds it.
    tokenizer_hash: str | None = None


def build_tokenizer(config: TokenizerBuildConfig) -> None:
    """Train and save the tokenizer. Held-out documents are not looked at."""
    tokenizer: Tokenizer = ByteTokenizer()
    if config.kind == "bpe":
        with _progress() as progress:
            task = progress.add_task("training the tokenizer", total=None)
            texts = _counted(_training_texts(config), lambda: progress.advance(task))
            tokenizer = train_bpe(texts, vocab_size=config.vocab_size)
        for source, planned in zip(config.sources, config.source_fingerprints, strict=True):
            _refuse_changed_source(source, planned)
    save_tokenizer(tokenizer, config.output_path)


def build_store(config: StoreBuildConfig) -> None:
    """Tokenize one split of a source into the store at `output_path`.

    A store that was left unfinished is begun again; one that is finished is left as it is.
    """
    tokenizer = load_tokenizer(config.tokenizer_path)
    _refuse_changed_tokenizer(config, tokenizer)
    if _is_built(config, tokenizer):
        return
    documents = documents_of_split(
        source_documents(config.source), config.split, config.validation_fraction
    )
    writer = StoreWriter(config.output_path, tokenizer)
    with _progress() as progress:
        task = progress.add_task(f"tokenizing {config.name}, {config.split} split", total=None)
        while batch := list(islice(documents, _DOCUMENTS_PER_BATCH)):
            writer.append(batch)
            progress.advance(task, len(batch))
    if writer.num_documents == 0:
        raise DataError(
            message(
                given=f"component {config.name!r} has no document in its {config.split} split",
                allowed="at least one document in each split",
                fix="give it more documents, or another validation_fraction",
            )
        )
    _refuse_changed_source(config.source, config.source_fingerprint)
    writer.finish(
        name=config.name,
        split=config.split,
        validation_fraction=config.validation_fraction,
        source_fingerprint=config.source_fingerprint,
    )


def _training_texts(config: TokenizerBuildConfig) -> Iterator[str]:
    documents = documents_of_split(
        chain.from_iterable(map(source_documents, config.sources)),
        "train",
        config.validation_fraction,
    )
    first = next(documents, None)
    if first is None:
        raise DataError(
            message(
                given="no document to train a tokenizer on",
                allowed="at least one document in the train split of a component",
                fix="give a component documents, or set data.tokenizer.kind=byte",
            )
        )
    return (document.text for document in chain([first], documents))


def _counted(texts: Iterator[str], count: Callable[[], None]) -> Iterator[str]:
    for text in texts:
        count()
        yield text


def _is_built(config: StoreBuildConfig, tokenizer: Tokenizer) -> bool:
    """Whether this very store is finished; any other finished store in its place is an error."""
    if not exists(join(config.output_path, MANIFEST)):
        return False
    found = read_manifest(config.output_path)
    wanted = {
        "name": config.name,
        "split": config.split,
        "validation_fraction": config.validation_fraction,
        "source_fingerprint": config.source_fingerprint,
        "tokenizer_hash": tokenizer.content_hash,
    }
    other = [field for field, value in wanted.items() if getattr(found, field) != value]
    if other:
        raise DataError(
            message(
                given=f"a finished store with another {', '.join(other)} at {config.output_path}",
                allowed="a folder without a finished store, or with the one to be built",
                fix=f"choose another folder, or delete {config.output_path} first",
            )
        )
    return True


def _refuse_changed_source(source: Source, planned: str) -> None:
    found = source_fingerprint(source)
    if found != planned:
        raise DataError(
            message(
                given=f"{source} with content {found[:12]}",
                allowed=f"{planned[:12]}, its content when this build was planned",
                fix="let whatever writes there finish, then run the same command again",
            )
        )


def _refuse_changed_tokenizer(config: StoreBuildConfig, tokenizer: Tokenizer) -> None:
    planned = config.tokenizer_hash
    if planned is not None and planned != tokenizer.content_hash:
        raise DataError(
            message(
                given=f"tokenizer {config.tokenizer_path} ({tokenizer.content_hash[:12]})",
                allowed=f"{planned[:12]}, its content when this build was planned",
                fix="run the same command again: it plans with the tokenizer that is there now",
            )
        )


def _progress() -> Progress:
    console = Console()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:.0f} documents"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Where nothing can be redrawn, in a log file, it would only leave a stray line.
        disable=not console.is_interactive,
    )
