"""Tasks by name, run through lm-eval's own evaluator.

Task files are read by one safe loader; lm-eval is given what was read, never the file. Without
`allow_code`, only known keys and lm-eval's own metrics pass. Messages name the options of
`chomp harness`, which are the fields of `eval.harness` too.
"""

import logging
import os
import random
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import lm_eval.api.metrics  # registers those that lm-eval has
import lm_eval.utils
import numpy as np
import yaml
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import evaluator, simple_evaluate
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from chomp.config.files import MAX_YAML_BYTES, YAML_FAILURES, require_bounded
from chomp.config.messages import did_you_mean, nearest
from chomp.errors import TRIED_VERSIONS, ConfigError, private_names, require
from chomp.evaluation.harness.model import END, FAILED, HarnessModel, broadcast_message
from chomp.evaluation.harness.results import HarnessResults
from chomp.evaluation.request_scores import TruncationCounts
from chomp.mesh import is_first

# Keys whose values lm-eval reads as data. Not here: process_docs, process_results, custom_dataset
# and class, which are code; use_prompt, which loads prompts by other means; hf_evaluate, a script.
# fmt: off
FEWSHOT_KEYS = frozenset(
    {
        "sampler", "split", "fewshot_indices", "samples", "doc_to_text", "doc_to_choice",
        "doc_to_target", "gen_prefix", "fewshot_delimiter", "target_delimiter",
    }
)
TASK_KEYS = frozenset(
    {
        "task", "task_alias", "tag", "group", "group_alias", "aggregate_metric_list",
        "dataset_path", "dataset_name", "dataset_kwargs", "training_split", "validation_split",
        "test_split", "fewshot_split", "doc_to_text", "doc_to_target", "doc_to_choice",
        "doc_to_image", "doc_to_audio", "unsafe_code", "description", "target_delimiter",
        "fewshot_delimiter", "fewshot_config", "num_fewshot", "metric_list", "output_type",
        "generation_kwargs", "repeats", "filter_list", "should_decontaminate",
        "doc_to_decontamination_query", "gen_prefix", "metadata",
    }
)
# fmt: on
# `datasets` has more readers, one of them for pickles.
FILE_FORMATS = ("arrow", "csv", "json", "parquet", "text", "xml")
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_YAML = (".yaml", ".yml")
_READ_BY_LM_EVAL = ".yaml"
# Draws for standard errors without a formula (perplexity, F1); accuracies have one.
BOOTSTRAP_ITERATIONS = 1000
# What a sandbox refuses, and anything else fills in: the way from a text to all of Python.
_FORBIDDEN = "{{ ''.__class__ }}"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CodeTag:
    """A value with a tag that is not data, such as `!function`."""

    tag: str


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader. Other tags become `CodeTag`, whatever they would have called."""


_Loader.add_constructor(None, lambda loader, node: CodeTag(node.tag))


@dataclass(frozen=True)
class TaskFiles:
    """The task files below a folder: their settings, and why the others could not be read."""

    settings: dict[Path, dict[str, Any]]
    faults: dict[Path, str]


def read_task_files(include_path: str) -> TaskFiles:
    """Every task file below, with what it includes merged in. Nothing in them is run."""
    folder = Path(include_path).resolve()
    settings: dict[Path, dict[str, Any]] = {}
    faults: dict[Path, str] = {}
    known: dict[Path, dict[str, Any]] = {}  # read once, however often it is included
    for path in sorted(folder.rglob("*"), key=Path.as_posix):
        if path.suffix not in _YAML or not path.is_file():
            continue
        try:
            if path.suffix != _READ_BY_LM_EVAL:
                raise ValueError(f"lm-eval reads files whose names end in {_READ_BY_LM_EVAL}")
            settings[path] = _read(path, folder, (), known)
        except (*YAML_FAILURES, OSError, RecursionError) as error:
            faults[path] = " ".join(str(error).split()) or type(error).__name__
    return TaskFiles(settings, faults)


def require_no_code(files: TaskFiles, known_metrics: Container[str]) -> None:
    """Raise `ConfigError` if a file says anything but what is known to be data."""
    for path, settings in files.settings.items():
        problem = next(_problems(settings, known_metrics), None)
        require(
            problem is None,
            f"{path} {problem}",
            allowed="task files without code, unless code is allowed",
            fix="read the code and pass --allow-code (allow_code=true), or move the file out of "
            "the folder",
        )


def write_task_files(files: TaskFiles, folder: Path) -> None:
    """Write what was read into a folder of our own, for lm-eval to index, in the same order."""
    for index, settings in enumerate(files.settings.values()):
        (folder / f"{index:06}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def _read(
    path: Path, folder: Path, parents: tuple[Path, ...], known: dict[Path, dict[str, Any]]
) -> dict[str, Any]:
    if path in parents:
        raise ValueError(f"{path} includes itself")
    if path in known:
        return dict(known[path])
    with path.open("rb") as file:
        text = file.read(MAX_YAML_BYTES + 1)
    require_bounded(text, source=str(path))
    own = yaml.load(text, Loader=_Loader)
    if not isinstance(own, dict):
        raise ValueError("it holds no fields")
    include = own.pop("include", [])
    merged: dict[str, Any] = {}
    for name in include if isinstance(include, list) else [include]:
        if not isinstance(name, str):
            raise ValueError(f"it includes {name!r}, which is not the name of a file")
        included = (path.parent / name).resolve()
        if not included.is_relative_to(folder):
            raise ValueError(f"it includes {name}, which is outside of {folder}")
        if not included.is_file():
            raise ValueError(f"it includes {name}, which is not there")
        part = _read(included, folder, (*parents, path), known)
        part.pop("task_list", None)  # as lm-eval does: it is the included file's own
        merged |= part
    known[path] = merged | own
    return dict(known[path])


def _problems(settings: Mapping[Any, Any], known_metrics: Container[str]) -> Iterator[str]:
    yield from _code_tags(settings)
    for key, value in settings.items():
        if key not in TASK_KEYS and value is not None:
            yield f"has the key {key!r}, which is not known to be data"
    for key in _mapping(settings.get("fewshot_config")).keys() - FEWSHOT_KEYS:
        yield f"has the key fewshot_config.{key}, which is not known to be data"
    for entry in _entries(settings.get("metric_list")):
        metric = entry.get("metric")
        if not isinstance(metric, str) or metric not in known_metrics or "hf_evaluate" in entry:
            yield f"has a metric that is none of lm-eval's own ({metric!r})"
    source = settings.get("dataset_path")
    if source is not None and source not in FILE_FORMATS:
        is_hub_name = isinstance(source, str) and _HUB_NAME.fullmatch(source) is not None
        if not is_hub_name or Path(source).exists() or _is_reader(source):
            formats = ", ".join(FILE_FORMATS)
            yield f"reads data by {source!r}, which is neither of {formats} nor a hub's data set"
    if _mapping(settings.get("dataset_kwargs")).get("trust_remote_code"):
        yield "asks to run a data set's own code (trust_remote_code)"
    for member in _entries(settings.get("task")):  # tasks and groups written inside a group
        yield from _problems(member, known_metrics)


def _is_reader(name: str) -> bool:
    """Whether `datasets` has a reader of that name, which it prefers to a data set on a hub."""
    return (
        "." not in name and "/" not in name and bool(find_spec(f"datasets.packaged_modules.{name}"))
    )


def _code_tags(value: Any) -> Iterator[str]:
    if isinstance(value, CodeTag):
        yield f"names Python functions ({value.tag})"
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    for part in parts if isinstance(value, (dict, list, tuple, set)) else ():
        yield from _code_tags(part)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _entries(value: Any) -> list[Mapping[Any, Any]]:
    """The mappings in a list, or the one given in its place."""
    values = value if isinstance(value, list) else [value]
    return [] if value is None else [_mapping(each) for each in values]


# Fills in the texts of tasks. In lm-eval's own environment a text can run whatever Python can.
# `require_sandbox` checks that tasks are filled in by this one.
with private_names("lm-eval"):
    templates: Any = SandboxedEnvironment(
        loader=lm_eval.utils.env.loader,
        undefined=lm_eval.utils.env.undefined,
        keep_trailing_newline=lm_eval.utils.env.keep_trailing_newline,
    )
    templates.filters |= lm_eval.utils.env.filters
    lm_eval.utils.env = templates


@dataclass(frozen=True, kw_only=True)
class LoadedTasks:
    """Tasks with their data, ready to be run any number of times."""

    items: tuple[Any, ...]  # tasks and groups, as lm-eval has them
    manager: Any
    num_fewshot: int | None
    limit: int | None
    allow_code: bool


def run_tasks(
    model: HarnessModel,
    tasks: Sequence[str],
    *,
    include_path: str | None = None,
    include_defaults: bool = False,
    num_fewshot: int | None = None,
    limit: int | None = None,
    allow_code: bool = False,
) -> HarnessResults:
    """The results of the tasks that `load_tasks` finds by these arguments.

    Of several processes, which all call this, the first alone runs lm-eval.
    """
    load = partial(
        load_tasks,
        tasks,
        include_path=include_path,
        include_defaults=include_defaults,
        num_fewshot=num_fewshot,
        limit=limit,
        allow_code=allow_code,
    )
    return _driven(model, lambda: _run(model, load()))


def run_loaded_tasks(model: HarnessModel, tasks: LoadedTasks | None) -> HarnessResults:
    """The results of tasks that were loaded before: by the first process, which alone has them."""

    def results() -> HarnessResults:
        assert tasks is not None, "the first process has loaded them"
        return _run(model, tasks)

    return _driven(model, results)


def load_tasks(
    tasks: Sequence[str],
    *,
    include_path: str | None = None,
    include_defaults: bool = False,
    num_fewshot: int | None = None,
    limit: int | None = None,
    allow_code: bool = False,
) -> LoadedTasks:
    """The tasks, groups and patterns (`arc_*`) named, with their data.

    Tasks are the YAML files below `include_path` and, with `include_defaults`, those that come with
    lm-eval, whose data is mostly on a hub. `limit`: documents of each task. `allow_code`: Python
    that a file below `include_path` names may be imported, and tasks that run a model's answers as
    programs may do so. Raises `ConfigError` for a task that is not there or cannot be loaded.
    """
    _require_possible(tasks, include_path, include_defaults, num_fewshot, limit)
    asked = _found_tasks(tasks, include_path, include_defaults, allow_code)
    with asked as (manager, names, faults):
        for path, fault in faults.items():
            _log.warning("%s is no task that could be asked: %s", path, fault)
        return LoadedTasks(
            items=tuple(_loaded(manager, names, allow_code)),
            manager=manager,
            num_fewshot=num_fewshot,
            limit=limit,
            allow_code=allow_code,
        )


def require_tasks(
    tasks: Sequence[str],
    *,
    include_path: str | None = None,
    include_defaults: bool = False,
    allow_code: bool = False,
) -> None:
    """Raise `ConfigError` for a task that is not there; the data of tasks is not loaded."""
    _require_possible(tasks, include_path, include_defaults, num_fewshot=None, limit=None)
    with _found_tasks(tasks, include_path, include_defaults, allow_code):
        pass


@contextmanager
def _found_tasks(
    tasks: Sequence[str], include_path: str | None, include_defaults: bool, allow_code: bool
) -> Iterator[tuple[Any, list[str], Mapping[Path, str]]]:
    """lm-eval's index of tasks, the names that were asked for, and files that cannot be read.

    A context: the files that lm-eval indexes are copies of what was checked, and end with it.
    """
    require_sandbox()
    files = TaskFiles({}, {}) if include_path is None else read_task_files(include_path)
    with TemporaryDirectory() as checked:
        if not allow_code:
            require_no_code(files, metric_registry)
            write_task_files(files, Path(checked))
            include_path = checked  # what was checked is what is used
        manager = TaskManager(include_path=include_path, include_defaults=include_defaults)
        names = [found for name in tasks for found in _found(manager, name, files.faults)]
        yield manager, list(dict.fromkeys(names)), files.faults


def _driven(model: HarnessModel, results_of: Callable[[], HarnessResults]) -> HarnessResults:
    """The first process's results in every process; the others compute with it meanwhile."""
    if not is_first():
        return HarnessResults.from_json(model.serve())
    try:
        results = results_of()
    except BaseException as error:
        broadcast_message([FAILED, f"{type(error).__name__}: {error}"])
        raise
    broadcast_message([END, results.as_json()])
    return results


