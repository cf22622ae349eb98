"""`chomp verify-resume`: a run to its end, the same run killed again and again, and the verdict.

A life is one process of the killed run. It is a fork of a server that has done the imports: these
take seconds, and a run that is killed twenty times would do them twenty times.

A third of the kills come while the process starts, a third between steps, a third inside a save,
which is seen by the unfinished checkpoint it writes. How far a life gets is drawn so that the kills
spread over the whole run.

On one number of devices, the killed run must log the same losses and end with the same state, bit
for bit. A run that moves between numbers of devices adds sums up in another order, which rounds
otherwise. How far that grows is measured by runs that are not killed, each on one number.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite, isnan
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.process import BaseProcess
from os.path import basename, join
from pathlib import Path
from typing import Any, Literal

import jax

from chomp.checkpoint import read_step_folder
from chomp.checkpoint.format import METADATA, UNFINISHED
from chomp.checkpoint.inspect import array_differences
from chomp.cli.commands import VerifyResume
from chomp.cli.load_config import GivenConfig, load_launch
from chomp.cli.main import exit_code
from chomp.cli.output import print_json, print_rows, say
from chomp.config.overrides import split_override
from chomp.errors import LaunchError, require
from chomp.executor.step import replaced
from chomp.storage import read_json
from chomp.storage.screen import outliving_the_screen
from chomp.tracking import metrics, read_metrics
from chomp.tracking.run_files import CHECKPOINTS, METRICS_FILE

_SAVES = 8  # in a run: so many that all kinds of instants have something to hit
_SAVE_INTERVAL_S = 1.0
_MISSES_IN_A_ROW = 5  # runs that end before their kill comes are started again, but not for ever
_TAIL_CHARACTERS = 2000
_LONGEST_END_S = 60.0
_LOOK_EVERY_S = 0.002  # the shortest saves take ten times as long
_DEVICE_COUNT = "JAX_NUM_CPU_DEVICES"
_STEP_NAME = re.compile(r"step-(\d+)")
_LOSS = re.compile(r".+/(?:\w+_)?loss")
_EXACT = metrics.TOKENS_SEEN  # counted, not summed: the same on any number of devices
# A moved run crosses between numbers of devices several times, at other steps than the runs it is
# measured by: a different sample of the same noise. A forgotten moment or batch is a thousandfold.
_MOVED_FACTOR = 10.0

Kind = Literal["start", "step", "save"]
# In this order, so that a single kill is one inside a save.
_KINDS: tuple[Kind, ...] = ("save", "step", "start")


@outliving_the_screen()
def verify_resume(asked: VerifyResume) -> int:
    """Run, kill, compare and print; the exit code, 0 if the killed run is the unbroken one."""
    given = GivenConfig.of(asked.config, asked)
    given.require_file()
    overrides = [] if asked.steps is None else [f"trainer.steps={asked.steps}"]
    # The axis that takes every device which the others leave.
    overrides += ["mesh.data=null"] if asked.device_counts else []
    given = replace(given, overrides=(*given.overrides, *overrides))
    jax.config.update("jax_platforms", "cpu")  # accelerators are for the lives alone
    step = load_launch(given).steps()[-1]
    config = replaced(step.config, lambda marker: "")
    steps = getattr(getattr(config, "trainer", None), "steps", None)
    saving = getattr(config, "checkpoint", None)
    if not isinstance(steps, int) or saving is None:
        raise LaunchError(
            f"{given.path}, whose last step {step.name!r} has no trainer.steps and checkpoint",
            allowed="the config of a run that trains and saves",
            fix="name the fields of the launch config so, as in experiments/grug/base",
        )
    record = getattr(getattr(config, "logging", None), "metrics_file", METRICS_FILE)
    keep = asked.keep
    is_free = keep is None or not os.path.exists(keep)
    require(
        is_free or (os.path.isdir(str(keep)) and not os.listdir(keep)),
        f"--keep {keep}, which holds something",
        allowed="a folder that is new or empty",
        fix="choose another",
    )
    folder = keep or tempfile.mkdtemp(prefix="verify-resume-")
    os.makedirs(folder, exist_ok=True)
    set_forkserver_preload([__name__, "chomp.cli.train", "chomp.training"])
    try:
        with contextlib.redirect_stdout(sys.stderr if asked.as_json else sys.stdout):
            given = _with_saves(given, steps, has_policies=bool(getattr(saving, "keep", ())))
            lives, difference = _Trial(asked, given, folder, steps, record).run()
    except BaseException:
        # The error says what went wrong; logs would pile up.
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    is_kept = difference is not None or keep is not None
    if asked.as_json:
        print_json(
            {
                "is_equal": difference is None,
                "difference": difference,
                "folder": folder if is_kept else None,
                "lives": [life.as_json() for life in lives],
            }
        )
    elif is_kept:
        say(f"Both runs, and what each process printed, are in {folder}")
    if not is_kept:
        shutil.rmtree(folder)
    return 0 if difference is None else 1


def _with_saves(given: GivenConfig, steps: int, *, has_policies: bool) -> GivenConfig:
    """The config with every step logged and many saves, unless overrides say otherwise."""
    saves = "checkpoint checkpoint.every checkpoint.save_every checkpoint.keep"
    wanted = {  # with the keys that say otherwise if they were given
        "trainer.log_every=1": "train trainer train.log_every trainer.log_every",
        f"checkpoint.save_interval_s={_SAVE_INTERVAL_S}": "checkpoint checkpoint.save_interval_s",
        f"checkpoint.every={max(1, steps // _SAVES)}": saves,
        "checkpoint.keep=[]": saves if has_policies else "",
    }
    split = map(split_override, given.overrides)
    asked_for = {".".join(found[0]) for found in split if found is not None}
    added = [text for text, names in wanted.items() if names and not asked_for & {*names.split()}]
    if added:
        say(f"To log every step and save often: {' '.join(f'-o {text}' for text in added)}")
    return replace(given, overrides=(*given.overrides, *added))


@dataclass(frozen=True)
class _Trial:
    """One config under trial."""

    asked: VerifyResume
    given: GivenConfig
    folder: str
    steps: int  # of the run
    record: str  # name of the metrics file

    def run(self) -> "tuple[list[Life], str | None]":
        """The lives of the killed run, and what differs from the unbroken run; prints all of it."""
        whole = []
        for count in self.asked.device_counts or [None]:
            # A new process, as a user would start it: Python's hashes have another seed there than
            # in the forks, and nothing may depend on it.
            name = "unbroken" if count is None else f"unbroken-{count}"
            whole.append(self._live(name, count, None, is_fork=False))
            on = "" if count is None else f" on {count} CPU devices"
            say(f"unbroken{on}: {self.steps} steps in {whole[-1].seconds:.1f} s")
        reference, *others = (Outcome(life.folder, self.record) for life in whole)
        allowed = None
        if others:
            spreads = [spread_between(reference, each) for each in others]
            by_loss = max(spreads, key=lambda each: each.loss)
            by_state = max(spreads, key=lambda each: each.state)
            allowed = replace(by_loss, state=by_state.state, state_at=by_state.state_at)
        lives = self._killed_lives(whole[0])
        rows, kill = [], 0
        for life in lives:
            kill += life.was_killed
            rows.append(
                {
                    "run": basename(life.folder),
                    "kill": str(kill) if life.was_killed else "none",
                    "devices": "-" if life.devices is None else str(life.devices),
                    "resumed from": f"step-{life.began_at}" if life.began_at else "scratch",
                    "lived": f"{life.seconds:.1f} s",
                    "was then": life.place if life.was_killed else "done",
                }
            )
        print_rows(rows)
        for folder in dict.fromkeys(life.folder for life in lives):
            killed = Outcome(folder, self.record)
            found = first_difference(
                reference,
                killed,
                [life for life in lives if life.folder == folder],
                devices=whole[0].devices,
                allowed=allowed,
            )
            if found is not None:
                say(f"Different: {found}", "bold red")
                return lives, found
            if allowed is not None:
                spread = spread_between(reference, killed)
                say(
                    f"Moved between numbers of devices: losses differ by up to {spread.loss:.1e} "
                    f"of their value ({spread.loss_at}), the final state by up to "
                    f"{spread.state:.1e} ({spread.state_at}).\nRuns that stay on one number differ "
                    f"from each other by up to {allowed.loss:.1e} and {allowed.state:.1e}: sums in "
                    f"another order. The bound is {_MOVED_FACTOR:g} times that."
                )
        # The verdict on a run without a fault, and how much it is worth.
        arrays = len(reference.receipt)
        verdict = (
            f"Equal: killed {_times(kill)}, the run logged the same losses in all of its "
            f"{self.steps} steps and ended with the same {arrays} arrays, bit for bit."
        )
        if allowed is not None:
            verdict = (
                f"Equal: killed and moved {_times(kill)}, the run was the same bit for bit until "
                f"it was first moved, and within the bound in all of its {self.steps} steps and "
                f"{arrays} arrays."
            )
        resumed = sum(0 < life.began_at < self.steps for life in lives)
        inside = sum(life.was_killed and life.saving is not None for life in lives)
        worth = (
            f"It continued from the middle {_times(resumed)}; {inside} of the kills fell into a "
            "save."
            if resumed
            else "But it never continued from the middle: each life began at its start or at its "
            "end, so this says little about resuming. Give it more --steps, or another --seed."
        )
        say(f"{verdict} {worth}", "bold green")
        return lives, None

    def _killed_lives(self, unbroken: "Life") -> "list[Life]":
        """The lives of the run, killed as often as was asked and then left to its end."""
        kills, counts = self.asked.kills, self.asked.device_counts
        chance = random.Random(self.asked.seed)
        kinds = kinds_of(kills, chance)
        lengths: dict[Kind, float] = {
            "start": unbroken.starting_s,
            "step": (unbroken.seconds - unbroken.starting_s) / self.steps,
            "save": min(unbroken.saves_s, default=0.0),  # later than the shortest, most are over
        }
        lives: list[Life] = []
        run, devices, misses = 1, unbroken.devices, 0
        while kinds or not lives or lives[-1].was_killed:
            if lives and not lives[-1].was_killed:  # it came to its end: start another
                run, misses = run + 1, misses + 1
                if misses >= _MISSES_IN_A_ROW:
                    raise LaunchError(
                        f"{misses} runs in a row that came to their end before they could be "
                        f"killed, with {len(kinds)} of {kills} kills to go",
                        allowed="runs that are long enough to be killed",
                        fix="ask for more --steps or fewer --kills",
                    )
            name, instant = f"killed-{run}", None
            if kinds:
                done, left = newest_checkpoint(join(self.folder, name)), len(kinds)
                instant = draw_instant(kinds[0], done, self.steps, left, lengths, chance)
            life = self._live(name, devices, instant)
            lives.append(life)
            if life.was_killed:
                kinds.pop(0)
                misses = 0
                if devices is not None:  # in turn: so every number is moved to and from
                    devices = counts[(counts.index(devices) + 1) % len(counts)]
                on = "" if life.devices is None else f" on {life.devices} devices"
                kill = f"kill {kills - len(kinds)} of {kills}{on}"
                say(f"{kill}: after {life.seconds:.1f} s, {life.place}")
            else:
                say(f"came to its end after {life.seconds:.1f} s")
            if life.steps:  # forks start sooner, compilers may have a cache now
                lengths["start"] = life.starting_s
        return lives

    def _live(
        self, name: str, devices: int | None, instant: "Instant | None", *, is_fork: bool = True
    ) -> "Life":
        """A process that trains in the folder of that name until it is done or killed."""
        folder, log = join(self.folder, name), join(self.folder, f"{name}.log")
        words = ["train", *replace(self.given, prefix=self.given.outputs).words()]
        words += ["--run-dir", folder]
        # No run of a trial is worth a page of its own on the web.
        environment = {"WANDB_API_KEY": "", "WANDB_MODE": "disabled"}
        if devices is not None:
            environment |= {"JAX_PLATFORMS": "cpu", _DEVICE_COUNT: str(devices)}
        # A fork is sound because the server that forks does nothing else: JAX has looked for no
        # device there, and has no thread that a fork could lose.
        make = get_context("forkserver").Process if is_fork else get_context("spawn").Process
        process = make(target=_become, args=(words, log, environment))
        process.start()
        life = Life(folder, self.record, devices)
        try:
            life.watch(process, instant)
        except BaseException:
            _kill(process)
            process.join(_LONGEST_END_S)
            raise
        if not life.was_killed and life.code != 0:
            tail = Path(log).read_text(errors="replace")[-_TAIL_CHARACTERS:].strip()
            raise LaunchError(
                f"a process that nobody killed ended with {life.code} ({life.place}):\n{tail}\n",
                allowed="a run that comes to its end",
                fix=f"make `chomp train {self.given.path}` run first",
            )
        return life


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _become(words: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    """Be the process that the command would have started, to its end."""
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    # Read from the environment when JAX was imported, which was before.
    if _DEVICE_COUNT in environment:
        jax.config.update("jax_platforms", environment["JAX_PLATFORMS"])
        jax.config.update("jax_num_cpu_devices", int(environment[_DEVICE_COUNT]))
    sys.exit(exit_code(words))


def _kill(process: BaseProcess) -> None:
    """End a process and whatever it started by SIGKILL, at once; no-op if it has ended."""
    process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)


# --- when a life ends, and what it had done ----------------------------------------------------


@dataclass(frozen=True)
class Instant:
    """When to kill a life: `delay_s` after it has reached a step or a save, or as the save ends."""

    kind: Kind
    at_step: int  # steps that are completed, or that the save is of
    delay_s: float


def kinds_of(kills: int, chance: random.Random) -> list[Kind]:
    """A kind for each kill, as many of each as of the others, in random order."""
    kinds = [_KINDS[index % len(_KINDS)] for index in range(kills)]
    chance.shuffle(kinds)
    return kinds


def draw_instant(
    kind: Kind,
    done: int,
    steps: int,
    kills_left: int,
    lengths: Mapping[Kind, float],
    chance: random.Random,
) -> Instant:
    """When to kill a life that goes on after `done` of `steps` steps.

    `kills_left` counts this one. They share the steps that are left, so a life gets further the
    fewer kills follow it; `lengths` is how many seconds a start, a step and a save take.
    """
    reach = 2 * (steps - done) / (kills_left + 1)
    at_step = min(steps, done + 1 + int(chance.uniform(0, reach)))
    return Instant(kind, at_step, chance.uniform(0, lengths[kind]))


class Life:
    """One process of a run, from its start to its end; seconds count from its start."""

    def __init__(self, folder: str, record: str, devices: int | None = None) -> None:
        self.folder = folder
        self.devices = devices
        self.began_at = newest_checkpoint(folder)  # 0: there was none
        self.steps: list[int] = []  # logged, in order
        self.saving: int | None = None  # step of the checkpoint that it is writing
        self.saves_s: list[float] = []  # how long each save took
        self.seconds = 0.0
        self.was_killed = False  # by its watcher
        self.code: int | None = None  # how it ended; below 0: by that signal
        self._folder_at_s: float | None = None
        self._first_row_at_s: float | None = None
        self._save_began_s = 0.0
        self._record = Path(folder, record)
        # Up to the last whole line: the rest was torn by a kill, and the next life removes it.
        before = self._record.read_bytes() if self._record.exists() else b""
        self._read = before.rfind(b"\n") + 1
        self._left_over = dict(self._unfinished())  # by the life before this one

    @property
    def starting_s(self) -> float:
        """Until the first step was logged; from the folder on, as only some lives import."""
        first = self.seconds if self._first_row_at_s is None else self._first_row_at_s
        return first - (self._folder_at_s or 0.0)

    @property
    def place(self) -> str:
        """Where in the run it was at its end, in words."""
        where = f"after step {self.steps[-1] + 1}" if self.steps else "starting"
        return where if self.saving is None else f"{where}, saving step {self.saving}"

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        names = ("folder", "devices", "began_at", "was_killed", "code", "seconds", "starting_s")
        return {
            **{name: getattr(self, name) for name in names},
            "saving_s": min(self.saves_s, default=0.0),
            "first_step": self.steps[0] if self.steps else None,
            "last_step": self.steps[-1] if self.steps else None,
            "saving": self.saving,
            "place": self.place,
        }

    def watch(self, process: BaseProcess, instant: Instant | None) -> None:
        """Watch the process, which was just started, to its end; kill it at `instant`, if any."""
        began = time.monotonic()
        due = saving = None
        kill_sent = False
        while process.exitcode is None:
            process.join(_LOOK_EVERY_S)
            self._look(time.monotonic() - began)
            if instant is None:
                continue
            if due is None and self._has_reached(instant):
                due, saving = self.seconds + instant.delay_s, self.saving
            # The instant is to be inside of the start or of the save.
            is_over = (instant.kind == "start" and bool(self.steps)) or (
                instant.kind == "save" and self.saving != saving
            )
            if due is not None and (self.seconds >= due or is_over):
                _kill(process)
                kill_sent = True
        self._look(time.monotonic() - began)
        self.code = process.exitcode
        self.was_killed = kill_sent and process.exitcode == -signal.SIGKILL

    def _look(self, now: float) -> None:
        """Read what is new in the folder, `now` seconds after the start."""
        self.seconds = now
        if self._folder_at_s is None and os.path.isdir(self.folder):
            self._folder_at_s = now
        self.steps += self._new_steps()
        if self._first_row_at_s is None and self.steps:
            self._first_row_at_s = now
        # One that is touched again is being written, or removed to be written anew.
        unfinished = self._unfinished()
        current = [step for step, time_ns in unfinished if self._left_over.get(step) != time_ns]
        saving = max(current, default=None)
        if saving != self.saving:
            if self.saving is not None:
                self.saves_s.append(now - self._save_began_s)
            self.saving, self._save_began_s = saving, now

    def _has_reached(self, instant: Instant) -> bool:
        if instant.kind == "save":
            return self.saving is not None and self.saving >= instant.at_step
        completed = self.steps[-1] + 1 if self.steps else self.began_at
        return instant.kind == "start" or completed >= instant.at_step

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
            with contextlib.suppress(ValueError):  # torn by a kill
                row = json.loads(line)
                if isinstance(row, dict) and metrics.TRAIN_LOSS in row:
                    yield int(row["step"])

    def _unfinished(self) -> Iterator[tuple[int, int]]:
        """The steps of unfinished checkpoints, and when each was touched."""
        for name in _checkpoint_names(self.folder):
            match = _STEP_NAME.fullmatch(name.removesuffix(UNFINISHED))
            if match and name.endswith(UNFINISHED):
                with contextlib.suppress(FileNotFoundError):  # complete by now
                    path = join(self.folder, CHECKPOINTS, name)
                    yield int(match[1]), os.stat(path).st_mtime_ns


def newest_checkpoint(folder: str) -> int:
    """The step of the newest complete checkpoint of a run; 0 where there is none."""
    matches = map(_STEP_NAME.fullmatch, _checkpoint_names(folder))
    return max((int(match[1]) for match in matches if match), default=0)


def _checkpoint_names(folder: str) -> Sequence[str]:
    try:
        return os.listdir(join(folder, CHECKPOINTS))
    except OSError:
        return ()


# --- whether two runs came out the same --------------------------------------------------------


@dataclass(frozen=True)
class Logged:
    """One compared value of the record."""

    step: int
    name: str
    attempt: int
    value: Any

    def __str__(self) -> str:
        return f"{self.name} of step {self.step}"


@dataclass(frozen=True)
class Outcome:
    """What came of a run, read from its folder."""

    folder: str
    record: str  # name of the metrics file

    @cached_property
    def logged(self) -> list[Logged]:
        """Every compared value, by step, then by attempt."""
        rows = [row for row in read_metrics(join(self.folder, self.record)) if "step" in row]
        found = [
            Logged(row["step"], name, row["attempt"], row[name])
            for row in rows
            for name in row
            if _LOSS.fullmatch(name) or name in (metrics.GRAD_NORM, _EXACT)
        ]
        return sorted(found, key=lambda item: (item.step, item.attempt))

    @cached_property
    def values(self) -> dict[tuple[int, str], Any]:
        """The newest attempt's values, by step and name."""
        return {(item.step, item.name): item.value for item in self.logged}

    @property
    def final_path(self) -> str:
        """The folder of the newest checkpoint."""
        return join(self.folder, CHECKPOINTS, f"step-{newest_checkpoint(self.folder)}")

    @cached_property
    def receipt(self) -> dict[str, str]:
        """Hash of every array in the newest checkpoint."""
        found: dict[str, str] = read_json(join(self.final_path, METADATA))["receipt"]
        return found


