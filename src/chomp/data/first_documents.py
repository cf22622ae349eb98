"""The first document of every component, read before anything is built.

A wrong key, a file of another kind or a text that the tokenizer cannot take shows here, in a
moment, and not after hours of waiting for a machine.
"""

from collections.abc import Sequence

from chomp.data.config import LmComponentConfig, LmDataConfig
from chomp.data.sources.hugging_face import HuggingFaceSource
from chomp.data.sources.local_files import optional_package
from chomp.data.sources.source import source_documents
from chomp.data.store.encoding import encoded
from chomp.data.store.token_store import MANIFEST
from chomp.data.tokenizer_config import TokenizerConfig
from chomp.errors import DataError, StorageError
from chomp.storage import exists, join
from chomp.tokenize import (
    ByteTokenizer,
    Tokenizer,
    load_hub_tokenizer,
    load_tokenizer,
    tokenizer_from_json_file,
)
from chomp.tokenize.load import DESCRIPTION


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

    A stream from a hub is left out: a dry run needs no network. Raises what a build would raise at
    its first document; with `tokenizer`, also what it would raise for its text.
    """
    left_out: list[str] = []
    for name, component in data.components.items():
        source = component.source
        if source is None or _is_built(component):
            continue
        try:
            if isinstance(source, HuggingFaceSource) and source.is_stream_of_hub:
                optional_package("datasets", extra="hf", purpose=f"the source {source.path}")
                left_out.append(name)
            else:
                _read_first(component, tokenizer)
        except (DataError, StorageError) as error:
            error.within(f"component {name!r}")
            raise
    return left_out


def _read_first(component: LmComponentConfig, tokenizer: Tokenizer | None) -> None:
    source = component.source
    assert source is not None, "a component that has to be built has a source"
    document = next(source_documents(source, component.format), None)
    if document is None:
        raise DataError(
            f"no document in {source}"[:500],
            allowed="at least one document",
            fix="add documents to the component, or remove it",
        )
    if tokenizer is not None:
        encoded([document], tokenizer)


def _is_built(component: LmComponentConfig) -> bool:
    """Whether nothing of the source will be read any more."""
    wanted: Sequence[str | None] = [component.train_store, component.validation_store]
    stores = [store for store in wanted if store is not None]
    is_read = component.stream is not None or not stores
    return not is_read and all(exists(join(store, MANIFEST)) for store in stores)
