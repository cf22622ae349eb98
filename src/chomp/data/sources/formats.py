"""What a record means: a text, ids that are already tokens, or a conversation.

A format turns a record into a document and names the keys it reads. Records without keys (a text
file, a row of an array) are their own content and need no key named.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Integer

from chomp.config import Config
from chomp.data.documents import Document
from chomp.data.sources.chat_format import ChatFormat
from chomp.data.sources.record_fields import (
    Record,
    checked_text,
    require_key,
    text_under,
    value_under,
    wrong_value,
)
from chomp.errors import DataError

__all__ = ["ChatFormat", "Format", "PrebuiltFormat", "Record", "TextFormat"]

# Axes: N tokens of a record.


@dataclass(frozen=True, kw_only=True)
class TextFormat(Config):
    """Each record is a text under `text_key`; a record without keys is all content."""

    kind: Literal["text"] = "text"
    text_key: str = "text"

    def __post_init__(self) -> None:
        require_key("text_key", self.text_key)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it reads."""
        return (self.text_key,)

    @property
    def has_loss_weights(self) -> bool:
        """Whether its documents come with weights."""
        return False

    def document(self, record: Record, name: str) -> Document:
        """The document in a record, under that name."""
        if isinstance(record, Document):
            return record
        if isinstance(record, np.ndarray):
            return Document(id=name, ids=checked_ids(record, name, "in its row"))
        if isinstance(record, str):
            return Document(id=name, text=checked_text(record, name, "in its text"))
        return Document(id=name, text=text_under(record, self.text_key, name))


@dataclass(frozen=True, kw_only=True)
class PrebuiltFormat(Config):
    """Each record is token ids under `ids_key`, and their loss weights if a key is named.

    Weight i scores the prediction of token i+1.
    """

    kind: Literal["prebuilt"] = "prebuilt"
    ids_key: str = "input_ids"
    loss_weights_key: str | None = None  # None: every token counts alike

    def __post_init__(self) -> None:
        require_key("ids_key", self.ids_key)
        if self.loss_weights_key is not None:
            require_key("loss_weights_key", self.loss_weights_key)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it reads."""
        weights = () if self.loss_weights_key is None else (self.loss_weights_key,)
        return (self.ids_key, *weights)

    @property
    def has_loss_weights(self) -> bool:
        """Whether its documents come with weights."""
        return self.loss_weights_key is not None

    def document(self, record: Record, name: str) -> Document:
        """The document in a record, under that name."""
        if isinstance(record, np.ndarray) and self.loss_weights_key is None:
            return Document(id=name, ids=checked_ids(record, name, "in its row"))
        place = f"under {self.ids_key!r}"
        ids = checked_ids(value_under(record, self.ids_key, name), name, place)
        if self.loss_weights_key is None:
            return Document(id=name, ids=ids)
        weights = _checked_weights(
            value_under(record, self.loss_weights_key, name), name, self.loss_weights_key
        )
        if len(weights) != len(ids):
            raise DataError(
                f"record {name} has {len(ids)} ids {place} and {len(weights)} weights "
                f"under {self.loss_weights_key!r}",
                allowed="one weight for each id",
                fix="correct the record",
            )
        return Document(id=name, ids=ids, loss_weights=weights)


Format = TextFormat | PrebuiltFormat | ChatFormat


def checked_ids(value: Any, name: str, place: str) -> Integer[np.ndarray, " N"]:
    """Token ids as an array; whether a vocabulary has them is asked when they are encoded."""
    ids = _flat_array(value)
    if ids is not None and ids.size == 0:
        return np.empty(0, np.int64)  # an empty list does not say of what
    if ids is None or not np.issubdtype(ids.dtype, np.integer):
        raise wrong_value(value, name, place, "a list of whole numbers")
    return ids


def _checked_weights(value: Any, name: str, key: str) -> Float32[np.ndarray, " N"]:
    weights = _flat_array(value)
    if weights is None or weights.dtype.kind not in "iuf":
        raise wrong_value(value, name, f"under {key!r}", "a list of numbers")
    with np.errstate(over="ignore"):  # too large for float32 is infinite, and said so below
        weights = weights.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise DataError(
            f"record {name} has the weight {weights[wrong[0]]} at {wrong[0]} under {key!r}",
            allowed="finite weights of 0 or more",
            fix="correct the record; weight 0 takes a prediction out of the loss",
        )
    return weights


def _flat_array(value: Any) -> np.ndarray | None:
    """The value as an array of one axis; None if it is no list or array of that kind."""
    if not isinstance(value, list | tuple | np.ndarray):
        return None
    try:
        flat = np.asarray(value)
    except (ValueError, OverflowError):  # lists of lists of different lengths
        return None
    return flat if flat.ndim == 1 else None