def require_sandbox() -> None:
    """Raise `ConfigError` unless lm-eval fills in the texts of tasks in the sandbox.

    Tried by the methods that its tasks have for that: another version may do it in another way.
    """
    task = SimpleNamespace(prompt=None, features=())
    for name in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        cause = None
        try:
            getattr(ConfigurableTask, name)(task, {}, _FORBIDDEN)
        except SecurityError:
            continue
        except Exception as error:
            cause = error
        tried = TRIED_VERSIONS["lm-eval"]
        raise ConfigError(
            f"lm-eval {version('lm-eval')}, whose chomp sandbox does not render "
            f"{name} of a task{f' ({cause!r})' if cause else ''}: a task file could run any code",
            allowed=f"versions whose tasks use lm_eval.utils.env, such as {tried}, which chomp "
            "is tested with",
            fix=f"run pip install 'lm-eval=={tried}'",
        ) from cause


def _run(model: HarnessModel, tasks: LoadedTasks) -> HarnessResults:
    require_sandbox()  # again: the tasks may have been loaded long ago
    before, model.cuts = model.cuts, TruncationCounts()
    with _undisturbed():
        results = simple_evaluate(
            model=model,
            tasks=list(tasks.items),
            task_manager=tasks.manager,
            num_fewshot=tasks.num_fewshot,
            limit=tasks.limit,
            bootstrap_iters=BOOTSTRAP_ITERATIONS,
            log_samples=False,
            confirm_run_unsafe_code=tasks.allow_code,
        )
    during, model.cuts = model.cuts, before + model.cuts
    return HarnessResults.from_lm_eval(results, during)


