"""CONFIG on a command line: a launch file, or a YAML file that fills in the config of one.

A template is loaded by its path at run time, as Python would run it; the library never imports one.
"""

import hashlib
import importlib.util
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self

from chomp.cli.legacy_keys import HINTS, legacy_keys_error
from chomp.cli.options import ConfigOptions
from chomp.cli.templates import GRUG, LAUNCH_FILE, known_template
from chomp.config import apply_overrides, config_from_mapping
from chomp.config.fields import dotted, fields_at, settings_by_spelling
from chomp.config.files import MAX_YAML_BYTES, VARIABLES, parse_yaml, replace_variables
from chomp.config.messages import did_you_mean, nearest
from chomp.config.overrides import resolve_also, split_override
from chomp.data import MANIFEST, TOKENS, LmDataConfig, MemorySource, is_held_out, source_documents
from chomp.errors import ConfigError, require
from chomp.executor import ExecutorStep
from chomp.launch.run import DryRun, outputs_folder
from chomp.storage import exists, is_folder, join, list_folder, name_of, parent_of, read_text
from chomp.storage.secrets import (
    is_secret_name,
    redacted,
    without_noted_secrets,
    without_passwords_of,
)
from chomp.tracking.run_files import RESOLVED_CONFIG

RUN_CLASS = "GrugRunConfig"  # as templates call the config of a run

_STEPS = "steps"
_CONFIG_SUFFIX = "LaunchConfig"
_CONTENT = "__launch_file_content__"  # in a loaded module: what it was loaded from
_TEMPLATE_KEY = "template"
_NULLS = ("null", "~", "")

ConfigKind = Literal["launch file", "YAML file", "run folder", "token store"]
_SUFFIXES = (".py", ".yaml", ".yml")

# Other names of fields that a field cannot declare itself, as their values differ, or their
# sections are none here: the field's name, and what each value means.
ALIASES: dict[str, tuple[str, Mapping[Any, Any] | None]] = {
    "data.seed": ("train.data_seed", None),
    "debug.nan_check": ("train.nonfinite_policy", {True: "raise", False: "skip"}),
    "model.use_checkpoint": ("model.remat", {True: "block", False: "none"}),
}
NULL_IS_DEFAULT = "train.generate_temperature"
# What a YAML file has beside the config of its template, and what to do instead of an override.
_OF_FILES = {
    _TEMPLATE_KEY: "use --template NAME",
    VARIABLES: "change the fields that are made from it, or the file",
}


