"""Documents, where they were found, and the split that decides which of them are held out."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from chomp.errors import DataError

# Axes: N tokens of a document that came tokenized.

Split = Literal["train", "validation"]


class Position(NamedTuple):
    """Where a record is: which part of its source, which record in that part. Ordered.

    Every record counts, those without a document too, so a position never depends on content.
    """

    part: int = 0
    record: int = 0


@dataclass(frozen=True)
class Span:
    """A piece of a conversation: learnt from, or only read."""

    text: str
    is_trained: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Document:
    """A text, a conversation or token ids, under a name that finds it again.

    One of `text`, `spans` and `ids` is the content. `loss_weights` belong to `ids`: weight i scores
    the prediction of token i+1. `split_key` is what the held-out split hashes: the content itself,
    unless documents that share text (a source file and its docstrings) must fall on one side.
    """

    id: str
    text: str = ""
    spans: tuple[Span, ...] = ()
    ids: Integer[np.ndarray, " N"] | None = None
    loss_weights: Float[np.ndarray, " N"] | None = None
    split_key: str | None = None

    def __post_init__(self) -> None:
        if bool(self.text) + bool(self.spans) + (self.ids is not None) > 1:
            raise DataError(
                f"document {self.id} has more than one content",
                allowed="one of text, spans and ids",
                fix="remove the others",
            )

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts to tokenize, one for each span; none of a document that came tokenized."""
        if self.ids is not None:
            return ()
        return tuple(span.text for span in self.spans) or (self.text,)

    @property
    def size(self) -> int:
        """Characters, or ids of one that came tokenized: about how much work it is."""
        return len(self.ids) if self.ids is not None else sum(map(len, self.texts))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to learn from: no id, or nothing but white space."""
        if self.ids is not None:
            return len(self.ids) == 0
        return all(not text or text.isspace() for text in self.texts)

    def __eq__(self, other: object) -> bool:
        """Equal in every field; arrays by their numbers."""

        def values(document: Document) -> list[object]:
            found = (getattr(document, field.name) for field in fields(document))
            return [each.tolist() if isinstance(each, np.ndarray) else each for each in found]

        return isinstance(other, Document) and values(self) == values(other)

    def __hash__(self) -> int:
        """Of the name and the text; enough to tell most documents apart."""
        return hash((self.id, self.text))


class LocatedDocument(NamedTuple):
    """A document and where its record is."""

    position: Position
    document: Document


def is_held_out(document: Document, validation_fraction: float) -> bool:
    """Whether the document belongs to the validation split.

    A function of the document alone: adding, removing or reordering others moves nothing, and
    documents with one key (equal contents, unless they have keys of their own) are on one side.
    """
    key = document.split_key
    digest = content_key(document) if key is None else _digest(key.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest[:8], "big") < validation_fraction * 2**64


def content_key(document: Document) -> bytes:
    """A hash of the content alone: equal for equal documents, whatever they are called."""
    if document.ids is not None:
        # One width, so that the same ids from files of different widths are equal.
        return _digest(document.ids.astype("<u4").tobytes())
    return _digest("".join(document.texts).encode("utf-8", "surrogatepass"))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]


def documents_of_split(
    documents: Iterable[Document], split: Split, validation_fraction: float
) -> Iterator[Document]:
    """The documents of one split, in order."""
    for document in documents:
        if is_held_out(document, validation_fraction) == (split == "validation"):
            yield document
