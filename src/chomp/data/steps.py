"""A data config as executor steps: a tokenizer, and one token store per component and split."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from chomp.data.config import LmComponentConfig, LmDataConfig
from chomp.data.documents import Split
from chomp.data.sources.source import Source, source_fingerprint
from chomp.data.store.build import StoreBuildConfig, build_store
from chomp.data.tokenizer_build import TokenizerBuildConfig, build_tokenizer, file_hash
from chomp.errors import DataError, StorageError
from chomp.executor import ExecutorStep, Resources, output_path_of, this_output_path, versioned
from chomp.tokenize import load_tokenizer

Fingerprint = Callable[[str, Source], str]

# What a GPU would do nothing for must not keep one from a step that trains.
_WANTED = Resources(gpus=0)


def named_fingerprint(name: str, source: Source) -> str:
    """The fingerprint of a component's source; an error names the component."""
    try:
        return source_fingerprint(source)
    except (DataError, StorageError) as error:
        error.within(f"component {name!r}")
        raise


def with_data_steps(data: LmDataConfig) -> LmDataConfig:
    """`data` with every path that is not given pointing at a step that builds what belongs there.

    The steps are identified by the content of the sources: a changed file is another store. A
    component of weight 0 gets no train store and no part in the tokenizer, and all its documents
    are in its validation store; a stream has no train store either.
    """
    # A source is read once for all of its steps; one whose paths are all given is not read.
    fingerprint_of = cache(named_fingerprint)
    tokenizer = data.tokenizer.path or output_path_of(tokenizer_step(data, fingerprint_of))
    weights = data.weights

    def with_stores(name: str, component: LmComponentConfig) -> LmComponentConfig:
        def store(split: Split) -> str:
            return output_path_of(store_step(name, split, data, tokenizer, fingerprint_of))

        needs_train_store = weights[name] > 0 and component.stream is None
        train = component.train_store or (store("train") if needs_train_store else None)
        validation = component.validation_store or store("validation")
        return replace(component, train_store=train, validation_store=validation)

    components = {name: with_stores(name, part) for name, part in data.components.items()}
    return replace(data, tokenizer=replace(data.tokenizer, path=tokenizer), components=components)


def tokenizer_step(
    data: LmDataConfig, fingerprint_of: Fingerprint = named_fingerprint
) -> ExecutorStep:
    """The step that makes the tokenizer; a BPE learns from the train split of every component."""
    # Only a BPE reads documents, so only there are sources part of the identity.
    weights = data.weights if data.tokenizer.kind == "bpe" else {}
    names = [name for name in sorted(weights) if weights[name] > 0]
    trained_on = [data.components[name] for name in names]
    sources = tuple(data.components[name].required_source(name) for name in names)
    file = data.tokenizer.file
    return ExecutorStep(
        name=f"tokenizer/{data.tokenizer.kind}",
        description="make the tokenizer",
        fn=build_tokenizer,
        resources=_WANTED,
        config=TokenizerBuildConfig(
            output_path=this_output_path(),
            tokenizer=versioned(data.tokenizer),
            file_hash=versioned(None if file is None else file_hash(file)),
            sources=sources,  # where they are does not count, what they hold does
            formats=versioned(tuple(component.format for component in trained_on)),
            source_fingerprints=versioned(tuple(map(fingerprint_of, names, sources))),
            validation_fraction=versioned(data.validation_fraction),
        ),
    )


def store_step(
    name: str,
    split: Split,
    data: LmDataConfig,
    tokenizer_path: str,
    fingerprint_of: Fingerprint = named_fingerprint,
) -> ExecutorStep:
    """The step that turns one split of one component into tokens."""
    component = data.components[name]
    source = component.required_source(name)
    # All of a stream's held-out documents would take a reading of the whole stream.
    is_bounded = component.stream is not None and split == "validation"
    most = component.stream.max_validation_documents if component.stream and is_bounded else None
    return ExecutorStep(
        name=f"tokens/{name}-{split}",
        description=f"tokenize {name}, {split} split",
        fn=build_store,
        resources=_WANTED,
        config=StoreBuildConfig(
            output_path=this_output_path(),
            name=versioned(name),
            source=source,  # where it is does not count, what it holds does
            source_fingerprint=versioned(fingerprint_of(name, source)),
            format=versioned(component.format),
            split=versioned(split),
            validation_fraction=versioned(data.held_out_fraction(name)),
            max_documents=versioned(most),
            tokenizer_path=tokenizer_path,
            tokenizer_hash=versioned(_given_tokenizer_hash(data)),
        ),
    )


def _given_tokenizer_hash(data: LmDataConfig) -> str | None:
    # A tokenizer that a step builds is identified by that step. One that is given by its path has
    # to be by its content: the path alone enters no hash.
    path = data.tokenizer.path
    return load_tokenizer(path).content_hash if isinstance(path, str) else None
