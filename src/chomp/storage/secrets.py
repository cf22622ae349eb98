"""Text without secrets: what is secret never reaches a config dump, a record, a log or a service.

A secret of the environment is known by its variable's name and found by its value, wherever a user
may have put it. A password in an address is known by its place.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

# WANDB_API_KEY, HF_TOKEN, RAY_AUTH_TOKEN, AWS_SECRET_ACCESS_KEY, …; not TOKENIZERS_PARALLELISM.
_SECRET_NAME = re.compile(r"(^|_)(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)$")
# A shorter value is a word like `true`, and would be blotted out all over a config.
_MIN_CHARACTERS = 8
# A shorter password is blotted out where an address has it, and nowhere else: `x` is in any text.
_MIN_PASSWORD = 6
# What ends a password for sure: a host with a dot in it, whose path may have an @ of its own.
_HOST = r"@[\w-]+(?:\.[\w-]+)+(?::\d+)?[/?#]"
# scheme://user:password@host; a user alone (ssh://git@host) is no secret, nor is a port. Passwords
# may hold @ and / as they are: all up to the last @ goes, rather a little too much. But not past
# the next ://, which may begin another address, and keeps the time linear in the text.
_ADDRESS = re.compile(
    r"(?P<user>://[^/?#\s:@'\"]*:)(?!\d*[/?#])"
    rf"(?P<password>(?:(?!://)[^@\s'\"]|(?!{_HOST})@)+)(?=@)"
)


def redacted(text: str) -> str:
    """The text with every secret of the environment replaced by `<NAME>` of its variable.

    Passwords in addresses are replaced by `<password>`.
    """
    return _redacted(text, _secrets())


def without_secrets(value: Any) -> Any:
    """The same nested mappings and lists with `redacted` texts; keys stay."""
    return _without(value, _secrets())


def without_passwords_of(value: Any, text: str) -> str:
    """The text without the passwords of all addresses in nested mappings and lists.

    They go wherever they stand: a file may write a password apart from the address it is of. Short
    ones stay where they are apart, or they would be blotted out of other words.
    """
    found = {password for password in _passwords(value) if len(password) >= _MIN_PASSWORD}
    # The longest first, of which a shorter one may be a part.
    for password in sorted(found, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "<password>", text)
    return text


def _secrets() -> dict[str, str]:
    """Values of the environment that are secret, and the names of their variables.

    The longest first: a shorter one may be the beginning of it, whose rest would be left.
    """
    found = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _MIN_CHARACTERS and _SECRET_NAME.search(name.upper())
    }
    return dict(sorted(found.items(), key=lambda item: len(item[0]), reverse=True))


def _redacted(text: str, secrets: Mapping[str, str]) -> str:
    for value, name in secrets.items():
        text = text.replace(value, f"<{name}>")
    # After those, whose names tell more; the mark that one of them left is no password.
    return _ADDRESS.sub(_without_password, text) if "://" in text else text


def _without_password(found: re.Match[str]) -> str:
    return found[0] if _is_mark(found["password"]) else f"{found['user']}<password>"


def _is_mark(password: str) -> bool:
    """Whether it is what took the place of a secret."""
    return password.startswith("<") and password.endswith(">")


def _passwords(value: Any) -> set[str]:
    if isinstance(value, str):
        found = {each["password"] for each in _ADDRESS.finditer(value)}
        return {password for password in found if not _is_mark(password)}
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(_passwords, value)) if isinstance(value, list | tuple) else set()


def _without(value: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _redacted(value, secrets)
    if isinstance(value, dict):
        return {key: _without(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without(inner, secrets) for inner in value]
    return value
