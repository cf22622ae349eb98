"""A data config as executor steps: a tokenizer, and one token store per component and split.

Also the build of the tokenizer, and a look at the first document of every component before
anything is built.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

from chomp.config import Config, setting
from chomp.data.config import LmDataConfig, TokenizerConfig
from chomp.data.contamination import (
    ValidationSet,
    keys_of_sets,
    sets_fingerprint,
    validation_sets,
)
from chomp.data.documents import Split, content_key, documents_of_split
from chomp.data.formats import Format
from chomp.data.huggingface import HuggingFaceSource
from chomp.data.progress import progress_bar
from chomp.data.source_files import optional_package
from chomp.data.sources import (
    Source,
    refuse_changed_source,
    source_documents,
    source_fingerprint,
)
from chomp.data.store.build import StoreBuildConfig, build_store, encode_documents
from chomp.data.store.store import MANIFEST
from chomp.errors import DataError, StorageError, require
from chomp.executor import ExecutorStep, Resources, output_path_of, this_output_path, versioned
from chomp.storage import exists, join, read_bytes
from chomp.tokenize import (
    DESCRIPTION,
    ByteTokenizer,
    Tokenizer,
    load_hub_tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenizer_from_json_file,
    train_bpe,
)

log = logging.getLogger(__name__)

# What a GPU would do nothing for must not keep one from a step that trains.
_RESOURCES = Resources(gpus=0)


def with_data_steps(data: LmDataConfig) -> LmDataConfig:
    """`data` with every path that is not given pointing at a step that builds what belongs there.

    The steps are identified by the content of the sources: a changed file is another store. A
    component of weight 0 gets no train store and no part in the tokenizer, and all its documents
    are in its validation store; a stream has no train store either.
    """

    # Asked once for all steps of a source; one whose paths are all given is not read.
    @cache
    def fingerprint_of(name: str, source: Source) -> str:
        return source_fingerprint(source, component=name)

    weights = data.weights
    sets = validation_sets(data, fingerprint_of)
    # Of two sets with the same content the last is named.
    set_of = {each.source_fingerprint: each.name for each in sets}
    for name, component in data.components.items():
        if not sets or weights[name] == 0:
            continue
        if component.train_store is not None:
            log.warning(
                "data.components.%s.train_store is given: its documents are NOT COMPARED with "
                "those of data.validation",
                name,
            )
        elif component.source is not None:
            same = set_of.get(fingerprint_of(name, component.source))
            require(
                same is None or data.allow_contamination,
                f"data.validation.{same} with the same content as data.components.{name}",
                allowed="a validation set that is not the training data",
                fix="correct one of the paths, or hold out a part of the component with "
                "data.validation_fraction",
            )
    kept_out: dict[str, Any] = {}  # the fields of a build that say what training must not see
    if sets:
        hashed = sets_fingerprint(sets, allow_contamination=data.allow_contamination)
        kept_out = {
            "validation_sets": sets,  # where they are does not count, what they hold does
            "allow_contamination": data.allow_contamination,
            "kept_out": versioned(hashed),
        }
    path = data.tokenizer.path
    tokenizer = path or output_path_of(_tokenizer_step(data, fingerprint_of, kept_out))

    # A tokenizer that a step builds is identified by that step. One that is given by its path has
    # to be by its content: the path alone enters no hash.
    @cache
    def tokenizer_hash() -> str | None:
        return load_tokenizer(path).content_hash if isinstance(path, str) else None

    def store(name: str, split: Split) -> str:
        """The output of the step that turns one split of a component into tokens."""
        component = data.components[name]
        source = component.required_source(name)
        # All of a stream's held-out documents would take a reading of the whole stream.
        stream = component.stream if split == "validation" else None
        most = None if stream is None else stream.max_validation_documents
        fraction = data.held_out_fraction(name)
        step = ExecutorStep(
            name=f"tokens/{name}-{split}",
            description=f"tokenize {name}, {split} split",
            fn=build_store,
            resources=_RESOURCES,
            config=StoreBuildConfig(
                output_path=this_output_path(),
                name=versioned(name),
                source=source,  # where it is does not count, what it holds does
                source_fingerprint=versioned(fingerprint_of(name, source)),
                format=versioned(component.format),
                split=versioned(split),
                validation_fraction=versioned(fraction),
                max_documents=versioned(most),
                tokenizer_path=tokenizer,
                tokenizer_hash=versioned(tokenizer_hash()),
                with_held_out=component.validation_store is None and fraction > 0,
                **(kept_out if split == "train" else {}),
            ),
        )
        return output_path_of(step)

    components = {}
    for name, component in data.components.items():
        train, validation = component.train_store, component.validation_store
        if train is None and weights[name] > 0 and component.stream is None:
            train = store(name, "train")
        if validation is None and data.held_out_fraction(name) > 0:
            validation = store(name, "validation")
        components[name] = replace(component, train_store=train, validation_store=validation)
    return replace(data, tokenizer=replace(data.tokenizer, path=tokenizer), components=components)


def _tokenizer_step(
    data: LmDataConfig, fingerprint_of: Callable[[str, Source], str], kept_out: dict[str, Any]
) -> ExecutorStep:
    """The step that makes the tokenizer; a BPE learns from the train split of every component."""
    # Only a BPE reads documents, so only there are sources part of the identity.
    weights = data.weights if data.tokenizer.kind == "bpe" else {}
    names = [name for name in sorted(weights) if weights[name] > 0]
    sources = tuple(data.components[name].required_source(name) for name in names)
    file = data.tokenizer.file
    return ExecutorStep(
        name=f"tokenizer/{data.tokenizer.kind}",
        description="make the tokenizer",
        fn=build_tokenizer,
        resources=_RESOURCES,
        config=TokenizerBuildConfig(
            output_path=this_output_path(),
            tokenizer=versioned(data.tokenizer),
            file_hash=versioned(None if file is None else _file_hash(file)),
            sources=sources,  # where they are does not count, what they hold does
            formats=versioned(tuple(data.components[name].format for name in names)),
            source_fingerprints=versioned(tuple(map(fingerprint_of, names, sources))),
            validation_fraction=versioned(data.validation_fraction),
            **(kept_out if names else {}),
        ),
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
    validation_fraction: float = setting(default=0.05, ge=0, lt=1)
    # As in `StoreBuildConfig`: a BPE learns nothing from validation sets either.
    validation_sets: tuple[ValidationSet, ...] = setting(default=(), is_added=True)
    allow_contamination: bool = setting(default=False, is_added=True)
    kept_out: str | None = setting(default=None, is_added=True)


def build_tokenizer(config: TokenizerBuildConfig) -> None:
    """Train or fetch the tokenizer, and save it. Held-out documents are not looked at."""
    planned, file = config.file_hash, config.tokenizer.file
    if planned is not None and file is not None and _file_hash(file) != planned:
        raise DataError(
            f"{file} has changed since this build was planned",
            allowed="the file as it was when this build was planned",
            fix="run the same command again: it uses the file that is there now",
        )
    tokenizer = early_tokenizer(config.tokenizer)
    if tokenizer is None:
        with progress_bar("training the tokenizer") as advance:
            texts = _training_texts(config, advance)
            tokenizer = train_bpe(texts, vocab_size=config.tokenizer.vocab_size)
        for source, fingerprint in zip(config.sources, config.source_fingerprints, strict=True):
            refuse_changed_source(source, fingerprint)
    save_tokenizer(tokenizer, config.output_path)


def _training_texts(config: TokenizerBuildConfig, advance: Callable[[int], None]) -> Iterator[str]:
    keys = {} if config.allow_contamination else keys_of_sets(config.validation_sets)
    is_empty = True
    for source, format in zip(config.sources, config.formats, strict=True):
        documents = source_documents(source, format)
        trained = documents_of_split(documents, "train", config.validation_fraction)
        kept = (each for each in trained if not keys or content_key(each) not in keys)
        for document in islice(kept, config.tokenizer.training_documents):
            if document.ids is None:  # documents that came tokenized have no text to learn from
                is_empty = False
                advance(1)
                yield "".join(document.texts)
    if is_empty:
        raise DataError(
            "there is no text to train a tokenizer on",
            allowed="at least one document in the train split of a component",
            fix="add documents, or set data.tokenizer.kind=byte",
        )


def _file_hash(path: str) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


# --- before anything is built -------------------------------------------------------------------


def early_tokenizer(config: TokenizerConfig, *, is_patient: bool = True) -> Tokenizer | None:
    """The tokenizer before its step has run; None for one that is trained on the documents.

    Raises `StorageError` if it is on a hub that cannot be reached; asked once unless `is_patient`.
    """
    if config.path is not None and exists(join(config.path, DESCRIPTION)):
        return load_tokenizer(config.path)
    if config.kind == "byte":
        return ByteTokenizer()
    if config.kind == "json":
        return tokenizer_from_json_file(str(config.file), eos=config.eos, bos=config.bos)
    if config.kind == "hub":
        return load_hub_tokenizer(
            str(config.name),
            revision=config.revision,
            eos=config.eos,
            bos=config.bos,
            is_patient=is_patient,
        )
    return None


def read_first_documents(data: LmDataConfig, tokenizer: Tokenizer | None) -> list[str]:
    """Read a document of each component that is not built yet; the names of those left out.

    A wrong key, a file of another kind or a text that the tokenizer cannot take shows here, in a
    moment, and not after hours of waiting for a machine. A stream from a hub is left out: a dry run
    needs no network. Raises what a build would raise at its first document.
    """
    left_out: list[str] = []
    for name, component in data.components.items():
        source = component.source
        stores = [each for each in (component.train_store, component.validation_store) if each]
        is_read = component.stream is not None or not stores
        is_built = not is_read and all(exists(join(store, MANIFEST)) for store in stores)
        if source is None or is_built:
            continue
        try:
            if isinstance(source, HuggingFaceSource) and source.is_stream_of_hub:
                optional_package("datasets", extra="hf", purpose=f"the source {source.path}")
                left_out.append(name)
                continue
            document = next(source_documents(source, component.format), None)
            if document is None:
                raise DataError(
                    f"no document in {source}"[:500],
                    allowed="at least one document",
                    fix="add documents to the component, or remove it",
                )
            if tokenizer is not None:
                encode_documents([document], tokenizer)
        except (DataError, StorageError) as error:
            error.within(f"component {name!r}")
            raise
    return left_out
