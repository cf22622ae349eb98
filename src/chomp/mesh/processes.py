"""What the processes of a run tell each other, over the key-value store that JAX starts them with.

Small values and meeting points, never arrays: no device takes part, so nothing here waits for a
step or makes one wait. A run of one process pays nothing. Every process makes the same calls of a
name in the same order; calls from another thread have names of their own.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax

from chomp.errors import LaunchError, private_names

# Longer than any compile or checkpoint that others may rightly be busy with.
TIMEOUT_S = 600.0
_ROOT = "chomp"
_TOLD = "told"
_POSTED = "posted"
# Uses of a name that process 0 may be ahead of the others; steps let it be two.
_KEPT = 64

_counts: Counter[str] = Counter()
_counting = threading.Lock()


def is_first() -> bool:
    """Whether this is process 0, which alone writes files that a run has one of."""
    return jax.process_index() == 0


def wait_for_all(name: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Return when every process has come to the meeting point `name`.

    Raises `LaunchError` after `timeout_s`, naming the processes that did not come.
    """
    gathered(name, None, timeout_s=timeout_s)


def told_by_first(name: str, value: Any, *, timeout_s: float = TIMEOUT_S) -> Any:
    """Process 0's `value` (plain, as JSON has it), in every process.

    Process 0 waits for nobody; the others raise `LaunchError` after `timeout_s` without word.
    """
    text = json.dumps(value)
    if jax.process_count() > 1:
        folder = _next_use(name)
        key = f"{folder}/{_TOLD}"
        if is_first():
            _client().key_value_set(key, text)
            _forget(folder, _KEPT)
        else:
            text = _awaited(name, key, [0], _deadline(timeout_s), timeout_s)
    return json.loads(text)


