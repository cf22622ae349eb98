"""How a record becomes a document: text, tokenized and chat formats.

Fields are checked where they are read: an error names the record and the key.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from string import Formatter
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32, Integer

from chomp.config import Config
from chomp.config.messages import did_you_mean, nearest
from chomp.data.documents import Document, Span
from chomp.errors import DataError, require

# Axes: N tokens of a record.

Record: TypeAlias = str | Mapping[str, Any] | Integer[np.ndarray, " N"] | Document
"""What a source reads: a mapping with keys, or a whole text, row of ids or document without any."""

_MAX_SHOWN = 60
_MAX_KEYS_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class TextFormat(Config):
    """Each record is a text under `text_key`; a record without keys is all content."""

    has_loss_weights: ClassVar[bool] = False  # whether its documents come with weights

    kind: Literal["text"] = "text"
    text_key: str = "text"

    def __post_init__(self) -> None:
        _require_keys(self, "text_key")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it reads."""
        return (self.text_key,)

    def document(self, record: Record, name: str) -> Document:
        """The document in a record, under that name."""
        if isinstance(record, Document):
            return record
        if isinstance(record, np.ndarray):
            return Document(id=name, ids=_checked_ids(record, name, "in its row"))
        if isinstance(record, str):
            return Document(id=name, text=_checked_text(record, name, "in its text"))
        return Document(id=name, text=_text_under(record, self.text_key, name))