@dataclass(frozen=True, kw_only=True)
class GivenConfig:
    """CONFIG and the options that go with it, before anything is read."""

    path: str
    overrides: tuple[str, ...] = ()
    prefix: str | None = None
    template: str | None = None  # the folder that a YAML file configures

    @classmethod
    def of(cls, path: str, asked: ConfigOptions) -> Self:
        """A CONFIG with the options of a command."""
        overrides = tuple(asked.overrides or ())
        return cls(path=path, overrides=overrides, prefix=asked.prefix, template=asked.template)

    @property
    def outputs(self) -> str:
        """Where outputs go, as in launch files: the prefix, `CHOMP_PREFIX`, or the usual folder."""
        return outputs_folder(self.prefix)

    def kind(self) -> ConfigKind:
        """What is at the path; `ConfigError` where it is nothing that a command can use."""
        path, fix = self.path, "correct the path"
        if is_folder(path):
            if exists(join(path, RESOLVED_CONFIG)):
                return "run folder"
            # A store without its manifest still is one, though an unfinished or a damaged one.
            if exists(join(path, MANIFEST)) or is_folder(join(path, TOKENS)):
                return "token store"
            given = f"{path}, a folder without {RESOLVED_CONFIG} (a run) and {MANIFEST} (a store)"
            if exists(join(path, LAUNCH_FILE)):
                fix = f"pass {join(path, LAUNCH_FILE)}"
        elif exists(path):
            if path.endswith(_SUFFIXES):
                return "launch file" if path.endswith(".py") else "YAML file"
            given = f"{path}, which is neither Python nor YAML by its name"
        else:
            folder = parent_of(path)
            near = nearest(name_of(path), list_folder(folder) if is_folder(folder) else [])
            given = f"there is no {path}{did_you_mean(near)}"
        raise ConfigError(
            given,
            allowed="a YAML file (.yaml), a launch file (.py), a run folder, or a token store "
            "where one is asked for",
            fix=fix,
        )

    @property
    def is_file(self) -> bool:
        """Whether it is a YAML file or a launch file, and no folder that these have made."""
        return self.kind() in ("YAML file", "launch file")

    def require_file(self, fix: str = "pass the config that made it") -> None:
        """Raise `ConfigError` unless it is a config file."""
        require(
            self.is_file,
            f"{self.path}, a {self.kind()}",
            allowed="a YAML file or a launch file",
            fix=fix,
        )

    def words(self) -> list[str]:
        """The config and its options as a command line has them."""
        words = [self.path, *(word for each in self.overrides for word in ("-o", each))]
        words += [] if self.prefix is None else ["--prefix", self.prefix]
        return words + ([] if self.template is None else ["--template", self.template])

    def command(self, *words: str) -> str:
        """A `chomp data` command for this same config, to be copied."""
        return shlex.join(["chomp", "data", *words, *self.words()])

    def refuse_options(self) -> None:
        """Raise `ConfigError` for options that change nothing about what is already there."""
        options = [f"-o {text}" for text in self.overrides]
        options += [] if self.template is None else [f"--template {self.template}"]
        require(
            not options,
            f"{' '.join(options[:1])} with {self.path}, a {self.kind()}",
            allowed="-o and --template with a YAML file, -o with a launch file",
            fix="leave it out, or pass the config that made it",
        )

    def original_text(self) -> str | None:
        """The YAML file as a run keeps it, options as comments at its end; None: no YAML file.

        Secrets are replaced, also passwords that variables put into an address, and what a comment
        notes down after the name of a secret.
        """
        if self.kind() != "YAML file":
            return None
        text = read_text(self.path, max_bytes=MAX_YAML_BYTES)
        # Of the file and not of the config, in which an option may have replaced the address.
        content = replace_variables(parse_yaml(text, source=self.path) or {}, source=self.path)
        options = [] if self.template is None else [f"--template {self.template}"]
        options += [f"-o {override}" for override in self.overrides]
        if options:
            text += "" if not text or text.endswith("\n") else "\n"
            text += "# With these options of the command line:\n"
            # A value may have lines of its own, and each must stay a comment.
            lines = [line for option in options for line in option.splitlines()]
            text += "".join(f"#   {line}\n" for line in lines)
        return without_passwords_of(content, without_noted_secrets(redacted(text)))


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch file with the config that it is to make steps of."""

    path: str  # of the launch file
    source: str  # of the config: the same, or a YAML file
    config: Any  # its own, or that of a YAML file; after overrides
    steps_of: Callable[[Any], Iterable[ExecutorStep]]
    dry_run: DryRun | None  # None: the launch file has none
    run_class: type | None = None  # the class of a run's config, if the file has it

    def steps(self, overrides: Sequence[str] = ()) -> list[ExecutorStep]:
        """The steps, of which the last is the run; with further overrides. Nothing is planned."""
        config = apply_overrides(self.config, overrides)
        with _errors_name(self.source):
            found = list(self.steps_of(config))
        require(
            bool(found),
            f"{self.path}, whose {_STEPS} gives no step",
            allowed="at least one step",
            fix=f"return the training step from {_STEPS}",
        )
        return found


def load_launch(given: GivenConfig) -> Launch:
    """A launch file with its own config or that of a YAML file, after overrides."""
    is_yaml, launch_file = given.kind() == "YAML file", given.path
    content: Any = {}
    if is_yaml:
        found = parse_yaml(read_text(given.path, max_bytes=MAX_YAML_BYTES), source=given.path)
        content = {} if found is None else found
        require(
            isinstance(content, dict),
            f"{given.path}, which holds a {type(content).__name__}",
            allowed="a mapping of the template's launch config",
            fix="write keys such as data: and train: at its top level",
        )
        part = {VARIABLES: content.get(VARIABLES), _TEMPLATE_KEY: content.pop(_TEMPLATE_KEY, None)}
        named = replace_variables(part, source=given.path)[_TEMPLATE_KEY]
        require(
            named is None or isinstance(named, str),
            f"template={named!r} in {given.path}",
            allowed="the name of a template, or its folder",
            fix=f"write {_TEMPLATE_KEY}: base",
        )
        folder = known_template(given.template, in_file=named, beside=given.path)
        launch_file = str(folder / LAUNCH_FILE)
    require(
        is_yaml or given.template is None,
        f"--template {given.template} with the launch file {given.path}",
        allowed="--template with a YAML file",
        fix="leave out --template",
    )
    module = load_module(launch_file)
    of_file = config_of_file(launch_class(module, launch_file), content, source=given.path)
    config = with_overrides(of_file, given.overrides)
    harness = getattr(getattr(of_file, "eval", None), "harness", None) if is_yaml else None
    if harness is not None and harness.allow_code:
        # A stranger may have written the file: the command line must allow it too, or turn it off.
        forbidden = replace(of_file.eval, harness=replace(harness, allow_code=False))
        require(
            with_overrides(replace(of_file, eval=forbidden), given.overrides) == config,
            f"eval.harness.allow_code=true in {given.path}",
            allowed="code of tasks where the command line asks for it, too",
            fix="read that code and pass -o eval.harness.allow_code=true, or take the key out",
        )
    with _errors_name(given.path):
        require_held_out(config)
    steps_of = getattr(module, _STEPS, None)
    if not callable(steps_of):
        raise ConfigError(
            f"{launch_file} without a function {_STEPS}",
            allowed=f"a launch file in which {_STEPS}(config) gives the steps of a run",
            fix=f"give executor_main a function of that name, as {GRUG}/base/{LAUNCH_FILE} does",
        )
    return Launch(
        path=launch_file,
        source=given.path,
        config=config,
        steps_of=steps_of,
        dry_run=getattr(module, "dry_run", None),
        run_class=getattr(module, RUN_CLASS, None),
    )


def load_module(path: str) -> ModuleType:
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
    package_root = location.parent
    while (package_root / "__init__.py").is_file():
        package_root = package_root.parent
    sys.modules[name] = module  # where dataclasses look up their annotations
    search_path = list(sys.path)
    # Imports find what they find when the file is run from a checkout.
    sys.path[:0] = [str(location.parent), str(package_root)]
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path[:] = search_path
    return module


def launch_class(module: ModuleType, path: str) -> type[Any]:
    """The class of the launch file's config, found by its name."""
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and name.endswith(_CONFIG_SUFFIX)
    }
    # One that is imported to be built upon is not the file's own.
    own = {name: each for name, each in found.items() if each.__module__ == module.__name__}
    names = sorted(own or found)
    require(
        len(names) == 1,
        f"{path} with these classes named *{_CONFIG_SUFFIX}: {', '.join(names) or 'none'}",
        allowed="a launch file with one of them, whose defaults are the run",
        fix="name the config of the launch file so, and others otherwise",
    )
    return (own or found)[names[0]]


