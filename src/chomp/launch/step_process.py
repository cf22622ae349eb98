"""The process of one step: it reads a packed step from stdin and runs it.

It writes how that ended to the file that its argument names. The exit code is that of a launch file
which ran the step itself: 0, an error's own, 75 and 130 for interruptions.

A step is sent by pickle, which names modules and does not hold them. Python finds most of them by
itself. Two kinds it does not find: the launch file that was run as `__main__`, and one that was
loaded from its path under a made-up name. Those are loaded from their files before the step is
unpacked. A payload comes from the process that started this one, never from a folder: unpacking
runs code.
"""

import faulthandler
import importlib
import importlib.util
import io
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from chomp.errors import ChompError, LaunchError
from chomp.executor import PlannedStep
from chomp.launch.console import show_log_warnings
from chomp.launch.step_result import outcome_of, write_outcome

_MAIN = "__main__"
# What multiprocessing calls the file that was `__main__`: its `if __name__ ==` must not run again.
_MAIN_AGAIN = "__mp_main__"


def main() -> None:
    """Run the step that is sent to this process, and end with its exit code."""
    faulthandler.enable()  # a crash in native code leaves where it was in the log
    sys.exit(run_sent_step(sys.stdin.buffer.read(), sys.argv[1]))


def run_sent_step(payload: bytes, outcome: str) -> int:
    """Run a step that was sent here; the exit code. How it ended is written to `outcome`."""
    show_log_warnings()
    error: BaseException | None = None
    try:
        fn, config = load_step(payload)
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
    return ended.exit_code


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


def load_step(payload: bytes) -> tuple[Callable[[Any], Any], Any]:
    """The function and the config that were sent, in a process that does nothing else.

    The import path and the arguments of this process become those of the one that sent them.
    """
    sent = pickle.loads(payload)
    sys.argv = sent["arguments"]
    # Theirs first and in their order: a name must not lead to another file here.
    sys.path[:] = dict.fromkeys([*sent["paths"], *sys.path])
    for name, file in sent["files"].items():
        if name == _MAIN:
            # Both names, as multiprocessing does: what was pickled there says `__main__`.
            sys.modules[_MAIN] = _load_file(_MAIN_AGAIN, file)
        else:
            _load_file(name, file)
    fn, config = pickle.loads(sent["step"])
    return fn, config


class _NotingPickler(pickle.Pickler):
    """Notes the modules whose functions and classes a pickle names."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: dict[str, None] = {}  # in order

    def reducer_override(self, obj: Any) -> Any:
        """Leaves everything to pickle's own ways."""
        if isinstance(obj, type) or callable(obj):
            module = getattr(obj, "__module__", None)
            if isinstance(module, str) and module in sys.modules:
                self.modules[module] = None
        return NotImplemented


def _source_of(name: str) -> tuple[str, str | None, list[str]]:
    """A module, the file to load it from if its name does not lead there, and paths it needs."""
    module = sys.modules[name]
    file = getattr(module, "__file__", None)
    if file is None:
        if name == _MAIN:
            raise ImportError("it is defined in no file, but typed in")
        return name, None, []  # built into the interpreter
    place = Path(file).resolve()
    if name == _MAIN or not _leads_to(name, place):
        if "." in name:
            raise ImportError(f"{name} is no name that {file} can be imported by")
        root = place.parent
        while (root / "__init__.py").is_file():
            root = root.parent
        return name, str(place), [str(place.parent), str(root)]
    above = place.parents[name.count(".") + (place.stem == "__init__")]
    return name, None, [str(above)]


def _leads_to(name: str, place: Path) -> bool:
    """Whether importing `name` from some folder would find the file at `place`."""
    parts = place.with_suffix("").parts if place.stem != "__init__" else place.parent.parts
    # An extension module has more than one suffix.
    parts = (*parts[:-1], parts[-1].partition(".")[0])
    return parts[-name.count(".") - 1 :] == tuple(name.split("."))


def _load_file(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LaunchError(
            f"{file}, from which a step was sent, is no Python file here",
            allowed="a file that both processes see at the same path",
            fix="share the folder between the machines, or start from a folder that is shared",
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module
