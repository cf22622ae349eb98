"""The steps of a launch file, or of a YAML file that fills in the config of one.

A template is loaded by its path at run time, as Python would run it; the library never imports one.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from chomp.cli.evaluated_config import require_evaluated
from chomp.cli.given_config import GivenConfig
from chomp.cli.own_config import own_config, with_own_overrides
from chomp.cli.rounded_vocabulary import with_rounded_vocabulary
from chomp.cli.template_folder import LAUNCH_FILE, known_template
from chomp.errors import ConfigError, message, require

if TYPE_CHECKING:  # for annotations alone
    from chomp.executor import ExecutorStep
    from chomp.launch.launching import DryRun

_STEPS = "steps"
_DRY_RUN = "dry_run"
_CONFIG_SUFFIX = "LaunchConfig"
_TEMPLATE_KEY = "template"
_CONTENT = "__launch_file_content__"  # in a loaded module: what it was loaded from
RUN_CLASS = "GrugRunConfig"  # as templates call the config of a run
_BASE = "experiments/grug/base"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch file with the config that it is to make steps of."""

    path: str  # of the launch file
    source: str  # of the config: the same, or a YAML file
    config: Any  # its own, or that of a YAML file; after overrides
    steps_of: Callable[[Any], Iterable[ExecutorStep]]
    dry_run: DryRun | None  # None: the launch file has none
    run_dir: str | None = None  # where a YAML file says that its run goes
    run_class: type | None = None  # the class of a run's config, as far as the file has it

    def steps(self, overrides: Sequence[str] = ()) -> list[ExecutorStep]:
        """The steps, of which the last is the run; with further overrides. Nothing is planned."""
        from chomp.config import apply_overrides

        config = apply_overrides(self.config, overrides)
        with _told_of(self.source):
            found = list(self.steps_of(config))
        require(
            bool(found),
            given=f"{self.path}, whose {_STEPS} gives no step",
            allowed="at least one step",
            fix=f"return the training step from {_STEPS}",
        )
        return found


def launch_steps(given: GivenConfig) -> list[ExecutorStep]:
    """The steps of a launch file or a YAML file after overrides. Nothing is planned or run."""
    return loaded_launch(given).steps()


def loaded_launch(given: GivenConfig) -> Launch:
    """A launch file with its own config or that of a YAML file, after overrides."""
    is_yaml = given.kind() == "YAML file"
    content = _yaml_mapping(given) if is_yaml else {}
    launch_file = _launch_file(given, _taken_template(content, source=given.path))
    module = loaded_module(launch_file)
    cls = launch_class(module, launch_file)
    said = own_config(cls, content, source=given.path)
    config = with_own_overrides(said.config, given.overrides)
    if is_yaml:
        _refuse_code_by_file(said.config, config, given)
    config = with_rounded_vocabulary(config, said.vocab_multiple)
    with _told_of(given.path):
        require_evaluated(config)
    return Launch(
        path=launch_file,
        source=given.path,
        config=config,
        steps_of=_steps_of(module, launch_file),
        dry_run=getattr(module, _DRY_RUN, None),
        run_dir=said.run_dir,
        run_class=getattr(module, RUN_CLASS, None),
    )