def config_of_file(cls: type[Any], content: Mapping[str, Any], *, source: str) -> Any:
    """The launch config that a file's content means.

    Raises `ConfigError`, by the names that the file has, for what cannot be.
    """
    _refuse_secrets(content, source=source)
    content = replace_variables(content, source=source)
    launch: type = cls  # as mypy has it, a type[Any] cannot be hashed
    known = settings_by_spelling(launch)
    for key in [key for key in content if isinstance(key, str) and key not in known]:
        near = nearest(key, [*known, *_OF_FILES])
        require(
            near not in _OF_FILES,
            f"{source}: {key} is not a known key{did_you_mean(near)}",
            allowed=f"{' and '.join(_OF_FILES)}, and the keys of the template's config",
            fix=f"rename it to {near}",
        )
    legacy = [name for name in HINTS if _has_key(content, name) and not has_field(cls, name)]
    if legacy:
        raise legacy_keys_error(legacy, source=source)
    content, renamed = _without_aliases(cls, content, source=source)
    with _errors_note(renamed):
        return config_from_mapping(cls, content, source=source)


def with_overrides(config: Any, overrides: Sequence[str]) -> Any:
    """A launch config with overrides, by its own keys or by aliases.

    A section that the config does not have is made, as for a file. Raises `ConfigError` for an
    override that cannot be, by the name it was given.
    """
    translated = {text: _translated(config, text) for text in overrides}
    with _errors_note({text: to for text, to in translated.items() if text != to}):
        return apply_overrides(config, [translated[text] for text in overrides])


def has_field(cls: type, name: str) -> bool:
    """Whether a config class has a field by a dotted name, in any spelling."""
    return bool(fields_at(cls, name.split(".")))


def require_held_out(config: Any) -> None:
    """Raise `ConfigError` for an evaluation where no document is held out, as far as is known.

    Known are only documents that stand in the config itself: others are read when data is built.
    """
    data = getattr(config, "data", None)
    if getattr(config, "eval", None) is None or not isinstance(data, LmDataConfig):
        return
    count = 0
    for name, component in data.components.items():
        source = component.source
        if not isinstance(source, MemorySource) or component.validation_store is not None:
            return
        documents = list(source_documents(source, component.format))
        if any(is_held_out(each, data.held_out_fraction(name)) for each in documents):
            return
        count += len(documents)
    require(
        not data.components,
        f"eval with {count} document{'s' * (count != 1)} in the config, none of them held out",
        allowed="an evaluation where documents are held out",
        fix="leave it out (eval=null), or add documents and raise data.validation_fraction",
    )


# --- secrets in a file, and the names of errors -------------------------------------------------


