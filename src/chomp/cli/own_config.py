"""A launch config from the content of a YAML file, and with overrides, by the names of either.

What is wrong with a field is told by the name that was written for it.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from chomp.cli.earlier_overrides import own_override
from chomp.cli.own_spelling import Content, own_content
from chomp.errors import ConfigError

if TYPE_CHECKING:  # for annotations alone
    from chomp.config.fields import ConfigClass

C = TypeVar("C", bound="ConfigClass")


class OwnConfig(NamedTuple, Generic[C]):
    """The launch config that a file's content means, and what it says beside that.

    `vocab_multiple` is for the vocabulary as it is after overrides: `with_rounded_vocabulary`.
    """

    config: C
    run_dir: str | None
    vocab_multiple: int | None


def own_config(cls: type[C], content: Content, *, source: str) -> OwnConfig[C]:
    """What a file's content means. Raises `ConfigError` for what cannot be, by the file's names."""
    from chomp.config import config_from_mapping

    said = own_content(cls, content, source=source)
    with _told_as_given(said.moved):
        config = config_from_mapping(cls, said.config, source=source)
    return OwnConfig(config, said.run_dir, said.vocab_multiple)


def with_own_overrides(config: Any, overrides: Sequence[str]) -> Any:
    """A launch config with overrides by its own keys or by those of files.

    A section that the config has not is made, as it is for a file. Raises `ConfigError` for an
    override of a key that was replaced, and for any that cannot be, by the name it was given.
    """
    from chomp.config import apply_overrides

    own: list[tuple[str, str]] = []
    for text in overrides:
        meant = own_override(config, text)
        if meant is None:  # the config has it already: only an earlier override may say otherwise
            key = text.partition("=")[0]
            own = [pair for pair in own if pair[0].partition("=")[0] != key]
        else:
            own.append((text, meant))
    with _told_as_given({text: meant for text, meant in own if meant != text}):
        return apply_overrides(config, [meant for _, meant in own])


@contextmanager
def _told_as_given(moved: Mapping[str, str]) -> Iterator[None]:
    """Let an error about a field say what was written for it, where that has another name."""
    try:
        yield
    except ConfigError as error:
        leaves = {
            given: meant.partition("=")[0].rpartition(".")[2] for given, meant in moved.items()
        }
        told = [given for given, leaf in leaves.items() if re.search(rf"\b{leaf}\b", str(error))]
        if not told:
            raise
        named = "; ".join(f"{given} is {moved[given]} here" for given in told)
        raise ConfigError(f"{error}\n({named})") from error
