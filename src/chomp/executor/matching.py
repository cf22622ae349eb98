"""Steps chosen by patterns of their names, as `--only` and `--force` give them."""

import re
from collections.abc import Sequence

from chomp.errors import ConfigError
from chomp.executor.step import ExecutorStep


def matching(option: str, patterns: Sequence[str], steps: Sequence[ExecutorStep]) -> set[str]:
    """The names in which some pattern is found. `ConfigError` for a pattern that finds none.

    One that is of no use is a typing error: without a word, nothing or everything would run.
    """
    names = sorted({step.name for step in steps})
    found: set[str] = set()
    for text in patterns:
        pattern = _pattern(option, text)
        matches = {name for name in names if pattern.search(name)}
        if not matches:
            raise ConfigError(
                f"{option} {text!r}, which is found in no step's name",
                allowed=f"a part of one of {', '.join(names)}",
                fix="correct the pattern, or leave it out",
            )
        found |= matches
    return found


def _pattern(option: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{option} {text!r}, which is no regular expression ({error})",
            allowed="a regular expression that matches step names",
            fix=f"write for example {option} grug/base",
        ) from error
