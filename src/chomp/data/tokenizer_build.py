"""Building a run's tokenizer: trained on its documents, or taken from a file or a hub."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from chomp.config import Config
from chomp.data.documents import Document, documents_of_split
from chomp.data.progress import progress_bar
from chomp.data.sources.formats import Format
from chomp.data.sources.source import Source, source_documents
from chomp.data.store.build import refuse_changed_source
from chomp.data.tokenizer_config import TokenizerConfig
from chomp.errors import DataError
from chomp.storage import read_bytes
from chomp.tokenize import (
    ByteTokenizer,
    Tokenizer,
    load_hub_tokenizer,
    save_tokenizer,
    tokenizer_from_json_file,
    train_bpe,
)


@dataclass(frozen=True, kw_only=True)
class TokenizerBuildConfig(Config):
    """A tokenizer for a run; a BPE is trained on the train split of its sources."""

    output_path: str
    tokenizer: TokenizerConfig
    file_hash: str | None = None  # content of `tokenizer.file` when the build was planned
    sources: tuple[Source, ...] = ()
    formats: tuple[Format, ...] = ()
    source_fingerprints: tuple[str, ...] = ()  # content of each source when the build was planned
    validation_fraction: float = 0.05


def build_tokenizer(config: TokenizerBuildConfig) -> None:
    """Train or fetch the tokenizer, and save it. Held-out documents are not looked at."""
    save_tokenizer(_tokenizer(config), config.output_path)


def file_hash(path: str) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def _tokenizer(config: TokenizerBuildConfig) -> Tokenizer:
    wanted = config.tokenizer
    if wanted.kind == "byte":
        return ByteTokenizer()
    if wanted.kind == "json":
        _refuse_changed_file(str(wanted.file), config.file_hash)
        return tokenizer_from_json_file(str(wanted.file), eos=wanted.eos, bos=wanted.bos)
    if wanted.kind == "hub":
        return load_hub_tokenizer(
            str(wanted.name), revision=wanted.revision, eos=wanted.eos, bos=wanted.bos
        )
    with progress_bar("training the tokenizer") as advance:
        texts = _counted(_training_texts(config), lambda: advance(1))
        trained = train_bpe(texts, vocab_size=wanted.vocab_size)
    for source, planned in zip(config.sources, config.source_fingerprints, strict=True):
        refuse_changed_source(source, planned)
    return trained


def _training_texts(config: TokenizerBuildConfig) -> Iterator[str]:
    most = config.tokenizer.training_documents
    documents = chain.from_iterable(
        islice(
            documents_of_split(
                source_documents(source, format), "train", config.validation_fraction
            ),
            most,
        )
        for source, format in zip(config.sources, config.formats, strict=True)
    )
    # Documents that came tokenized have no text to learn from.
    texts = (_text_of(document) for document in documents if document.ids is None)
    first = next(texts, None)
    if first is None:
        raise DataError(
            "there is no text to train a tokenizer on",
            allowed="at least one document in the train split of a component",
            fix="add documents, or set data.tokenizer.kind=byte",
        )
    return chain([first], texts)


def _text_of(document: Document) -> str:
    return document.text or "".join(span.text for span in document.spans)


def _counted(texts: Iterator[str], count: Callable[[], None]) -> Iterator[str]:
    for text in texts:
        count()
        yield text


def _refuse_changed_file(path: str, planned: str | None) -> None:
    if planned is not None and file_hash(path) != planned:
        raise DataError(
            f"{path} has changed since this build was planned",
            allowed="the file as it was when this build was planned",
            fix="run the same command again: it uses the file that is there now",
        )
