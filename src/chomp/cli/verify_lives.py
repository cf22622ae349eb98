"""Lives of a run: processes that train, the instants at which they are killed, what each had done.

A life is a fork of a process that has done the imports: these take seconds, and a run that is
killed twenty times would do them twenty times. That parent is the program verify_parent.py.

A third of the kills come while the process starts, a third between steps, a third inside a save,
which is seen by the unfinished checkpoint it writes. How far a life gets before is drawn so that
the kills spread over the whole run.
"""

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from chomp.checkpoint import CHECKPOINTS, UNFINISHED
from chomp.cli.load_config import GivenConfig
from chomp.errors import LaunchError
from chomp.tracking import metrics

DEVICE_COUNT = "JAX_NUM_CPU_DEVICES"

Kind = Literal["start", "step", "save"]
# In this order, so that a single kill is one inside a save.
KINDS: tuple[Kind, ...] = ("save", "step", "start")

_LOOK_EVERY_S = 0.002  # the shortest saves take ten times as long
_STEP_NAME = re.compile(r"step-(\d+)")


# --- processes ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a config says about its run."""

    steps: int
    has_keep_policies: bool  # permanent checkpoints by a list of policies, not by one number
    record: str  # name of the metrics file
    can_fork: bool


@dataclass(frozen=True)
class Started:
    """A process that was started, the first of a group of its own."""

    pid: int
    wait: Callable[[float], int | None]  # up to so many seconds; the exit code once it has ended

    def kill(self) -> None:
        """End it and whatever it started by SIGKILL, at once; nothing if it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def start_from_scratch(
    words: Sequence[str], *, log: str, environment: Mapping[str, str]
) -> Started:
    """Start `chomp WORDS...` in a new process; its output goes to a file."""
    with open(log, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "chomp", *words],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )

    def wait(timeout_s: float) -> int | None:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    return Started(process.pid, wait)


class Forks:
    """Starts `chomp` commands for one config, each a fork of a process that has loaded it."""

    def __init__(self, given: GivenConfig, *, environment: Mapping[str, str]) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "chomp.cli.verify_parent", json.dumps(asdict(given))],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that `select` and `readline` see the same
            start_new_session=True,  # Ctrl-C is for the command that uses this
        )

    def facts(self) -> RunFacts:
        """What the config says; waits for the imports. Raises what is wrong with the config."""
        answer = json.loads(self._line())
        if "error" in answer:
            error = LaunchError(answer["error"])
            error.exit_code = answer["exit_code"]
            raise error
        return RunFacts(**answer)

    def start(self, words: Sequence[str], *, log: str, environment: Mapping[str, str]) -> Started:
        """Start `chomp WORDS...` in a fork; its output goes to a file. One at a time."""
        request = {"words": list(words), "log": log, "environment": dict(environment)}
        _pipe(self._parent.stdin).write(json.dumps(request).encode() + b"\n")

        def wait(timeout_s: float) -> int | None:
            ready, _, _ = select.select([_pipe(self._parent.stdout)], [], [], timeout_s)
            return int(self._line()) if ready else None

        return Started(int(self._line()), wait)

    def close(self) -> None:
        """Kill the parent of the forks; the last of them must have ended."""
        self._parent.kill()
        self._parent.wait()
        _pipe(self._parent.stdin).close()
        _pipe(self._parent.stdout).close()

    def _line(self) -> bytes:
        line = _pipe(self._parent.stdout).readline()
        if not line:
            raise LaunchError(
                "the process that was to start the runs has ended",
                allowed="a launch file that can be loaded",
                fix="read what it printed above",
            )
        return line


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None, "the process was started with pipes"
    return end


# --- when a life ends, and what it had done ----------------------------------------------------


@dataclass(frozen=True)
class Instant:
    """When to kill a life: `delay_s` after it has reached a step or a save, or as the save ends."""

    kind: Kind
    at_step: int  # steps that are completed, or that the save is of
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class Life:
    """One process of a run, from its start to its end."""

    folder: str
    devices: int | None
    began_at: int  # step of the newest complete checkpoint it found; 0: none
    was_killed: bool  # by its watcher
    code: int  # how it ended; below 0: by that signal
    seconds: float
    starting_s: float  # until the first step was logged
    saving_s: float  # the shortest save: later than this, most are over
    first_step: int | None  # of those it logged
    last_step: int | None
    saving: int | None  # step of the checkpoint that it was writing at its end

    @property
    def place(self) -> str:
        """Where in the run it was at its end, in words."""
        where = "starting" if self.last_step is None else f"after step {self.last_step + 1}"
        return where if self.saving is None else f"{where}, saving step {self.saving}"


def kinds_of(kills: int, chance: random.Random) -> list[Kind]:
    """A kind for each kill, as many of each as of the others, in random order."""
    kinds = [KINDS[index % len(KINDS)] for index in range(kills)]
    chance.shuffle(kinds)
    return kinds


def draw_instant(
    kind: Kind, *, done: int, steps: int, kills_left: int, pace: Life, chance: random.Random
) -> Instant:
    """When to kill a life that goes on after `done` of `steps` steps.

    `kills_left` counts this one. They share the steps that are left, so a life gets further the
    fewer kills follow it; `pace` is a life that was not killed, for how long things take.
    """
    reach = 2 * (steps - done) / (kills_left + 1)
    at_step = min(steps, done + 1 + int(chance.uniform(0, reach)))
    lengths = {
        "start": pace.starting_s,
        "step": (pace.seconds - pace.starting_s) / steps,
        "save": pace.saving_s,
    }
    return Instant(kind, at_step, chance.uniform(0, lengths[kind]))


@dataclass
class _Seen:
    """What the folder of a run shows of the life that is watched."""

    steps: list[int] = field(default_factory=list)  # logged, in order
    folder_at_s: float | None = None
    first_row_at_s: float | None = None
    saving: int | None = None
    saving_s: list[float] = field(default_factory=list)
    save_began_s: float = 0.0


def live(
    process: Started, folder: str, facts: RunFacts, instant: Instant | None, devices: int | None
) -> Life:
    """Watch a process that has just been started to its end, which is `instant` if it is given."""
    began = time.monotonic()
    due = saving = None
    kill_sent = False
    watch = _Watch(folder, facts)
    began_at = watch.newest
    while (code := process.wait(_LOOK_EVERY_S)) is None:
        now = time.monotonic() - began
        seen = watch.look(now)
        if instant is None:
            continue
        if due is None and _is_reached(instant, seen, began_at):
            due, saving = now + instant.delay_s, seen.saving
        if due is not None and (now >= due or _is_over(instant, seen, saving)):
            process.kill()
            kill_sent = True
    seconds = time.monotonic() - began
    seen = watch.look(seconds)
    first = seconds if seen.first_row_at_s is None else seen.first_row_at_s
    return Life(
        folder=folder,
        devices=devices,
        began_at=began_at,
        was_killed=kill_sent and code == -signal.SIGKILL,
        code=code,
        seconds=seconds,
        # The folder is made after the imports, which only some lives do.
        starting_s=first - (seen.folder_at_s or 0.0),
        saving_s=min(seen.saving_s, default=0.0),
        first_step=seen.steps[0] if seen.steps else None,
        last_step=seen.steps[-1] if seen.steps else None,
        saving=seen.saving,
    )


def newest_checkpoint(folder: str) -> int:
    """The step of the newest complete checkpoint of a run; 0 where there is none."""
    matches = map(_STEP_NAME.fullmatch, _checkpoint_names(folder))
    return max((int(match[1]) for match in matches if match), default=0)


def _is_reached(instant: Instant, seen: _Seen, began_at: int) -> bool:
    if instant.kind == "start":
        return True
    if instant.kind == "save":
        return seen.saving is not None and seen.saving >= instant.at_step
    completed = seen.steps[-1] + 1 if seen.steps else began_at
    return completed >= instant.at_step


def _is_over(instant: Instant, seen: _Seen, saving: int | None) -> bool:
    """Whether the start or the save is at its end, in which the instant is to be."""
    if instant.kind == "start":
        return bool(seen.steps)
    return instant.kind == "save" and seen.saving != saving


class _Watch:
    """Reads what a life adds to its folder, as it adds it."""

    def __init__(self, folder: str, facts: RunFacts) -> None:
        self.newest = newest_checkpoint(folder)
        self._folder = folder
        self._record = Path(folder, facts.record)
        # Up to the last whole line: the rest was torn by a kill, and the next life removes it.
        before = self._record.read_bytes() if self._record.exists() else b""
        self._read = before.rfind(b"\n") + 1
        self._left_over = dict(self._unfinished())  # by the life before this one
        self._seen = _Seen()

    def look(self, now: float) -> _Seen:
        """Read what is new, `now` seconds after the start; all that was seen so far."""
        seen = self._seen
        if seen.folder_at_s is None and os.path.isdir(self._folder):
            seen.folder_at_s = now
        seen.steps += self._new_steps()
        if seen.first_row_at_s is None and seen.steps:
            seen.first_row_at_s = now
        # One that is touched again is being written, or removed to be written anew.
        current = [
            step for step, time_ns in self._unfinished() if self._left_over.get(step) != time_ns
        ]
        saving = max(current, default=None)
        if saving != seen.saving:
            if seen.saving is not None:
                seen.saving_s.append(now - seen.save_began_s)
            seen.saving, seen.save_began_s = saving, now
        return seen

    def _new_steps(self) -> Iterator[int]:
        """Steps of the lines that were completed since the last look."""
        if not self._record.exists() or self._record.stat().st_size <= self._read:
            return
        with self._record.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            row = _row(line)
            if metrics.TRAIN_LOSS in row:
                yield int(row["step"])

    def _unfinished(self) -> Iterator[tuple[int, int]]:
        """The steps of unfinished checkpoints, and when each was touched."""
        for name in _checkpoint_names(self._folder):
            match = _STEP_NAME.fullmatch(name.removesuffix(UNFINISHED))
            if match and name.endswith(UNFINISHED):
                try:
                    path = os.path.join(self._folder, CHECKPOINTS, name)
                    yield int(match[1]), os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue  # complete by now


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}  # torn by a kill
    return row if isinstance(row, dict) else {}


def _checkpoint_names(folder: str) -> Sequence[str]:
    try:
        return os.listdir(os.path.join(folder, CHECKPOINTS))
    except OSError:
        return ()