def _require_possible(
    tasks: Sequence[str],
    include_path: str | None,
    include_defaults: bool,
    num_fewshot: int | None,
    limit: int | None,
) -> None:
    require(
        len(tasks) > 0 and (num_fewshot or 0) >= 0 and (limit is None or limit > 0),
        f"{len(tasks)} tasks with num_fewshot={num_fewshot} and limit={limit}",
        allowed="at least one task, num_fewshot of 0 or more, limit above 0; null for none",
        fix="name a task, and remove num_fewshot and limit unless needed",
    )
    require(
        include_path is not None or include_defaults,
        "there is no folder of tasks",
        allowed="a folder of YAML files, or lm-eval's own tasks",
        fix="pass --include-path (include_path), or --with-defaults (include_defaults=true)",
    )
    require(
        include_path is None or Path(include_path).is_dir(),
        f"the folder of tasks {include_path} does not exist",
        allowed="a folder of lm-eval task files (.yaml)",
        fix="correct the path",
    )


def _found(manager: Any, name: str, unread: Mapping[Path, str]) -> list[str]:
    known = manager.all_tasks
    matches: list[str] = manager.match_tasks([name])
    some = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    # It may well be in a file that lm-eval has passed over.
    listed = "".join(f"\n  {path} could not be read: {fault}" for path, fault in unread.items())
    require(
        len(matches) > 0,
        f"the task {name}{did_you_mean(nearest(name, known))}{listed}" + ("\n" if listed else ""),
        allowed=some or "none: the folder holds no task",
        fix="correct the name, or pass the folder that holds the task as --include-path "
        "(include_path)",
    )
    return matches


