"""A data config as executor steps: a tokenizer, and one token store per component and split."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from chomp.data.build import StoreBuildConfig, TokenizerBuildConfig, build_store, build_tokenizer
from chomp.data.config import LmComponentConfig, LmDataConfig
from chomp.data.documents import Split
from chomp.data.sources import Source, source_fingerprint
from chomp.executor import ExecutorStep, output_path_of, this_output_path, versioned
from chomp.tokenize import load_tokenizer

Fingerprint = Callable[[Source], str]


def with_data_steps(data: LmDataConfig) -> LmDataConfig:
    """`data` with every path that is not given pointing at a step that builds what belongs there.

    The steps are identified by the content of the sources: a changed file is another store. A
    component of weight 0 gets no train store, and no part in the tokenizer.
    """
    # A source is read once for all of its steps; one whose paths are all given is not read.
    fingerprint_of = cache(source_fingerprint)
    tokenizer = data.tokenizer.path or output_path_of(tokenizer_step(data, fingerprint_of))

    def with_stores(name: str, component: LmComponentConfig) -> LmComponentConfig:
        def store(split: Split) -> str:
            return output_path_of(store_step(name, split, data, tokenizer, fingerprint_of))

        train = component.train_store or (store("train") if component.weight > 0 else None)
        validation = component.validation_store or store("validation")
        return replace(component, train_store=train, validation_store=validation)

    components = {name: with_stores(name, part) for name, part in data.components.items()}
    return replace(data, tokenizer=replace(data.tokenizer, path=tokenizer), components=components)


def tokenizer_step(
    data: LmDataConfig, fingerprint_of: Fingerprint = source_fingerprint
) -> ExecutorStep:
    """The step that trains the tokenizer on the train split of every component trained on."""
    # The byte tokenizer reads nothing, so no source is part of its identity.
    weights = data.weights if data.tokenizer.kind == "bpe" else {}
    trained_on = sorted(name for name, weight in weights.items() if weight > 0)
    sources = tuple(data.components[name].source for name in trained_on)
    return ExecutorStep(
        name=f"tokenizer/{data.tokenizer.kind}",
        description="train the tokenizer",
        fn=build_tokenizer,
        config=TokenizerBuildConfig(
            output_path=this_output_path(),
            kind=versioned(data.tokenizer.kind),
            vocab_size=versioned(data.tokenizer.vocab_size),
            sources=versioned(sources),
            source_fingerprints=versioned(tuple(map(fingerprint_of, sources))),
            validation_fraction=versioned(data.validation_fraction),
        ),
    )


def store_step(
    name: str,
    split: Split,
    data: LmDataConfig,
    tokenizer_path: str,
    fingerprint_of: Fingerprint = source_fingerprint,
) -> ExecutorStep:
    """The step that turns one split of one component into tokens."""
    source = data.components[name].source
    return ExecutorStep(
        name=f"tokens/{name}-{split}",
        description=f"tokenize {name}, {split} split",
        fn=build_store,
        config=StoreBuildConfig(
            output_path=this_output_path(),
            name=versioned(name),
            source=versioned(source),
            source_fingerprint=versioned(fingerprint_of(source)),
            split=versioned(split),
            validation_fraction=versioned(data.validation_fraction),
            tokenizer_path=tokenizer_path,
            tokenizer_hash=versioned(_given_tokenizer_hash(data)),
        ),
    )


def _given_tokenizer_hash(data: LmDataConfig) -> str | None:
    # A tokenizer that a step builds is identified by that step. One that is given by its path has
    # to be by its content: the path alone enters no hash.
    path = data.tokenizer.path
    return load_tokenizer(path).content_hash if isinstance(path, str) else None
