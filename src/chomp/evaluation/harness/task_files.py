"""lm-eval task files, read by one safe loader; lm-eval is given what was read, never the file.

Without `allow_code`, only known keys and lm-eval's own metrics pass. Messages name the options of
`chomp harness`, which are the fields of `eval.harness` too.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from chomp.config.files import YAML_FAILURES, require_bounded
from chomp.errors import require

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
    for path in sorted(folder.rglob("*"), key=Path.as_posix):
        if path.suffix not in _YAML or not path.is_file():
            continue
        try:
            if path.suffix != _READ_BY_LM_EVAL:
                raise ValueError(f"lm-eval reads files whose names end in {_READ_BY_LM_EVAL}")
            settings[path] = _read(path, folder, ())
        except (*YAML_FAILURES, OSError, RecursionError) as error:
            faults[path] = " ".join(str(error).split()) or type(error).__name__
    return TaskFiles(settings, faults)


def require_no_code(files: TaskFiles, known_metrics: Container[str]) -> None:
    """Raise `ConfigError` if a file says anything but what is known to be data."""
    for path, settings in files.settings.items():
        problem = next(_problems(settings, known_metrics), None)
        require(
            problem is None,
            f"{path}, which {problem}",
            allowed="task files without code, unless code is allowed",
            fix="read the code and pass --allow-code (allow_code=true), or move the file out of "
            "the folder",
        )


def write_task_files(files: TaskFiles, folder: Path) -> None:
    """Write what was read into a folder of our own, for lm-eval to index, in the same order."""
    for index, settings in enumerate(files.settings.values()):
        (folder / f"{index:06}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def _read(path: Path, folder: Path, parents: tuple[Path, ...]) -> dict[str, Any]:
    if path in parents:
        raise ValueError(f"{path} includes itself")
    text = path.read_bytes()
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
        part = _read(included, folder, (*parents, path))
        part.pop("task_list", None)  # as lm-eval does: it is the included file's own
        merged |= part
    return merged | own


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
