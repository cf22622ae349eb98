"""Secrets in a config file: refused, since a run keeps its file and sends it to services."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from collections.abc import Iterator, Mapping
from typing import Any

from chomp.errors import ConfigError, message


def refuse_secrets(content: Any, *, source: str) -> None:
    """Raise `ConfigError` for a text under a key that is a secret by its name, such as `hf_token`.

    The message has the key and not the value. Variables are looked at too, by their own names.
    """
    for path in _secret_paths(content, ()):
        name = path[-1].upper().replace("-", "_")
        variable = name if "_" in name else "HF_TOKEN or WANDB_API_KEY"
        raise ConfigError(
            f"{source}: "
            + message(
                given=f"{'.'.join(path)}, which is a secret by its name, in a file that runs keep",
                allowed="secrets in the environment, where the libraries that need them look",
                fix=f"remove it, and set {variable} in the environment",
            )
        )


def _secret_paths(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    from chomp.storage.secrets import is_secret_name

    if isinstance(value, Mapping):
        for key, inner in value.items():
            # A special token in angle brackets is none, nor is a number or a section.
            is_text = isinstance(inner, str) and bool(inner) and not inner.startswith("<")
            if is_text and is_secret_name(str(key)):
                yield (*path, str(key))
            yield from _secret_paths(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _secret_paths(inner, (*path, str(index)))