@contextmanager
def _told_of(source: str) -> Iterator[None]:
    """Let an error about several fields together say which file they are of."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(f"{source}: {error}") from error


def loaded_module(path: str) -> ModuleType:
    """A Python file as a module, run now; not as `__main__`, so it launches nothing.

    A file that was loaded before and has not changed is the same module: steps of both are sent to
    other processes by the names of their functions, which a second one would take from the first.
    """
    location = Path(path).resolve()
    # Its own name by its place: two launch files of one process must not be one module.
    name = f"launch_file_{hashlib.sha256(str(location).encode()).hexdigest()[:12]}"
    content = location.read_bytes()
    known = sys.modules.get(name)
    if known is not None and vars(known).get(_CONTENT) == content:
        return known
    spec = importlib.util.spec_from_file_location(name, location)
    assert spec is not None, "a file whose name ends in .py has a loader"
    assert spec.loader is not None, "a file whose name ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    vars(module)[_CONTENT] = content
    sys.modules[name] = module  # where dataclasses look up their annotations
    try:
        with _searched_first(location.parent, _package_root(location.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _yaml_mapping(given: GivenConfig) -> dict[str, Any]:
    from chomp.config.files import parse_yaml
    from chomp.storage import read_text

    content = parse_yaml(read_text(given.path), source=given.path)
    require(
        content is None or isinstance(content, dict),
        given=f"{given.path}, which holds a {type(content).__name__}",
        allowed="a mapping of the template's launch config",
        fix="write keys such as data: and train: at its top level",
    )
    return content or {}


def _refuse_code_by_file(said: Any, config: Any, given: GivenConfig) -> None:
    """Raise `ConfigError` where it is the file that lets tasks bring code: it may be anybody's."""
    harness = getattr(getattr(said, "eval", None), "harness", None)
    if harness is None or not harness.allow_code:
        return
    without = replace(said, eval=replace(said.eval, harness=replace(harness, allow_code=False)))
    require(
        with_own_overrides(without, given.overrides) == config,  # they say so, or turn it off
        f"eval.harness.allow_code=true in {given.path}",
        allowed="code of tasks where the command line asks for it, too",
        fix="read the code of the tasks and pass -o eval.harness.allow_code=true, or take it out",
    )


def _taken_template(content: dict[str, Any], *, source: str) -> Any:
    """What a file says about its template, variables replaced; taken out of its content."""
    from chomp.config.variables import SECTION, replace_variables

    if _TEMPLATE_KEY not in content:
        return None
    said = {SECTION: content.get(SECTION), _TEMPLATE_KEY: content.pop(_TEMPLATE_KEY)}
    return replace_variables(said, source=source)[_TEMPLATE_KEY]


def _launch_file(given: GivenConfig, template_key: Any) -> str:
    """The launch file that a config is of."""
    if given.kind() == "launch file":
        require(
            given.template is None,
            given=f"--template {given.template} with the launch file {given.path}",
            allowed="--template with a YAML file",
            fix="leave out --template",
        )
        return given.path
    require(
        template_key is None or isinstance(template_key, str),
        given=f"template={template_key!r} in {given.path}",
        allowed="the name of a template, or its folder",
        fix=f"write {_TEMPLATE_KEY}: base",
    )
    folder = known_template(given.template, in_file=template_key, beside=given.path)
    return str(folder / LAUNCH_FILE)


def launch_class(module: ModuleType, path: str) -> type[Any]:
    """The class of the launch file's config, found by its name."""
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and name.endswith(_CONFIG_SUFFIX)
    }
    # One that is imported to be built upon is not the file's own.
    own = {name: value for name, value in found.items() if value.__module__ == module.__name__}
    if len(own or found) != 1:
        listed = ", ".join(sorted(own or found)) or "none"
        raise ConfigError(
            message(
                given=f"{path} with these classes named *{_CONFIG_SUFFIX}: {listed}",
                allowed="a launch file with one of them, whose defaults are the run",
                fix="name the config of the launch file so, and others otherwise",
            )
        )
    return next(iter((own or found).values()))


def _steps_of(module: ModuleType, path: str) -> Callable[[Any], Iterable[ExecutorStep]]:
    steps_of = getattr(module, _STEPS, None)
    if not callable(steps_of):
        raise ConfigError(
            message(
                given=f"{path} without a function {_STEPS}",
                allowed=f"a launch file in which {_STEPS}(config) gives the steps of a run",
                fix=f"name the function so that is given to executor_main, as in "
                f"{_BASE}/{LAUNCH_FILE}",
            )
        )
    found: Callable[[Any], Iterable[ExecutorStep]] = steps_of
    return found


def _package_root(folder: Path) -> Path:
    """The folder from which the files in a package are imported by their full names."""
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


@contextmanager
def _searched_first(*folders: Path) -> Iterator[None]:
    """Let imports find what they find when the file is run from a checkout."""
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        yield
    finally:
        sys.path[:] = before
