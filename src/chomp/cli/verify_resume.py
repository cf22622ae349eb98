"""`chomp verify-resume`: a run to its end, the same run killed again and again, and the verdict."""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from chomp.cli.given_config import GivenConfig
from chomp.cli.terminal import print_table, say
from chomp.cli.verify_forks import DEVICE_COUNT, Forks, RunFacts, Started, started_from_scratch
from chomp.cli.verify_lives import (
    Instant,
    Kind,
    Life,
    drawn_instant,
    kinds_of,
    lived,
    newest_checkpoint,
)
from chomp.cli.verify_telling import kill_table, praise, tell_life, tell_spread
from chomp.cli.verify_verdict import (
    Outcome,
    Spread,
    difference,
    moved_difference,
    spread_between,
    widest,
)
from chomp.config.names import split_override
from chomp.errors import LaunchError, message, require

UNBROKEN, KILLED = "unbroken", "killed"
# So many saves in a run that all kinds of instants have something to hit.
_SAVES = 8
_SAVE_INTERVAL_S = 1.0
# A run that ends before its instant comes is begun anew, but not for ever.
_MISSES_IN_A_ROW = 5
_TAIL_CHARACTERS = 2000
_LONGEST_END_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line asks for besides the config."""

    steps: int | None
    kills: int
    seed: int
    devices: tuple[int, ...]  # none: whatever is there
    keep: str | None


def verified_resume(given: GivenConfig, asked: Asked) -> int:
    """Run, kill, compare and tell; the exit code, 0 if the killed run is the unbroken one."""
    kind = given.kind()
    require(
        kind in ("YAML file", "launch file"),
        given=f"{given.path}, a {kind}",
        allowed="a YAML file or a launch file",
        fix="pass the config that made it",
    )
    given = replace(given, overrides=(*given.overrides, *_asked_overrides(asked)))
    folder = _work_folder(asked.keep)
    forks = Forks(given, environment=_environment(asked, None))
    try:
        facts = forks.facts()
        trial = _Trial(_with_saves(given, facts), asked, facts, forks, folder)
        is_equal = trial.verdict()
    except BaseException:
        # What went wrong is told; logs that nobody asked for would pile up.
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        forks.close()
    if is_equal and asked.keep is None:
        shutil.rmtree(folder)
    else:
        say(f"Both runs, and what each process said, are in {folder}")
    return 0 if is_equal else 1


@dataclass(frozen=True)
class _Trial:
    """One config under trial."""

    given: GivenConfig
    asked: Asked
    facts: RunFacts
    forks: Forks
    folder: str

    def verdict(self) -> bool:
        """Whether the run, killed, is what it is unbroken; tells all about it."""
        unbroken = self._unbroken(self.asked.devices[0] if self.asked.devices else None)
        allowed = self._allowed(unbroken.folder)
        lives = self._killed_lives(unbroken)
        print_table(kill_table(lives))
        reference = Outcome(unbroken.folder, self.facts)
        for folder in dict.fromkeys(life.folder for life in lives):
            of_folder = [life for life in lives if life.folder == folder]
            killed = Outcome(folder, self.facts)
            if allowed is None or unbroken.devices is None:
                found = difference(reference, killed, of_folder)
            else:
                found = moved_difference(
                    reference, killed, of_folder, devices=unbroken.devices, allowed=allowed
                )
            if found is not None:
                say(f"Different: {found}", "bold red")
                return False
            if allowed is not None:
                tell_spread(spread_between(reference, killed), allowed)
        say(praise(reference, lives, allowed), "bold green")
        return True

    def _unbroken(self, devices: int | None) -> Life:
        """A life that nobody ends: a process from scratch, as anybody would start it.

        Python's hashes have another seed there than in the forks: nothing may depend on it.
        """
        name = UNBROKEN if devices is None else f"{UNBROKEN}-{devices}"
        life = self._life(name, devices, None, is_fork=False)
        on = "" if devices is None else f" on {devices} CPU devices"
        say(f"unbroken{on}: {self.facts.steps} steps in {life.seconds:.1f} s")
        return life

    def _allowed(self, folder: str) -> Spread | None:
        """How far runs on other numbers of devices are from this one; None without any."""
        if not self.asked.devices:
            return None
        reference = Outcome(folder, self.facts)
        others = [self._unbroken(count).folder for count in self.asked.devices[1:]]
        return widest(spread_between(reference, Outcome(each, self.facts)) for each in others)

    def _killed_lives(self, pace: Life) -> list[Life]:
        """The lives of the run, killed as often as asked for and then left to its end."""
        chance = random.Random(self.asked.seed)
        kinds = kinds_of(self.asked.kills, chance)
        lives: list[Life] = []
        run, devices, misses = 1, pace.devices, 0
        while kinds or not lives or lives[-1].was_killed:
            if lives and not lives[-1].was_killed:  # it came to its end: begin another
                run, misses = run + 1, misses + 1
                _require_hits(misses, len(kinds), self.asked)
            name = f"{KILLED}-{run}"
            life = self._life(name, devices, self._instant(name, kinds, pace, chance))
            lives.append(life)
            if life.was_killed:
                kinds.pop(0)
                misses = 0
                devices = _next(devices, self.asked.devices)
            if life.first_step is not None:  # forks start sooner, compilers may have a cache now
                pace = replace(pace, starting_s=life.starting_s)
            tell_life(life, self.asked.kills - len(kinds), self.asked.kills)
        return lives

    def _instant(
        self, name: str, kinds: Sequence[Kind], pace: Life, chance: random.Random
    ) -> Instant | None:
        """When the next life of the run is killed; None: never, since no kinds of kill are left."""
        if not kinds:
            return None
        return drawn_instant(
            kinds[0],
            done=newest_checkpoint(os.path.join(self.folder, name), self.facts),
            steps=self.facts.steps,
            kills_left=len(kinds),
            pace=pace,
            chance=chance,
        )

    def _life(
        self, name: str, devices: int | None, instant: Instant | None, *, is_fork: bool = True
    ) -> Life:
        """A process that trains in the folder of that name until it is done or killed."""
        is_fork = is_fork and self.facts.can_fork
        with self._process(name, devices, is_fork=is_fork) as (process, folder, log):
            life = lived(process, folder, self.facts, instant, devices)
        if not life.was_killed:
            self._require_success(life, log)
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
        start = self.forks.start if is_fork else started_from_scratch
        process = start(words, log=log, environment=_environment(self.asked, devices))
        try:
            yield process, folder, log
        except BaseException:
            process.kill()
            process.wait(_LONGEST_END_S)
            raise

    def _require_success(self, life: Life, log: str) -> None:
        if life.code == 0:
            return
        said = Path(log).read_text(errors="replace")[-_TAIL_CHARACTERS:].strip()
        raise LaunchError(
            message(
                given=f"a process that nobody killed ended with {life.code} ({life.place}):\n"
                f"{said}\n",
                allowed="a run that comes to its end",
                fix=f"make `chomp train {self.given.path}` run first",
            )
        )


def _asked_overrides(asked: Asked) -> list[str]:
    """What the options of this command mean as overrides."""
    overrides = [] if asked.steps is None else [f"trainer.steps={asked.steps}"]
    # The axis that takes every device which the others leave.
    return [*overrides, "mesh.data=null"] if asked.devices else overrides


def _with_saves(given: GivenConfig, facts: RunFacts) -> GivenConfig:
    """The config with every step logged and many saves, as far as nothing else was asked for."""
    every = max(1, facts.steps // _SAVES)
    saving = "checkpoint checkpoint.every checkpoint.save_every checkpoint.keep"
    wanted = {  # with what says otherwise if it was asked for
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


def _environment(asked: Asked, devices: int | None) -> Mapping[str, str]:
    # No run of a trial is worth a page of its own on the web.
    environment = {"WANDB_API_KEY": "", "WANDB_MODE": "disabled"}
    if asked.devices:
        environment["JAX_PLATFORMS"] = "cpu"
        environment[DEVICE_COUNT] = str(devices or asked.devices[0])
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


def _next(devices: int | None, counts: Sequence[int]) -> int | None:
    """The number of devices after this one, in turn: so every one is moved to and from."""
    return None if devices is None else counts[(counts.index(devices) + 1) % len(counts)]


def _require_hits(misses: int, kills_left: int, asked: Asked) -> None:
    if misses >= _MISSES_IN_A_ROW:
        raise LaunchError(
            message(
                given=f"{misses} runs in a row that came to their end before they could be killed, "
                f"with {kills_left} of {asked.kills} kills to go",
                allowed="runs that are long enough to be killed",
                fix="ask for more --steps or fewer --kills",
            )
        )
