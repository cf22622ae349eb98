"""`chomp verify-resume`: a run to its end, the same run killed again and again, and the verdict."""

import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from chomp.cli.load_config import GivenConfig
from chomp.cli.output import print_json, print_rows, say
from chomp.cli.verify_lives import (
    DEVICE_COUNT,
    Forks,
    Instant,
    Kind,
    Life,
    RunFacts,
    Started,
    draw_instant,
    kinds_of,
    live,
    newest_checkpoint,
    start_from_scratch,
)
from chomp.cli.verify_verdict import (
    MOVED_FACTOR,
    Outcome,
    Spread,
    first_difference,
    first_moved_difference,
    spread_between,
    widest_spread,
)
from chomp.config.names import split_override
from chomp.errors import LaunchError, require

_UNBROKEN, _KILLED = "unbroken", "killed"
# So many saves in a run that all kinds of instants have something to hit.
_SAVES = 8
_SAVE_INTERVAL_S = 1.0
# A run that ends before its instant comes is begun anew, but not for ever.
_MISSES_IN_A_ROW = 5
_TAIL_CHARACTERS = 2000
_LONGEST_END_S = 60.0


def verify_resume(
    given: GivenConfig,
    *,
    steps: int | None,
    kills: int,
    seed: int,
    devices: Sequence[int],  # none: whatever is there
    keep: str | None,
    is_json: bool,
) -> int:
    """Run, kill, compare and print; the exit code, 0 if the killed run is the unbroken one."""
    given.require_file()
    overrides = [] if steps is None else [f"trainer.steps={steps}"]
    # The axis that takes every device which the others leave.
    overrides += ["mesh.data=null"] if devices else []
    given = replace(given, overrides=(*given.overrides, *overrides))
    folder = _work_folder(keep)
    forks = Forks(given, environment=_environment(devices, None))
    try:
        facts = forks.facts()
        with contextlib.redirect_stdout(sys.stderr if is_json else sys.stdout):
            trial = _Trial(_with_saves(given, facts), kills, seed, devices, facts, forks, folder)
            lives, difference = trial.run()
    except BaseException:
        # The error says what went wrong; logs would pile up.
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        forks.close()
    is_kept = difference is not None or keep is not None
    if is_json:
        content = {"is_equal": difference is None, "difference": difference}
        content |= {"folder": folder if is_kept else None}
        print_json({**content, "lives": [{**asdict(life), "place": life.place} for life in lives]})
    elif is_kept:
        say(f"Both runs, and what each process printed, are in {folder}")
    if not is_kept:
        shutil.rmtree(folder)
    return 0 if difference is None else 1


