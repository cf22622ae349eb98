"""Steps in processes of their own on this machine: `--on process`.

First the parent's side, which checks all it can before the first step begins; then how a step is
sent to a process and run there; then the GPUs of this machine, and who has them.
"""

import faulthandler
import importlib.util
import io
import itertools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

from chomp.errors import ChompError, LaunchError
from chomp.executor import PlannedStep, Resources
from chomp.launch.console import print_gpu_wait, show_log_warnings
from chomp.launch.gang import member_environment, raise_end, run_gang
from chomp.launch.signals import StopRequest, die_with_parent
from chomp.launch.step_result import (
    Outcome,
    append_log,
    log_header,
    log_path,
    outcome_of,
    read_outcome,
    write_outcome,
)

VISIBLE = "CUDA_VISIBLE_DEVICES"
PLATFORMS = "JAX_PLATFORMS"
# Not by -m, since the package `chomp.launch` itself imports that module.
_RUN_STEP = "from chomp.launch.process import run_sent_step; run_sent_step()"
_MAIN = "__main__"
# What multiprocessing calls the file that was `__main__`: its `if __name__ ==` must not run again.
_MAIN_AGAIN = "__mp_main__"
_NVIDIA_SMI_S = 30.0  # the first call after a boot wakes every GPU


class ProcessRunner:
    """Runs steps in other processes; may be called from several threads at once.

    A context of the main thread: while it is entered, Ctrl-C and SIGTERM are passed on to the
    processes, which save and end; the calls then raise `RunInterrupted`. Raises `LaunchError` for
    a step that cannot be sent to another process, or that asks for more than this machine has.
    """

    def __init__(self, plan: Sequence[PlannedStep]) -> None:
        to_do = [item for item in plan if item.action != "skip"]
        self._gpus = GpuPool(visible_gpus() if to_do else [])
        for item in to_do:
            _require_possible(item, self._gpus.size)
        # All of them now: a step that cannot be sent is found before the first has begun.
        self._payloads = {item.path: pack_step(item) for item in to_do}
        self._stop = StopRequest()
        self._lent: dict[str, list[str]] = {}  # GPUs of the steps that have room, by folder

    def __enter__(self) -> Self:
        self._stop.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.__exit__(*raised)

    @contextmanager
    def room(self, planned: PlannedStep) -> Iterator[None]:
        """While it is entered, the step has the GPUs that it asks for; waits until they are free.

        Raises once all steps are to stop.
        """
        count = planned.resources.processes * gpus_each(planned.resources, self._gpus.size)
        tell = partial(print_gpu_wait, planned, count)
        with self._gpus.lend(count, tell, self._stop.raise_if_requested) as gpus:
            self._lent[planned.path] = gpus
            try:
                yield
            finally:
                del self._lent[planned.path]

    def __call__(self, planned: PlannedStep) -> None:
        """Run a step that has `room`; returns when it is done, raises what it raised."""
        wanted, gpus = planned.resources, self._lent[planned.path]
        each = gpus_each(wanted, self._gpus.size)
        self._stop.raise_if_requested()  # only now: room may have been long in coming
        with ExitStack() as opened:

            def start(index: int, given: Mapping[str, str]) -> StepMember:
                shown: Mapping[str, str] = {}  # whatever there is
                if wanted.gpus:
                    shown = {VISIBLE: ",".join(gpus[index * each : (index + 1) * each])}
                elif wanted.gpus == 0:
                    shown = hidden_gpus(os.environ, has_gpus=self._gpus.size > 0)
                header = log_header(planned, index, wanted.processes)
                member = StepMember(
                    self._payloads[planned.path],
                    environment=member_environment({**given, **shown}),
                    log=opened.enter_context(append_log(log_path(planned.path, index), header)),
                )
                opened.callback(member.close)
                return member

            end = run_gang(
                start,
                wanted.processes,
                name=planned.title,
                # A single process that was killed here, for want of memory say, would be again.
                restarts=wanted.restarts if wanted.processes > 1 else 0,
                stop=self._stop,
            )
        raise_end(planned, end, self._stop)

    def ask_to_stop(self) -> None:
        """Let all steps that run now save and end, and no other begin."""
        self._stop.ask()
        self._gpus.look_again()


