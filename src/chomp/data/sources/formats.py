"""How a record becomes a document: text, tokenized and chat formats, and the fields they read.

Fields are checked where they are read: an error names the record and the key.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32, Integer

from chomp.config import Config
from chomp.config.messages import did_you_mean, nearest
from chomp.data.documents import Document, Span
from chomp.errors import DataError, require

Record: TypeAlias = str | Mapping[str, Any] | Integer[np.ndarray, " N"] | Document
"""What a source reads: a mapping with keys, or a whole text, row of ids or document without any."""

_MAX_SHOWN = 60
_MAX_KEYS_SHOWN = 12
__all__ = ["ChatFormat", "Format", "PrebuiltFormat", "Record", "TextFormat"]


def require_key(name: str, key: str) -> None:
    """Raise `ConfigError` for a key that is blank."""
    require(
        bool(key.strip()),
        f"{name}={key!r}",
        allowed="the name of a field of each record",
        fix=f"name the field that {name} stands for",
    )


def value_under(record: object, key: str, name: str) -> Any:
    """What the record holds under the key."""
    if not isinstance(record, Mapping):
        raise DataError(
            f"record {name} has no keys: it is {_words_for(record)}",
            allowed=f"records with the key {key!r}",
            fix="choose the format for this source",
        )
    try:
        return record[key]
    except KeyError:
        raise missing_key(name, key, list(record)) from None


def missing_key(name: str, key: str, found: Collection[str]) -> DataError:
    """The error for a record without a key the format names."""
    near = nearest(key, found)
    shown = ", ".join(repr(other) for other in list(found)[:_MAX_KEYS_SHOWN]) or "none"
    more = len(found) - _MAX_KEYS_SHOWN
    return DataError(
        f"record {name} has no key {key!r}{did_you_mean(near)}; its keys are {shown}"
        + (f" and {more} more" if more > 0 else ""),
        allowed=f"records with the key {key!r}, as the format is set",
        fix=f"set the format's key to {near!r}" if near else "set the right key in the format",
    )


def text_under(record: object, key: str, name: str) -> str:
    """The text a record holds under the key; anything but text that UTF-8 can hold is refused."""
    return checked_text(value_under(record, key, name), name, f"under {key!r}")


def checked_text(value: object, name: str, place: str) -> str:
    """The value, which must be text; `place` says in an error where in the record it is."""
    if not isinstance(value, str):
        raise wrong_value(value, name, place, "text")
    if not value.isascii():
        _refuse_surrogates(value, name, place)
    return value


def wrong_value(value: object, name: str, place: str, allowed: str) -> DataError:
    """The error for a value of the wrong type."""
    return DataError(
        f"record {name} holds {shown(value)} {place}",
        allowed=allowed,
        fix="correct the record, or set another key in the format",
    )


def shown(value: object) -> str:
    """A value in an error, cut to a readable length, with its type."""
    if value is None:
        return "null"
    text = repr(value)
    text = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
    return f"{text} (of type {type(value).__name__})"


def _refuse_surrogates(text: str, name: str, place: str) -> None:
    # JSON can write half of a surrogate pair ("\ud800"); no tokenizer takes it.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"record {name} has half of a surrogate pair {place}, at character {error.start}",
            allowed="text that can be written as UTF-8",
            fix="correct or remove the record",
        ) from error


def _words_for(record: object) -> str:
    if isinstance(record, str | Document):
        return "a whole text"
    return "a row of token ids" if isinstance(record, np.ndarray) else shown(record)


@dataclass(frozen=True, kw_only=True)
class ChatFormat(Config):
    """Each record is a list of messages; only the turns of `trained_roles` are learnt from.

    A trained turn counts with its content and its end, never with its start, which a chat program
    writes itself. `mask_user_turns=False` trains on everything. In the templates `{role}` stands
    for the role, `{{` for a brace.
    """

    kind: Literal["chat"] = "chat"
    messages_key: str = "messages"
    role_key: str = "role"
    content_key: str = "content"
    turn_start: str = "<|{role}|>\n"
    turn_end: str = "\n"
    trained_roles: tuple[str, ...] = ("assistant",)
    mask_user_turns: bool = True

    def __post_init__(self) -> None:
        for name in ("messages_key", "role_key", "content_key"):
            require_key(name, getattr(self, name))
        _require_template("turn_start", self.turn_start)
        _require_template("turn_end", self.turn_end)
        require(
            "role" in (_fields_of(self.turn_start) or ()),
            f"turn_start={self.turn_start!r} without {{role}}",
            allowed="a template with {role} in it",
            fix='write for example "<|{role}|>\\n"',
        )
        require(
            len(self.trained_roles) > 0 or not self.mask_user_turns,
            "trained_roles=() with mask_user_turns=true",
            allowed="at least one role to train on",
            fix='set trained_roles: ["assistant"], or set mask_user_turns=false',
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it reads."""
        return (self.messages_key,)

    @property
    def has_loss_weights(self) -> bool:
        """Whether its documents come with weights."""
        return True

    def document(self, record: Record, name: str) -> Document:
        """The document in a record, under that name. Without a trained turn it is an error."""
        messages = value_under(record, self.messages_key, name)
        if not isinstance(messages, list | tuple):
            raise wrong_value(messages, name, f"under {self.messages_key!r}", "a list of messages")
        spans: list[Span] = []
        roles: dict[str, None] = {}
        for number, turn in enumerate(messages):
            role, turn_spans = self._turn(turn, f"{name}, message {number}")
            roles[role] = None
            spans += turn_spans
        if roles and self.mask_user_turns and not roles.keys() & set(self.trained_roles):
            raise DataError(
                f"record {name} has only turns of {', '.join(map(repr, roles))}",
                allowed=f"at least one turn of {' or '.join(map(repr, self.trained_roles))}",
                fix="remove the record, correct trained_roles, or set mask_user_turns=false",
            )
        return Document(id=name, spans=tuple(spans))

    def _turn(self, turn: Any, name: str) -> tuple[str, list[Span]]:
        """The role of a message and its start, content and end, without those that are empty."""
        role = text_under(turn, self.role_key, name)
        content = text_under(turn, self.content_key, name)
        is_trained = role in self.trained_roles or not self.mask_user_turns
        # Only the templates are formatted: braces in a message are text like any other.
        spans = [
            Span(self.turn_start.format(role=role), not self.mask_user_turns),
            Span(content, is_trained),
            Span(self.turn_end.format(role=role), is_trained),
        ]
        return role, [span for span in spans if span.text]


def _require_template(name: str, template: str) -> None:
    fields = _fields_of(template)
    require(
        fields is not None and fields <= {"role"},
        f"{name}={template!r}",
        allowed="a template whose only placeholder is {role}; write a literal brace twice",
        fix='write it like "<|{role}|>\\n"',
    )


def _fields_of(template: str) -> set[str] | None:
    """The placeholders of a template as they are written; None if its braces do not match."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        return None
    return {
        field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        for _, field, spec, conversion in parts
        if field is not None
    }


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