@dataclass(frozen=True)
class _Trial:
    """One config under trial."""

    given: GivenConfig
    kills: int
    seed: int
    devices: Sequence[int]
    facts: RunFacts
    forks: Forks
    folder: str

    def run(self) -> tuple[list[Life], str | None]:
        """The lives of the killed run, and what differs from the unbroken run; prints all of it."""
        unbroken = self._unbroken(self.devices[0] if self.devices else None)
        allowed = self._allowed(unbroken.folder)
        lives = self._killed_lives(unbroken)
        print_rows(_rows(lives))
        reference = Outcome(unbroken.folder, self.facts)
        for folder in dict.fromkeys(life.folder for life in lives):
            of_folder = [life for life in lives if life.folder == folder]
            killed = Outcome(folder, self.facts)
            if allowed is None or unbroken.devices is None:
                found = first_difference(reference, killed, of_folder)
            else:
                found = first_moved_difference(
                    reference, killed, of_folder, devices=unbroken.devices, allowed=allowed
                )
            if found is not None:
                say(f"Different: {found}", "bold red")
                return lives, found
            if allowed is not None:
                _say_spread(spread_between(reference, killed), allowed)
        say(_success_message(reference, lives, allowed), "bold green")
        return lives, None

    def _unbroken(self, devices: int | None) -> Life:
        """A life that is not killed: a new process, as a user would start it.

        Python's hashes have another seed there than in the forks: nothing may depend on it.
        """
        name = _UNBROKEN if devices is None else f"{_UNBROKEN}-{devices}"
        life = self._live(name, devices, None, is_fork=False)
        on = "" if devices is None else f" on {devices} CPU devices"
        say(f"unbroken{on}: {self.facts.steps} steps in {life.seconds:.1f} s")
        return life

    def _allowed(self, folder: str) -> Spread | None:
        """How far runs on other numbers of devices are from this one; None without any."""
        if not self.devices:
            return None
        reference = Outcome(folder, self.facts)
        others = [self._unbroken(count).folder for count in self.devices[1:]]
        return widest_spread(
            spread_between(reference, Outcome(each, self.facts)) for each in others
        )

    def _killed_lives(self, pace: Life) -> list[Life]:
        """The lives of the run, killed `kills` times and then left to its end."""
        chance = random.Random(self.seed)
        kinds = kinds_of(self.kills, chance)
        lives: list[Life] = []
        run, devices, misses = 1, pace.devices, 0
        while kinds or not lives or lives[-1].was_killed:
            if lives and not lives[-1].was_killed:  # it came to its end: begin another
                run, misses = run + 1, misses + 1
                if misses >= _MISSES_IN_A_ROW:
                    raise LaunchError(
                        f"{misses} runs in a row that came to their end before they could be "
                        f"killed, with {len(kinds)} of {self.kills} kills to go",
                        allowed="runs that are long enough to be killed",
                        fix="ask for more --steps or fewer --kills",
                    )
            name = f"{_KILLED}-{run}"
            life = self._live(name, devices, self._instant(name, kinds, pace, chance))
            lives.append(life)
            if life.was_killed:
                kinds.pop(0)
                misses = 0
                if devices is not None:  # in turn: so every number is moved to and from
                    at = self.devices.index(devices) + 1
                    devices = self.devices[at % len(self.devices)]
                on = "" if life.devices is None else f" on {life.devices} devices"
                kill = f"kill {self.kills - len(kinds)} of {self.kills}{on}"
                say(f"{kill}: after {life.seconds:.1f} s, {life.place}")
            else:
                say(f"came to its end after {life.seconds:.1f} s")
            if life.first_step is not None:  # forks start sooner, compilers may have a cache now
                pace = replace(pace, starting_s=life.starting_s)
        return lives

    def _instant(
        self, name: str, kinds: Sequence[Kind], pace: Life, chance: random.Random
    ) -> Instant | None:
        """When the next life of the run is killed; None: never, since no kinds of kill are left."""
        if not kinds:
            return None
        return draw_instant(
            kinds[0],
            done=newest_checkpoint(os.path.join(self.folder, name)),
            steps=self.facts.steps,
            kills_left=len(kinds),
            pace=pace,
            chance=chance,
        )

    def _live(
        self, name: str, devices: int | None, instant: Instant | None, *, is_fork: bool = True
    ) -> Life:
        """A process that trains in the folder of that name until it is done or killed."""
        is_fork = is_fork and self.facts.can_fork
        with self._process(name, devices, is_fork=is_fork) as (process, folder, log):
            life = live(process, folder, self.facts, instant, devices)
        if not life.was_killed and life.code != 0:
            tail = Path(log).read_text(errors="replace")[-_TAIL_CHARACTERS:].strip()
            raise LaunchError(
                f"a process that nobody killed ended with {life.code} ({life.place}):\n{tail}\n",
                allowed="a run that comes to its end",
                fix=f"make `chomp train {self.given.path}` run first",
            )
        return life

    @contextmanager
    def _process(
        self, name: str, devices: int | None, *, is_fork: bool
    ) -> Iterator[tuple[Started, str, str]]:
        """A process that trains in the folder of that name, its folder and its log."""
        folder, log = os.path.join(self.folder, name), os.path.join(self.folder, f"{name}.log")
        words = ["train", self.given.path, "--run-dir", folder, "--prefix", self.given.outputs]
        words += [part for override in self.given.overrides for part in ("-o", override)]
        words += [] if self.given.template is None else ["--template", self.given.template]
        start = self.forks.start if is_fork else start_from_scratch
        process = start(words, log=log, environment=_environment(self.devices, devices))
        try:
            yield process, folder, log
        except BaseException:
            process.kill()
            process.wait(_LONGEST_END_S)
            raise