def _refuse_secrets(content: Any, *, source: str, path: tuple[str, ...] = ()) -> None:
    """Raise `ConfigError` for a text under a key that is a secret by its name, such as `hf_token`.

    Runs keep their file and send it to services. The message has the key and not the value.
    """
    if isinstance(content, list):
        content = dict(enumerate(content))
    if not isinstance(content, Mapping):
        return
    for key, value in content.items():
        inner = (*path, str(key))
        # A special token in angle brackets is no secret, nor is a number or a section.
        is_text = isinstance(value, str) and bool(value) and not value.startswith("<")
        if is_text and is_secret_name(str(key)):
            name = str(key).upper().replace("-", "_")
            raise ConfigError(
                f"{source}: {'.'.join(inner)}, which is a secret by its name, in a file that runs "
                "keep",
                allowed="secrets in the environment, where the libraries that need them look",
                fix=f"remove it, and set {name if '_' in name else 'HF_TOKEN or WANDB_API_KEY'} in "
                "the environment",
            )
        _refuse_secrets(value, source=source, path=inner)


@contextmanager
def _errors_name(source: str) -> Iterator[None]:
    """Let an error about several fields together say which file they are of."""
    try:
        yield
    except ConfigError as error:
        error.within(source)
        raise


@contextmanager
def _errors_note(renamed: Mapping[str, str]) -> Iterator[None]:
    """Let an error about a field say what was written for it, where that has another name."""
    try:
        yield
    except ConfigError as error:
        for name, field in renamed.items():
            if field.partition("=")[0].rpartition(".")[2] in str(error):
                error.add_note(f"({name} is {field} here)")
        raise


# --- other names of fields ----------------------------------------------------------------------


def _without_aliases(
    cls: type, content: Mapping[str, Any], *, source: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The content with aliases replaced by their fields, and which were replaced."""
    found = {k: dict(value) if isinstance(value, dict) else value for k, value in content.items()}
    renamed = {}
    for name, (field, meanings) in ALIASES.items():
        if not _has_key(found, name) or has_field(cls, name):
            continue
        section, key = name.split(".")
        value = found[section].pop(key)
        if not found[section] and not has_field(cls, section):
            del found[section]
        require(
            meanings is None or isinstance(value, bool),
            f"{source}: {name}={value!r}",
            allowed="true or false",
            fix=f"write one of them, or set {field}",
        )
        section, key = field.split(".")
        section = next((each for each in _spellings(section) if each in found), section)
        inside = found.setdefault(section, {})
        require(
            key not in inside,
            f"{source}: {name} and {field} are the same field",
            allowed="one spelling at a time",
            fix=f"remove {name}",
        )
        inside[key] = value if meanings is None else meanings[value]
        renamed[name] = field
    section, key = NULL_IS_DEFAULT.split(".")
    for inside in map(found.get, _spellings(section)):
        if isinstance(inside, dict) and inside.get(key, "") is None:
            del inside[key]
    return found, renamed


def _translated(config: Any, text: str) -> str:
    """An override by the config's own fields. Raises `ConfigError` for a key with a hint."""
    split = split_override(text)
    if split is None:
        return text  # refused where overrides are applied
    parts, value = split
    cls: type = type(config)
    if parts[0] in _OF_FILES and not has_field(cls, parts[0]):
        raise ConfigError(
            f"override: {text!r}: {dotted(parts)}, which only a YAML file has",
            allowed="fields of the template's config",
            fix=_OF_FILES[parts[0]],
        )
    name = ".".join(["train" if parts[0] == "trainer" else parts[0], *parts[1:]])
    path, also = resolve_also(cls, parts)
    if also is not None and name == NULL_IS_DEFAULT and value in _NULLS:
        samples: type = type(config.samples)
        return f"{'.'.join(path)}={settings_by_spelling(samples)[path[-1]].default()}"
    section = ".".join(path[:-1])
    if also is not None and also.zero_is_null and getattr(config, section, None) is None:
        # train.eval_every, where eval is null
        is_off = value in ("0", *_NULLS)
        return f"{section}=null" if is_off else f"{section}={{{path[-1]}: {value}}}"
    if not has_field(cls, name) and name in HINTS:
        raise legacy_keys_error([name], source=f"override: {text!r}")
    if has_field(cls, name) or name not in ALIASES:
        return text
    field, meanings = ALIASES[name]
    meant = parse_yaml(value, source="the value")
    if meanings is not None and isinstance(meant, bool):
        value = meanings[meant]
    return f"{field}={value}"


def _has_key(content: Mapping[str, Any], name: str) -> bool:
    first, *path, key = name.split(".")
    for section in _spellings(first):
        here: Any = content.get(section)
        for part in path:
            here = here.get(part) if isinstance(here, Mapping) else None
        if isinstance(here, Mapping) and key in here:
            return True
    return False


def _spellings(section: str) -> tuple[str, ...]:
    return ("train", "trainer") if section == "train" else (section,)