def gathered(name: str, value: Any, *, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """The values (plain, as JSON has them) of all processes, by process index.

    Process 0 collects them and tells the rest, so each of N processes makes a few calls and not N.
    Raises `LaunchError` after `timeout_s`, in all that came, naming those that did not.
    """
    text = json.dumps(value)
    if jax.process_count() == 1:
        return [json.loads(text)]
    folder, deadline = _next_use(name), _deadline(timeout_s)
    _client().key_value_set(_own(folder, jax.process_index()), text)
    if is_first():
        return _collected(name, folder, deadline, timeout_s)
    return _heard(name, folder, deadline, timeout_s)


@contextmanager
def all_or_none(name: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """What happens inside happens in every process, or all of them raise when they leave it.

    A process whose own part failed raises its own error; the others raise `LaunchError` with what
    the failed ones said. For parts in which no process waits for another.
    """
    try:
        yield
    except Exception as error:
        gathered(name, f"{type(error).__name__}: {error}", timeout_s=timeout_s)
        raise
    told = gathered(name, None, timeout_s=timeout_s)
    failed = [f"process {index}: {text}" for index, text in enumerate(told) if text is not None]
    if failed:
        raise LaunchError(
            f"{name} failed elsewhere:\n  " + "\n  ".join(failed) + "\n",
            allowed="a run that can go on in all of its processes",
            fix="see what those processes say, and start all of them again",
        )


def post(name: str, value: Any) -> None:
    """Leave a value (plain, as JSON has it) for the others to find, instead of the one before."""
    key = _own(f"{_ROOT}/{name}/{_POSTED}", jax.process_index())
    _client().key_value_set(key, json.dumps(value), allow_overwrite=True)


def posted(name: str) -> dict[int, Any]:
    """What processes have posted under a name until now, by process index; waits for nobody."""
    found = _client().key_value_dir_get(f"{_ROOT}/{name}/{_POSTED}/")
    return {int(key.rpartition("/")[2]): json.loads(text) for key, text in found}


def wait_for_posts(name: str, *, timeout_s: float) -> None:
    """Return when all other processes have posted under a name, or when the time is over."""
    deadline = _deadline(timeout_s)
    for index in range(jax.process_count()):
        left_ms = round(1000 * (deadline - time.monotonic()))
        if index != jax.process_index() and left_ms > 0:
            with suppress(jax.errors.JaxRuntimeError):
                key = _own(f"{_ROOT}/{name}/{_POSTED}", index)
                _client().blocking_key_value_get(key, left_ms)


def _collected(name: str, folder: str, deadline: float, timeout_s: float) -> list[Any]:
    """What everyone said, as process 0 finds and tells it."""
    others = range(1, jax.process_count())
    try:
        texts = [
            _awaited(name, _own(folder, index), others, deadline, timeout_s, folder=folder)
            for index in range(jax.process_count())
        ]
    except LaunchError as error:
        # So that those who came need not wait as long again, and say the same.
        _client().key_value_set(f"{folder}/{_TOLD}", json.dumps({"error": str(error)}))
        raise
    values = [json.loads(text) for text in texts]
    _client().key_value_set(f"{folder}/{_TOLD}", json.dumps({"values": values}))
    # Everyone is here, so everyone has read what was told the last time.
    _forget(folder, 1)
    return values


def _heard(name: str, folder: str, deadline: float, timeout_s: float) -> list[Any]:
    """What everyone said, as process 0 tells it."""
    all_of_them = range(jax.process_count())
    key = f"{folder}/{_TOLD}"
    told = json.loads(_awaited(name, key, all_of_them, deadline, timeout_s, folder=folder))
    if "error" in told:
        raise LaunchError(told["error"])
    values: list[Any] = told["values"]
    return values


def _awaited(
    name: str,
    key: str,
    waited_for: Sequence[int],
    deadline: float,
    timeout_s: float,
    *,
    folder: str | None = None,
) -> str:
    """The text at `key`, once it is there. With `folder`, an error names who is not in it yet."""
    left_ms = max(1, round(1000 * (deadline - time.monotonic())))
    try:
        text: str = _client().blocking_key_value_get(key, left_ms)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise _lost(name, str(error)) from error
        missing = waited_for if folder is None else _missing(folder, waited_for)
        raise _late(name, missing, timeout_s) from error
    return text


def _missing(folder: str, waited_for: Sequence[int]) -> list[int]:
    came = {key.rpartition("/")[2] for key, _ in _client().key_value_dir_get(f"{folder}/")}
    return [index for index in waited_for if str(index) not in came]


def _late(name: str, missing: Sequence[int], timeout_s: float) -> LaunchError:
    here, count = jax.process_index(), jax.process_count()
    # All may have come, and process 0 not have told it in time.
    who = f"process {', '.join(map(str, missing))}" if missing else "word from process 0"
    return LaunchError(
        f"process {here} of {count} waited {timeout_s:g} s at {name!r} for {who}",
        allowed="processes that come to the same points within that time",
        fix="see how the missing ones ended, and start all of them again",
    )


def _lost(name: str, reason: str) -> LaunchError:
    return LaunchError(
        f"process {jax.process_index()} of {jax.process_count()} at {name!r} lost touch with "
        f"the others: {reason}",
        allowed="processes that all run until the end",
        fix="see how the others ended, and start all of them again",
    )


def _next_use(name: str) -> str:
    """Where this use of a name has its keys: no two uses share one."""
    with _counting:
        _counts[name] += 1
        return f"{_ROOT}/{name}/{_counts[name]}"


def _forget(folder: str, uses_ago: int) -> None:
    """Take an earlier use of a name out of the store, which process 0 holds in memory."""
    place, _, use = folder.rpartition("/")
    _client().key_value_delete(f"{place}/{int(use) - uses_ago}")


def _own(folder: str, index: int) -> str:
    return f"{folder}/{index}"


def _deadline(timeout_s: float) -> float:
    return time.monotonic() + timeout_s


def _client() -> Any:
    with private_names("jax"):
        from jax._src import distributed  # noqa: PLC0415 (the client has no public name)

        client = distributed.global_state.client
    if client is None:
        raise LaunchError(
            f"jax.distributed is not initialized, with {jax.process_count()} processes",
            allowed="processes that call jax.distributed.initialize before all else",
            fix="set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each",
        )
    return client
