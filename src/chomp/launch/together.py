"""One launch file, started once for each of several processes that train together.

All of them make the plan. Process 0 alone takes locks and runs ordinary steps, while the others
wait for its word; a training step is run by all at once. So nothing waits for a lock that another
process of the same launch holds, and whatever holds among launches holds for this one.
"""

# ruff: noqa: PLC0415
# `chomp.mesh` imports JAX, which a launch of one process must not have to wait for.

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from chomp.config import fingerprint
from chomp.errors import ChompError, LaunchError
from chomp.executor import PlannedStep
from chomp.executor.step import template_folder
from chomp.launch.step_end import resources_of

# Set by JAX's users, and by `srun` (and not for a batch script, which is one process of a job that
# may have many). What they mean is read by `chomp.mesh`.
_COUNT, _INDEX = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
_SLURM_COUNT, _SLURM_NODES = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"
_SLURM_INDEX = "SLURM_PROCID"
_LOOK_EVERY_S = 0.2
# The words of one launch must not be taken for those of the next in the same processes.
_launches = itertools.count()

# Runs a plan with the runner that it is given; the exit code.
RunWith = Callable[[Callable[[PlannedStep], None]], int]


def is_spokesman() -> bool:
    """Whether this process tells of a launch: alone, or the first of several. Asks no device."""
    if not _may_be_several():
        return True
    return (os.environ.get(_INDEX) or os.environ.get(_SLURM_INDEX) or "0") == "0"


@contextmanager
def spoken_once() -> Iterator[None]:
    """What is printed inside comes out of one process of a launch; errors come out of all."""
    if is_spokesman():
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def run_together(planned: Sequence[PlannedStep], run: RunWith) -> int | None:
    """Run a plan with the other processes of this launch; the exit code, None where it is alone.

    `run` is called in process 0 alone. A step is run by all where its `resources.processes` is
    their number; the last one also where it says nothing of it and is a template's own function.
    Returns in all processes with the same code, or raises in those that have a reason of their own.
    """
    if not _are_several():
        return None
    import jax

    from chomp.mesh import leave_on_error

    # JAX takes SIGTERM to tell a training loop of it, and nothing here is one.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with leave_on_error():
        _require_possible(planned, jax.process_count())
        _require_same_plan(planned)
        words = f"launch-{next(_launches)}"
        if jax.process_index() == 0:
            return _lead(words, planned, run, jax.process_count())
        return _follow(words, planned)


def decided_by_first(name: str, decide: Callable[[], Any]) -> Any:
    """What process 0 of this launch decides (plain, as JSON has it), in all of its processes.

    `decide` is called in process 0 alone; where that raises, all processes do. `name` is told then.
    """
    if not _are_several():
        return decide()
    from chomp.mesh import broadcast, is_first, leave_on_error, raise_together

    with leave_on_error(), raise_together(name):
        found = decide() if is_first() else None
    return broadcast(name, found)


def _are_several() -> bool:
    """Whether this launch has several processes, which have joined each other then."""
    if not _may_be_several():
        return False
    from chomp.mesh import prepare_devices

    prepare_devices()  # whole, and not only joining: what is set there must come before devices
    import jax

    return jax.process_count() > 1


def _may_be_several() -> bool:
    """Whether it is worth asking JAX, which takes the devices of this machine."""
    count = os.environ.get(_COUNT)
    if count or os.environ.get(_INDEX):
        return count != "1"  # a number alone is half an invitation, which is refused over there
    tasks = os.environ.get(_SLURM_COUNT, "")
    return tasks.isdigit() and int(tasks) > 1 and bool(os.environ.get(_SLURM_NODES))


def _lead(words: str, planned: Sequence[PlannedStep], run: RunWith, count: int) -> int:
    """Run the plan as process 0, which calls the others to the steps of all."""
    from chomp.mesh import leave_on_error, post

    said = 0

    def run_step(item: PlannedStep) -> None:
        nonlocal said
        if not _is_for_all(item, planned, count):
            item.step.fn(item.config)
            return
        said += 1
        post(words, {"number": said, "path": item.path})
        with leave_on_error():  # the others are inside of the step, and must not wait there
            item.step.fn(item.config)

    code = 1
    try:
        code = run(run_step)
    except BaseException as error:
        usual = 130 if isinstance(error, KeyboardInterrupt) else 1
        code = error.exit_code if isinstance(error, ChompError) else usual
        raise
    finally:
        post(words, {"number": said + 1, "code": code})
    return code


def _follow(words: str, planned: Sequence[PlannedStep]) -> int:
    """Wait for the word of process 0, and do as it says, until it says that all is over."""
    heard = 0
    while True:
        word = _next_word(words, heard)
        heard = word["number"]
        if "code" in word:
            return int(word["code"])
        item = next((item for item in planned if item.path == word["path"]), None)
        if item is None:
            raise LaunchError(
                f"process 0 runs {word['path']}, which the plan of this process has not",
                allowed="processes that see the same results under their prefix",
                fix="use a prefix that all of them share, and start all of them again",
            )
        item.step.fn(item.config)


def _next_word(words: str, heard: int) -> dict[str, Any]:
    """The newest word of process 0, once it is another than the one before.

    However long that takes: where process 0 is lost, JAX ends those that wait for it. Asked for
    again and again and not awaited: inside of JAX a process would not notice a signal.
    """
    from chomp.mesh import read_posts

    while True:
        word: dict[str, Any] | None = read_posts(words).get(0)
        if word is not None and word["number"] > heard:
            return word
        time.sleep(_LOOK_EVERY_S)


def _is_for_all(item: PlannedStep, planned: Sequence[PlannedStep], count: int) -> bool:
    if resources_of(item).processes == count:
        return True
    # The library's own functions (tokens, tokenizers) work alone, wherever they stand.
    return item.path == planned[-1].path and template_folder(item.step.fn) is not None


def _require_possible(planned: Sequence[PlannedStep], count: int) -> None:
    for item in planned:
        wanted = resources_of(item).processes
        if item.action != "skip" and wanted not in (1, count):
            raise LaunchError(
                f"step {item.step.name!r} with resources.processes={wanted}, in a launch "
                f"of {count} processes",
                allowed=f"steps of one process, or of all {count}",
                fix=f"start {wanted} processes, or run with --on process or --on ray from one",
            )


def _require_same_plan(planned: Sequence[PlannedStep]) -> None:
    """Raise `LaunchError` in all processes unless they are about to make the same thing."""
    import jax

    from chomp.mesh import all_gather

    last = planned[-1]
    plans = all_gather("plan", [last.title, last.path, fingerprint(dict(last.sources))])
    different = [index for index, plan in enumerate(plans) if plan != plans[0]]
    if different:
        told = "\n".join(f"  process {index}: {plans[index]}" for index in [0, *different])
        raise LaunchError(
            f"process {jax.process_index()} found that the processes of this launch have "
            f"different plans (step, folder, source):\n{told}\n",
            allowed="one launch file with the same arguments and environment in all of them",
            fix="start all of them alike, from the same source",
        )
