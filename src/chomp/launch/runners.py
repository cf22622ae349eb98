"""Who runs the steps of a plan (`--on local`, `process` or `ray`), and how many at once."""

# ruff: noqa: PLC0415
# What is imported inside functions is what the other runners do not need; Ray is an extra.

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from chomp.errors import require
from chomp.executor import PlannedStep, Room, Runner
from chomp.launch.local_runner import local_runner

RUNNERS = ("local", "process", "ray")
# Threads of this process that only wait: the cluster itself decides what runs when.
_MOST_ON_RAY = 32


@dataclass(frozen=True, kw_only=True)
class ChosenRunner:
    """A runner, how many steps it may be given at once, and how it is told to stop them."""

    run: Runner
    max_concurrent: int = 1
    ask_to_stop: Callable[[], None] = lambda: None
    # Entered for each try at a step, before its lock is taken: lends it what it takes here.
    room: Room | None = None
    has_logs: bool = False  # whether what steps print goes to their folders, and not to a terminal


def chosen_name(name: str | None, max_concurrent: int | None) -> str:
    """The runner that the options ask for; `ConfigError` for options that nothing can obey.

    Steps at the same time need processes of their own: a training run has this one to itself, with
    its signals, its devices and its environment.
    """
    require(
        name is None or name in RUNNERS,
        f"--on {name}",
        allowed=f"one of {', '.join(RUNNERS)}",
        fix="local: in this process; process: in processes of this machine; ray: on a cluster",
    )
    require(
        max_concurrent is None or max_concurrent >= 1,
        f"--max-concurrent {max_concurrent}",
        allowed="1 or more",
        fix="give the number of steps that may run at the same time",
    )
    at_once = max_concurrent is not None and max_concurrent > 1
    require(
        not (at_once and name == "local"),
        f"--max-concurrent {max_concurrent} with --on local",
        allowed="one step at a time in this process",
        fix="use --on process",
    )
    return name or ("process" if at_once else "local")


@contextmanager
def runner_named(
    name: str, plan: Sequence[PlannedStep], *, max_concurrent: int | None = None
) -> Iterator[ChosenRunner]:
    """The runner of that name for the steps of a plan, as long as the context lasts.

    Raises `LaunchError` for a step that asks for what it does not have, before anything runs. To be
    entered in the main thread.
    """
    if name == "local":
        yield ChosenRunner(run=local_runner(plan))
    elif name == "process":
        from chomp.launch.process_runner import process_runner, usual_concurrency

        most = max_concurrent or usual_concurrency(plan)
        with process_runner(plan) as here:
            yield ChosenRunner(
                run=here,
                max_concurrent=most,
                ask_to_stop=here.ask_to_stop,
                room=here.room,
                has_logs=True,
            )
    else:
        from chomp.launch.ray_runner import ray_runner

        to_do = sum(item.action != "skip" for item in plan)
        most = max_concurrent or min(_MOST_ON_RAY, max(1, to_do))
        with ray_runner(plan) as there:
            yield ChosenRunner(
                run=there,
                max_concurrent=most,
                ask_to_stop=there.ask_to_stop,
                has_logs=True,
            )