def usual_concurrency(plan: Sequence[PlannedStep]) -> int:
    """How many steps of a plan this machine's cores can run at once; at least one."""
    # The cores that this process was given, not those of the machine: a container may have few.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = [item.resources for item in plan if item.action != "skip"]
    most = max((each.processes * each.cpus for each in wanted), default=1.0)
    return max(1, int((cores or 1) / max(most, 1.0)))


class StepMember:
    """A process that runs a step which was packed by `pack_step`; a `Member` of a gang.

    `environment` is its whole environment. It prints to `log`. It ends with this process, and
    Ctrl-C at the terminal does not reach it: whoever watches it passes that on. `close` it in the
    end.
    """

    def __init__(self, payload: bytes, *, environment: Mapping[str, str], log: BinaryIO) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chomp-step-")
        self._outcome = str(Path(self._folder.name, "outcome.json"))
        # What is an error for this process is one there, too.
        warnings = [flag for option in sys.warnoptions for flag in ("-W", option)]
        with tempfile.TemporaryFile() as sent:
            # A file and not a pipe, which the process might never empty.
            sent.write(payload)
            sent.seek(0)
            self._process = subprocess.Popen(
                die_with_parent([sys.executable, *warnings, "-c", _RUN_STEP, self._outcome]),
                stdin=sent,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal that ended it; None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to save and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it now, and what it has started; does nothing to one that has ended."""
        if self._process.poll() is None:
            # Its group, which it leads: what it has started must not write any more either.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def outcome(self) -> Outcome | None:
        """How the step ended; None if its process could not say so."""
        return read_outcome(self._outcome)

    def close(self) -> None:
        """Remove what the process left behind. To be called once it has ended."""
        self._folder.cleanup()


# ---- A step on its way to another process -----------------------------------------------------
#
# A step is sent by pickle, which names modules and does not hold them. Python finds most of them by
# itself. Two kinds it does not find: the launch file that was run as `__main__`, and one that was
# loaded from its path under a made-up name. Those are loaded from their files before the step is
# unpacked. A payload comes from the process that started this one, never from a folder: unpacking
# runs code.


def pack_step(planned: PlannedStep) -> bytes:
    """The step with everything that another process needs to call it.

    Raises `LaunchError` for a function or a config that cannot be sent.
    """
    content = io.BytesIO()
    pickler = _NotingPickler(content)
    try:
        pickler.dump((planned.step.fn, planned.config))
        sources = [_source_of(name) for name in pickler.modules]
    except (pickle.PicklingError, AttributeError, TypeError, ImportError) as error:
        raise LaunchError(
            f"step {planned.step.name!r} cannot be sent to another process: {error}",
            allowed="a function at the top level of a file, and a config of plain dataclasses",
            fix="move the function there (no lambda, nothing defined inside another function), "
            "or run with --on local",
        ) from error
    return pickle.dumps(
        {
            "arguments": sys.argv,
            "paths": [*sys.path, *(path for _, _, paths in sources for path in paths)],
            "files": {name: file for name, file, _ in sources if file is not None},
            "step": content.getvalue(),
        }
    )


def run_sent_step() -> None:
    """Run the step that is sent to stdin, write how it ended to the file of argument 1, and exit.

    The exit code is that of a launch file which ran the step itself: 0, an error's own, 75 and 130
    for interruptions.
    """
    faulthandler.enable()  # a crash in native code leaves where it was in the log
    show_log_warnings()
    payload, outcome = sys.stdin.buffer.read(), sys.argv[1]
    error: BaseException | None = None
    try:
        fn, config = _unpack_step(payload)
        fn(config)
    # All of them: sys.exit in a step is no success, and Ctrl-C is reported to whoever waits.
    except BaseException as raised:
        error = raised
        # For the log. A `ChompError` says all in its message; any other is a bug.
        if isinstance(raised, ChompError):
            print(f"{type(raised).__name__}: {raised}", file=sys.stderr)
        else:
            traceback.print_exception(raised)
    ended = outcome_of(error)
    # Before this process ends: at exit, a process of a gang may wait for the others, or crash.
    write_outcome(outcome, ended)
    sys.exit(ended.exit_code)


class _NotingPickler(pickle.Pickler):
    """Notes the modules whose functions and classes a pickle names."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: dict[str, None] = {}  # in order

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) or callable(obj):
            module = getattr(obj, "__module__", None)
            if isinstance(module, str) and module in sys.modules:
                self.modules[module] = None
        return NotImplemented  # pickled as usual


