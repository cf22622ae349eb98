"""Pins: identities that count as another one, whose result is kept.

For a change that a hash sees and that does not matter: a field was renamed, a default was written
out. `<prefix>/.executor_pins.json` maps the title (name and hash) of the identity that would be
made anew to that of the result that is used instead. It holds for every plan below the prefix.
"""

import re
from collections.abc import Mapping

from chomp.errors import LaunchError, StorageError
from chomp.executor.identity import HASH_DIGITS, Identities
from chomp.executor.status import read_info, read_status
from chomp.storage import (
    FileLock,
    exists,
    is_folder,
    join,
    make_folder,
    normalise,
    read_json,
    write_json_atomic,
)

PINS = ".executor_pins.json"
_LOCK = ".executor_pins_lock"
_PATIENCE_S = 30.0  # a process that holds the lock writes one small file
_TITLE = re.compile(rf"(?P<name>.+)-(?P<hash>[0-9a-f]{{{HASH_DIGITS}}})")


def identities_at(prefix: str) -> Identities:
    """Identities of steps whose results are below the prefix: with its pins."""
    pins = read_pins(prefix)
    return Identities({title: _end_of(title, pins) for title in pins})


def read_pins(prefix: str) -> dict[str, str]:
    """What was pinned: titles, and the title that each counts as."""
    path = join(prefix, PINS)
    if not exists(path):
        return {}
    found = read_json(path)
    is_fine = isinstance(found, dict) and all(
        isinstance(title, str) and _TITLE.fullmatch(title) for title in [*found, *found.values()]
    )
    # A cycle, which can only have been written by hand, would be followed for ever.
    if not is_fine or any(_end_of(title, found) == title for title in found):
        raise StorageError(
            f"{path}, which does not hold pins",
            allowed='a JSON mapping such as {"tokens-<hash>": "tokens-<hash>"}, without cycles',
            fix="correct the file, or remove it: then nothing is pinned",
        )
    pins: dict[str, str] = found
    return pins


def add_pin(prefix: str, kept: str, other: str) -> tuple[str, str]:
    """From now on the identity `other` counts as `kept`, whose result is there; both titles.

    Each is a title or an output folder. Raises `LaunchError` for a pair that cannot be one result.
    """
    kept_title, other_title = title_of(prefix, kept), title_of(prefix, other)
    _require_success(prefix, kept, kept_title)
    make_folder(prefix)
    with FileLock.acquire(join(prefix, _LOCK), timeout_s=_PATIENCE_S):
        pins = read_pins(prefix)
        _refuse_pair(kept_title, other_title, pins)
        write_json_atomic(join(prefix, PINS), {**pins, other_title: kept_title})
    return kept_title, other_title


def remove_pin(prefix: str, other: str) -> str:
    """Let the identity `other` count as itself again; its title. `LaunchError` if it does."""
    title = title_of(prefix, other)
    make_folder(prefix)
    with FileLock.acquire(join(prefix, _LOCK), timeout_s=_PATIENCE_S):
        pins = read_pins(prefix)
        if title not in pins:
            raise LaunchError(
                f"{title}, which counts as itself",
                allowed=f"one of {', '.join(sorted(pins)) or 'none: nothing is pinned'}",
                fix="see chomp pin --list",
            )
        del pins[title]
        write_json_atomic(join(prefix, PINS), pins)
    return title


def title_of(prefix: str, text: str) -> str:
    """Name and hash of what was given: a title, or the output folder of a step, made or not."""
    info = read_info(text) if is_folder(text) else None
    if info is not None:
        return f"{info.name}-{info.identity}"
    # As a plan shows the folder of a step that has not run.
    title = normalise(text).removeprefix(f"{normalise(prefix)}/")
    if _TITLE.fullmatch(title) is None:
        raise LaunchError(
            f"{text}, which names no step",
            allowed=f"name-hash with {HASH_DIGITS} hexadecimal digits, or an output folder",
            fix="copy the path that --plan shows, or the folder's name below the prefix",
        )
    return title


def _end_of(title: str, pins: Mapping[str, str]) -> str:
    """Where the pins lead from a title; the title itself where they lead in a circle."""
    here, seen = pins[title], {title}
    while here in pins and here not in seen:
        seen.add(here)
        here = pins[here]
    return title if here in seen else here


def _require_success(prefix: str, kept: str, title: str) -> None:
    folder = kept if is_folder(kept) else join(prefix, title)
    status = read_status(folder)
    if status is None or status.state != "SUCCESS" or not title.endswith(status.identity):
        found = "nothing is there" if status is None else f"it is {status.state}"
        raise LaunchError(
            f"{title} as the result that is kept, but in {folder} {found}",
            allowed="a step that is done: SUCCESS",
            fix="run it first, or give the two the other way round",
        )


def _refuse_pair(kept: str, other: str, pins: Mapping[str, str]) -> None:
    names = [title[: -HASH_DIGITS - 1] for title in (kept, other)]
    if names[0] != names[1]:
        fault, fix = "two steps of different names", "pin versions of one step"
    elif other in pins and pins[other] != kept:
        fault = f"{other} counts as {pins[other]} already"
        fix = f"chomp pin --remove {other} first"
    elif kept == other or (kept in pins and _end_of(kept, {**pins, other: kept}) == kept):
        fault, fix = "it would count as itself, or in a circle", "see chomp pin --list"
    else:
        return
    raise LaunchError(
        f"{other} is to count as {kept}, but: {fault}",
        allowed="two identities of one name, of which one is kept",
        fix=fix,
    )
