"""Documents and the split that decides which of them are held out."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation"]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text with a name that finds it again.

    `split_key` is what the held-out split hashes: the text itself, unless documents that share
    text (a source file and its docstrings) must fall on the same side.
    """

    id: str
    text: str
    split_key: str | None = None


def is_held_out(document: Document, validation_fraction: float) -> bool:
    """Whether the document belongs to the validation split.

    A function of the document alone: adding, removing or reordering others moves nothing, and
    documents with one key (equal texts, unless they have keys of their own) are on one side.
    """
    key = document.text if document.split_key is None else document.split_key
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < validation_fraction * 2**64


def documents_of_split(
    documents: Iterable[Document], split: Split, validation_fraction: float
) -> Iterator[Document]:
    """The documents of one split, in order."""
    wants_held_out = split == "validation"
    for document in documents:
        if is_held_out(document, validation_fraction) == wants_held_out:
            yield document