def _source_of(name: str) -> tuple[str, str | None, list[str]]:
    """A module, the file to load it from if its name does not lead there, and paths it needs."""
    file = getattr(sys.modules[name], "__file__", None)
    if file is None:
        if name == _MAIN:
            raise ImportError("it is defined in no file, but typed in")
        return name, None, []  # built into the interpreter
    place = Path(file).resolve()
    # An extension module has more than one suffix.
    own = () if place.stem == "__init__" else (place.name.partition(".")[0],)
    parts, names = (*place.parent.parts, *own), tuple(name.split("."))
    if name != _MAIN and parts[-len(names) :] == names:
        return name, None, [str(Path(*parts[: -len(names)]))]
    if "." in name:
        raise ImportError(f"{name} is no name that {file} can be imported by")
    root = place.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return name, str(place), [str(place.parent), str(root)]


def _unpack_step(payload: bytes) -> tuple[Callable[[Any], Any], Any]:
    """The function and the config that were sent, in a process that does nothing else.

    The import path and the arguments of this process become those of the one that sent them.
    """
    sent = pickle.loads(payload)
    sys.argv = sent["arguments"]
    # Theirs first and in their order: a name must not lead to another file here.
    sys.path[:] = dict.fromkeys([*sent["paths"], *sys.path])
    for name, file in sent["files"].items():
        spec = importlib.util.spec_from_file_location(_MAIN_AGAIN if name == _MAIN else name, file)
        if spec is None or spec.loader is None:
            raise LaunchError(
                f"{file}, from which a step was sent, is no Python file here",
                allowed="a file that both processes see at the same path",
                fix="share the folder between the machines, or start from a folder that is shared",
            )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look up their annotations
        spec.loader.exec_module(module)
        # Both names, as multiprocessing does: what was pickled there says `__main__`.
        sys.modules[name] = module
    fn, config = pickle.loads(sent["step"])
    return fn, config


# ---- GPUs of this machine. JAX is not asked for them: it would take them ----------------------