def _loaded(manager: Any, names: list[str], allow_code: bool) -> list[Any]:
    """Tasks and groups with their data, which is read, or fetched, here."""
    loaded: list[Any] = []
    seen: dict[str, str] = {}  # the name under which each task was asked for
    for name in names:
        try:
            found = manager.load([name])
        # Whatever it is that a hub, a file or a library could not do: the task is what to name.
        except Exception as error:
            raise _not_loaded(manager, name, error) from error
        for task, built in found["tasks"].items():
            _require_runnable(name, task, built, seen, allow_code)
        groups = found.get("groups", {})
        # A group holds the groups below it. A tag is no group: it stands for its tasks.
        loaded += [groups[name]] if name in groups else found["tasks"].values()
    return loaded


def _not_loaded(manager: Any, name: str, error: Exception) -> ConfigError:
    fault = f"{type(error).__name__}: {error}"
    # How `datasets` says that the first split has no record; of another it names the split.
    if isinstance(error, StopIteration):
        settings = getattr(manager.task_index.get(name), "cfg", None) or {}
        files = (settings.get("dataset_kwargs") or {}).get("data_files", "its data")
        split, path = next(iter(files.items())) if isinstance(files, dict) else ("train", files)
        fault = f"its {split} split is empty: there is no record in {path}"
    return ConfigError(
        f"the data or definition of the task {name} could not be loaded: {fault}",
        allowed="data in local files (dataset_path: json, with data_files), or a hub "
        "that can be reached",
        fix="correct the task's file; without a network, save its data as JSON lines "
        "and name them in data_files, with an absolute path",
    )


def _require_runnable(
    name: str, task: str, built: Any, seen: dict[str, str], allow_code: bool
) -> None:
    require(
        task not in seen,
        f"the task {task} twice, by {seen.get(task)} and by {name}",
        allowed="each task once",
        fix="name the group or the task, not both",
    )
    seen[task] = name
    require(
        allow_code or not getattr(built, "UNSAFE_CODE", False),
        f"the task {task} runs a model's answers as programs",
        allowed="tasks that run no programs, unless code is allowed",
        fix="pass --allow-code (allow_code=true) where such programs can do no harm, or remove the "
        "task",
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave what lm-eval sets for the whole process as it was.

    It seeds the global generators, and draws for standard errors in forked processes, which a
    process that runs JAX does not survive. It also compiles a task's templates anew for every
    document, which is most of its own time (0.4 ms a request, 0.1 without; November 2026): for
    the while, what was compiled is kept. And it asks git for a commit that no result here tells,
    which outside of a checkout prints an error.
    """
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    templates.from_string = lru_cache(maxsize=1024)(templates.from_string)
    with private_names("lm-eval"):
        commit_of = evaluator.get_git_commit_hash
    evaluator.get_git_commit_hash = lambda: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = commit_of
        del templates.from_string  # the one of its class is there again
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