@dataclass(frozen=True, kw_only=True)
class PrebuiltFormat(Config):
    """Each record is token ids under `ids_key`, and their loss weights if a key is named.

    Weight i scores the prediction of token i+1.
    """

    kind: Literal["prebuilt"] = "prebuilt"
    ids_key: str = "input_ids"
    loss_weights_key: str | None = None  # None: every token counts alike

    def __post_init__(self) -> None:
        _require_keys(self, "ids_key", "loss_weights_key")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it reads."""
        return (
            (self.ids_key,)
            if self.loss_weights_key is None
            else (self.ids_key, self.loss_weights_key)
        )

    @property
    def has_loss_weights(self) -> bool:
        """Whether its documents come with weights."""
        return self.loss_weights_key is not None

    def document(self, record: Record, name: str) -> Document:
        """The document in a record, under that name."""
        if isinstance(record, np.ndarray) and self.loss_weights_key is None:
            return Document(id=name, ids=_checked_ids(record, name, "in its row"))
        place = f"under {self.ids_key!r}"
        ids = _checked_ids(_value_under(record, self.ids_key, name), name, place)
        if self.loss_weights_key is None:
            return Document(id=name, ids=ids)
        given = _value_under(record, self.loss_weights_key, name)
        weights = _checked_weights(given, name, f"under {self.loss_weights_key!r}")
        if len(weights) != len(ids):
            raise DataError(
                f"record {name} has {len(ids)} ids {place} and {len(weights)} weights "
                f"under {self.loss_weights_key!r}",
                allowed="one weight for each id",
                fix="correct the record",
            )
        return Document(id=name, ids=ids, loss_weights=weights)


@dataclass(frozen=True, kw_only=True)
class ChatFormat(Config):
    """Each record is a list of messages; only the turns of `trained_roles` are learnt from.

    A trained turn counts with its content and its end, never with its start, which a chat program
    writes itself. `mask_user_turns=False` trains on everything. In the templates `{role}` stands
    for the role, `{{` for a brace.
    """

    has_loss_weights: ClassVar[bool] = True

    kind: Literal["chat"] = "chat"
    messages_key: str = "messages"
    role_key: str = "role"
    content_key: str = "content"
    turn_start: str = "<|{role}|>\n"
    turn_end: str = "\n"
    trained_roles: tuple[str, ...] = ("assistant",)
    mask_user_turns: bool = True

    def __post_init__(self) -> None:
        _require_keys(self, "messages_key", "role_key", "content_key")
        for name in ("turn_start", "turn_end"):
            template = getattr(self, name)
            try:
                fields = {each[1:] for each in Formatter().parse(template) if each[1] is not None}
            except ValueError:  # its braces do not match
                fields = {("", "", None)}
            require(
                fields <= {("role", "", None)},
                f"{name}={template!r}",
                allowed="a template whose only placeholder is {role}; write a literal brace twice",
                fix='write it like "<|{role}|>\\n"',
            )
            require(
                bool(fields) or name == "turn_end",
                f"turn_start={template!r} without {{role}}",
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

    def document(self, record: Record, name: str) -> Document:
        """The document in a record, under that name. Without a trained turn it is an error."""
        messages = _value_under(record, self.messages_key, name)
        if not isinstance(messages, list | tuple):
            raise _wrong_value(messages, name, f"under {self.messages_key!r}", "a list of messages")
        spans: list[Span] = []
        roles: dict[str, None] = {}
        for number, turn in enumerate(messages):
            place = f"{name}, message {number}"
            role = _text_under(turn, self.role_key, place)
            content = _text_under(turn, self.content_key, place)
            is_trained = role in self.trained_roles or not self.mask_user_turns
            roles[role] = None
            # Only the templates are formatted: braces in a message are text like any other.
            spans += [
                Span(self.turn_start.format(role=role), not self.mask_user_turns),
                Span(content, is_trained),
                Span(self.turn_end.format(role=role), is_trained),
            ]
        if roles and self.mask_user_turns and not roles.keys() & set(self.trained_roles):
            raise DataError(
                f"record {name} has only turns of {', '.join(map(repr, roles))}",
                allowed=f"at least one turn of {' or '.join(map(repr, self.trained_roles))}",
                fix="remove the record, correct trained_roles, or set mask_user_turns=false",
            )
        return Document(id=name, spans=tuple(span for span in spans if span.text))


Format = TextFormat | PrebuiltFormat | ChatFormat


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


def shown(value: object) -> str:
    """A value in an error, cut to a readable length, with its type."""
    if value is None:
        return "null"
    text = repr(value)
    text = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
    return f"{text} (of type {type(value).__name__})"


def _require_keys(format: Config, *names: str) -> None:
    for name in names:
        key = getattr(format, name)
        require(
            key is None or bool(key.strip()),
            f"{name}={key!r}",
            allowed="the name of a field of each record",
            fix=f"name the field that {name} stands for",
        )


def _value_under(record: object, key: str, name: str) -> Any:
    if not isinstance(record, Mapping):
        kind = "a whole text" if isinstance(record, str | Document) else shown(record)
        if isinstance(record, np.ndarray):
            kind = "a row of token ids"
        raise DataError(
            f"record {name} has no keys: it is {kind}",
            allowed=f"records with the key {key!r}",
            fix="choose the format for this source",
        )
    if key not in record:
        raise missing_key(name, key, list(record))
    return record[key]


def _text_under(record: object, key: str, name: str) -> str:
    return _checked_text(_value_under(record, key, name), name, f"under {key!r}")


def _checked_text(value: object, name: str, place: str) -> str:
    """The value, which must be text that UTF-8 can hold; `place` is where in the record it is."""
    if not isinstance(value, str):
        raise _wrong_value(value, name, place, "text")
    if value.isascii():
        return value
    # JSON can write half of a surrogate pair ("\ud800"); no tokenizer takes it.
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"record {name} has half of a surrogate pair {place}, at character {error.start}",
            allowed="text that can be written as UTF-8",
            fix="correct or remove the record",
        ) from error
    return value


def _checked_ids(value: Any, name: str, place: str) -> Integer[np.ndarray, " N"]:
    """Token ids as an array; whether a vocabulary has them is asked when they are encoded."""
    ids = _flat_array(value, name, place, "a list of whole numbers", kinds="iu")
    return ids if ids.size else np.empty(0, np.int64)  # an empty list does not say of what


def _checked_weights(value: Any, name: str, place: str) -> Float32[np.ndarray, " N"]:
    weights = _flat_array(value, name, place, "a list of numbers", kinds="iuf")
    with np.errstate(over="ignore"):  # too large for float32 is infinite, and refused below
        weights = weights.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise DataError(
            f"record {name} has the weight {weights[wrong[0]]} at {wrong[0]} {place}",
            allowed="finite weights of 0 or more",
            fix="correct the record; weight 0 takes a prediction out of the loss",
        )
    return weights


def _flat_array(value: Any, name: str, place: str, allowed: str, *, kinds: str) -> np.ndarray:
    """The value as an array of one axis, which must be a list or array of numbers."""
    flat = None
    if isinstance(value, list | tuple | np.ndarray):
        with suppress(ValueError, OverflowError):  # lists of lists of different lengths
            flat = np.asarray(value)
    if flat is None or flat.ndim != 1 or (flat.size and flat.dtype.kind not in kinds):
        raise _wrong_value(value, name, place, allowed)
    return flat


def _wrong_value(value: object, name: str, place: str, allowed: str) -> DataError:
    return DataError(
        f"record {name} holds {shown(value)} {place}",
        allowed=allowed,
        fix="correct the record, or set another key in the format",
    )