def visible_gpus() -> list[str]:
    """Names of the NVIDIA GPUs this process sees: what CUDA_VISIBLE_DEVICES lists, else all."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        # As CUDA reads it: whatever follows an invalid name, such as -1, does not count.
        return list(itertools.takewhile(lambda name: name not in ("-1", "NoDevFiles"), names))
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, check=True, timeout=_NVIDIA_SMI_S
        )
    except (OSError, subprocess.SubprocessError):
        return []  # no driver, or one that does not answer
    return answer.stdout.split()


def is_on_cpu() -> bool:
    """Whether JAX was told to use the CPU although there may be GPUs."""
    return os.environ.get(PLATFORMS, "").split(",")[0] == "cpu"


def gpus_each(wanted: Resources, shown: int) -> int:
    """How many GPUs a process of a step takes for itself, on a machine that shows so many.

    A step that asks for no number takes all: two that train on one GPU would run out of memory.
    """
    if wanted.gpus is None:
        return 0 if is_on_cpu() else shown
    return wanted.gpus


def hidden_gpus(environ: Mapping[str, str], *, has_gpus: bool) -> dict[str, str]:
    """Variables, over those in `environ`, of a process that is to see no GPU.

    `has_gpus` says whether there are any to hide.
    """
    platforms = [name for name in environ.get(PLATFORMS, "").split(",") if name]
    others = [name for name in platforms if name not in ("cuda", "gpu", "rocm")]
    # JAX fails if it was told to use a GPU and finds none, so only its other platforms are left
    # (a TPU, say). If it was told nothing and is built for GPUs, it would only complain.
    is_told = len(others) < len(platforms) or (has_gpus and not platforms)
    return {VISIBLE: ""} | ({PLATFORMS: ",".join(others) or "cpu"} if is_told else {})


class GpuPool:
    """GPUs that are lent to one process at a time, first come first served. Threads may share it.

    Otherwise a step that wants many would wait for as long as there are others that want few.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.size = len(names)
        self._free = list(names)
        self._queue: list[object] = []
        self._changed = threading.Condition()

    @contextmanager
    def lend(
        self,
        count: int,
        on_wait: Callable[[], None] = lambda: None,
        require_wanted: Callable[[], None] = lambda: None,
    ) -> Iterator[list[str]]:
        """The names of `count` GPUs that nobody else has; waits until there are so many.

        `on_wait` is called once, before that. `require_wanted` is called before they are taken and
        whenever `look_again` is; it may raise, which ends the wait. 0 GPUs are never waited for.
        """
        names = self._take(count, on_wait, require_wanted) if count else []
        try:
            yield names
        finally:
            with self._changed:
                # In front: the next step finds the same ones, and not yet another one.
                self._free = names + self._free
                self._changed.notify_all()

    def look_again(self) -> None:
        """Let all who wait check whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def _take(
        self, count: int, on_wait: Callable[[], None], require_wanted: Callable[[], None]
    ) -> list[str]:
        turn = object()

        def is_turn() -> bool:
            require_wanted()
            return self._queue[0] is turn and len(self._free) >= count

        with self._changed:
            self._queue.append(turn)
        try:
            with self._changed:
                is_waiting = not is_turn()
            if is_waiting:
                on_wait()  # without the lock: a terminal that is full would stop all others
            with self._changed:
                self._changed.wait_for(is_turn)
                names, self._free = self._free[:count], self._free[count:]
                return names
        finally:
            with self._changed:
                self._queue.remove(turn)
                self._changed.notify_all()  # the next in the queue may find enough


def _require_possible(planned: PlannedStep, gpus: int) -> None:
    """Raise `LaunchError` for a step that asks for more than this machine has."""
    wanted, name = planned.resources, f"step {planned.step.name!r}"
    each = f" in each of {wanted.processes} processes" if wanted.processes > 1 else ""
    if wanted.gpus is None and wanted.processes > 1 and gpus_each(wanted, gpus):
        share = gpus // wanted.processes
        raise LaunchError(
            f"{name} has {wanted.processes} processes and says nothing of GPUs, and this machine "
            f"shows {gpus}",
            allowed="processes that are told how many GPUs each of them gets",
            fix=(f"set resources.gpus={share}, or " if share else "lower resources.processes, or ")
            + "resources.gpus=0 for CPUs alone",
        )
    if wanted.processes * (wanted.gpus or 0) > gpus:
        raise LaunchError(
            f"{name} asks for {wanted.gpus} GPUs{each}, and this machine shows {gpus}",
            allowed="no more than there are",
            fix=f"lower resources.gpus or resources.processes, check {VISIBLE}, or run it on "
            "a cluster with --on ray",
        )
    if wanted.custom:
        raise LaunchError(
            f"{name} asks for {', '.join(wanted.custom)}",
            allowed="CPUs and GPUs, which is what processes of one machine can be given",
            fix="run it with --on ray on a cluster that has them, or leave them out",
        )
    # A check and no limit: a step may use more than it asked for.
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if wanted.memory_gb is not None and wanted.processes * wanted.memory_gb > memory_gb:
        raise LaunchError(
            f"{name} asks for {wanted.memory_gb:g} GB{each}, and this machine has {memory_gb:.1f}",
            allowed="no more than there is",
            fix="lower resources.memory_gb, or run it on a cluster with --on ray",
        )