@dataclass(frozen=True)
class Spread:
    """The largest relative differences between two runs, and where they are."""

    loss: float
    loss_at: str
    state: float
    state_at: str


def first_difference(
    unbroken: Outcome,
    killed: Outcome,
    lives: Sequence[Life],
    *,
    devices: int | None = None,
    allowed: Spread | None = None,
) -> str | None:
    """The first thing that is not the same, in words; None if all of it is.

    `allowed` is for a run that moved between numbers of devices: it must be the same to the bit
    until it first leaves `devices`, those of the unbroken run, and then within a bound.
    """
    first_moved = inf
    if allowed is not None:
        moved = [life.steps[0] for life in lives if life.devices != devices and life.steps]
        first_moved = min(moved, default=inf)
    for number, life in enumerate(lives, start=1):
        if life.steps and life.steps[0] < life.began_at:
            return (
                f"life {number} began after {life.steps[0]} steps, although the checkpoint of "
                f"step {life.began_at} was complete"
            )
    for item in killed.logged:
        wanted = unbroken.values.get((item.step, item.name))
        if (item.step < first_moved or item.name == _EXACT) and wanted != item.value:
            return (
                f"{item}: {wanted!r} in the unbroken run, {item.value!r} in the killed one "
                f"(attempt {item.attempt})"
            )
    for step, name in sorted(unbroken.values.keys() - killed.values.keys()):
        return (
            f"{name} of step {step}: logged by the unbroken run, and by no attempt of the killed "
            "one"
        )
    ends = [newest_checkpoint(run.folder) for run in (unbroken, killed)]
    if ends[0] != ends[1]:
        return (
            f"the final checkpoint: step {ends[0]} of the unbroken run, step {ends[1]} of the "
            "killed one"
        )
    if allowed is not None:
        if not (isfinite(allowed.loss) and isfinite(allowed.state)):
            return (
                "runs that are not killed differ without bound between these numbers of devices "
                f"({allowed.loss_at}, {allowed.state_at}), so a moved run cannot be judged"
            )
        spread = spread_between(unbroken, killed)
        if spread.loss > _MOVED_FACTOR * allowed.loss:
            return f"{spread.loss_at} differs by {spread.loss:.1e} of its value"
        if spread.state > _MOVED_FACTOR * allowed.state:
            return f"the final {spread.state_at} differs by {spread.state:.1e} of its length"
        return None
    names = sorted(unbroken.receipt.keys() | killed.receipt.keys())
    other = [name for name in names if unbroken.receipt.get(name) != killed.receipt.get(name)]
    if not other:
        return None
    hashes = (str(run.receipt.get(other[0]))[:16] for run in (unbroken, killed))
    return (
        f"{other[0]} of the final state ({' and '.join(hashes)}), the first of {len(other)} arrays "
        f"out of {len(names)}; every loss is the same"
    )


def spread_between(one: Outcome, other: Outcome) -> Spread:
    """How far apart two runs are, of the same steps but not on the same devices."""
    losses: dict[str, float] = {}
    for item in other.logged:
        value = one.values.get((item.step, item.name))
        if _LOSS.fullmatch(item.name) and value:
            # Of several attempts, the one that is furthest off.
            off = abs(item.value - value) / abs(value)
            losses[str(item)] = max(off, losses.get(str(item), 0.0))
    # What is no number with a rounding, a counter or a key, must be the same anywhere.
    arrays = {
        item.name: item.relative if item.is_float else inf
        for item in array_differences(*(read_step_folder(run.final_path) for run in (one, other)))
        if item.kind != "equal"
    }
    largest = []
    for found in (losses, arrays):
        # What is not a number is no distance, and larger than all of them.
        sizes = ((name, inf if isnan(size) else size) for name, size in found.items())
        largest.append(max(sizes, key=lambda each: each[1], default=("nothing", 0.0)))
    (loss_at, loss), (state_at, state) = largest
    return Spread(loss, loss_at, state, state_at)
