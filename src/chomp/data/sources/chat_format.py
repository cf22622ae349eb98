"""Conversations: records with a list of messages, of which some roles are learnt from.

Each turn becomes three spans, so that neither the text of a message nor which roles are trained
changes how the rest is tokenized.
"""

from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal

from chomp.config import Config
from chomp.data.documents import Document, Span
from chomp.data.sources.record_fields import (
    Record,
    require_key,
    text_under,
    value_under,
    wrong_value,
)
from chomp.errors import DataError, require


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