def _with_saves(given: GivenConfig, facts: RunFacts) -> GivenConfig:
    """The config with every step logged and many saves, unless overrides say otherwise."""
    every = max(1, facts.steps // _SAVES)
    saving = "checkpoint checkpoint.every checkpoint.save_every checkpoint.keep"
    wanted = {  # with the keys that say otherwise if they were given
        "trainer.log_every=1": "train trainer train.log_every trainer.log_every",
        f"checkpoint.save_interval_s={_SAVE_INTERVAL_S}": "checkpoint checkpoint.save_interval_s",
        f"checkpoint.every={every}": saving,
        "checkpoint.keep=[]": saving if facts.has_keep_policies else "",
    }
    split = map(split_override, given.overrides)
    asked_for = {".".join(found[0]) for found in split if found is not None}
    added = [text for text, names in wanted.items() if names and not asked_for & {*names.split()}]
    if added:
        say(f"To log every step and save often: {' '.join(f'-o {text}' for text in added)}")
    return replace(given, overrides=(*given.overrides, *added))


def _environment(counts: Sequence[int], devices: int | None) -> Mapping[str, str]:
    # No run of a trial is worth a page of its own on the web.
    environment = {"WANDB_API_KEY": "", "WANDB_MODE": "disabled"}
    if counts:
        environment["JAX_PLATFORMS"] = "cpu"
        environment[DEVICE_COUNT] = str(devices or counts[0])
    return environment


def _work_folder(keep: str | None) -> str:
    if keep is None:
        return tempfile.mkdtemp(prefix="verify-resume-")
    require(
        not os.path.exists(keep) or (os.path.isdir(keep) and not os.listdir(keep)),
        given=f"--keep {keep}, which holds something",
        allowed="a folder that is new or empty",
        fix="choose another",
    )
    os.makedirs(keep, exist_ok=True)
    return keep


# --- what is printed ----------------------------------------------------------------------------


def _rows(lives: Sequence[Life]) -> list[dict[str, str]]:
    """What became of every process, one line each."""
    rows, kill = [], 0
    for life in lives:
        kill += life.was_killed
        rows.append(
            {
                "run": os.path.basename(life.folder),
                "kill": str(kill) if life.was_killed else "none",
                "devices": "-" if life.devices is None else str(life.devices),
                "resumed from": f"step-{life.began_at}" if life.began_at else "scratch",
                "lived": f"{life.seconds:.1f} s",
                "was then": life.place if life.was_killed else "done",
            }
        )
    return rows


def _say_spread(spread: Spread, allowed: Spread) -> None:
    """How far a moved run is from the unbroken one, and why that much is allowed."""
    say(
        f"Moved between numbers of devices: losses differ by up to {spread.loss:.1e} of their "
        f"value ({spread.loss_at}), the final state by up to {spread.state:.1e} "
        f"({spread.state_at}).\nRuns that stay on one number differ from each other by up to "
        f"{allowed.loss:.1e} and {allowed.state:.1e}: sums in another order. The bound is "
        f"{MOVED_FACTOR:g} times that."
    )


def _success_message(reference: Outcome, lives: Sequence[Life], allowed: Spread | None) -> str:
    """The verdict on a run without a fault, and how much it is worth."""
    steps, arrays = reference.facts.steps, len(reference.receipt)
    kills = sum(life.was_killed for life in lives)
    if allowed is None:
        verdict = (
            f"Equal: killed {kills} times, the run logged the same losses in all of its {steps} "
            f"steps and ended with the same {arrays} arrays, bit for bit."
        )
    else:
        verdict = (
            f"Equal: killed and moved {kills} times, the run was the same bit for bit until it was "
            f"first moved, and within the bound in all of its {steps} steps and {arrays} arrays."
        )
    resumed = sum(0 < life.began_at < steps for life in lives)
    inside = sum(life.was_killed and life.saving is not None for life in lives)
    if resumed:
        return (
            f"{verdict} It continued from the middle {resumed} times; {inside} of the kills fell "
            "into a save."
        )
    return (
        f"{verdict} But it never continued from the middle: each life began at its start or at its "
        "end, so this says little about resuming. Give it more --steps, or another --seed."
    )
