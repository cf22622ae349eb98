"""A YAML file's content and overrides in the spelling of a template's own config.

Variables are replaced, and keys of the first chomp become the fields that mean the same, or are
refused with what replaces them. All problems of a file come in one message.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from chomp.cli.earlier_data import precision, with_components, with_tokenizer_kind
from chomp.cli.earlier_keys import NULL_IS_DEFAULT, OF_SOURCES, RULES, Fixed, Moved, Replaced, Rule
from chomp.errors import ConfigError, message, require

Content = dict[str, Any]


class FileContent(NamedTuple):
    """What a YAML file says: the config of a launch file, and where its run goes."""

    config: Content
    run_dir: str | None


def own_content(cls: type, content: Content, *, source: str) -> FileContent:
    """The content of a file, variables replaced, by the keys of the launch config `cls`."""
    from chomp.config.messages import raise_problems
    from chomp.config.variables import without_variables

    file = _File(cls, without_variables(content, source=source))
    try:
        run_dir = file.take_run_dir()
        file.read_together()
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    for name, rule in RULES.items():
        file.apply(name, rule)
    raise_problems(source, {(name,): text for name, text in file.problems.items()})
    return FileContent(file.content, run_dir)


def own_overrides(cls: type, overrides: Sequence[str]) -> list[str]:
    """Overrides by the keys of `cls`; raises `ConfigError` for one of a key that was replaced."""
    return [own for text in overrides if (own := _own_override(cls, text)) is not None]


class _File:
    """The content of one file while its keys are looked at."""

    def __init__(self, cls: type, content: Content) -> None:
        self._cls = cls
        self.content = {key: _copied(value) for key, value in content.items()}
        self.problems: dict[str, str] = {}

    def apply(self, name: str, rule: Rule) -> None:
        """Do what a rule says about a key, if the file has it and the template has it not."""
        section = self._section_of(name)
        key = name.rpartition(".")[2]
        if section is None or key not in section or _has_field(self._cls, name):
            return
        value = section.pop(key)
        self._drop_if_empty(name)
        if isinstance(rule, Moved):
            self._move(name, value, rule)
        elif not _is_taken(rule, value):
            self.problems[name] = _refusal(name, rule, value)

    def read_together(self) -> None:
        """Keys whose meaning depends on each other."""
        data = self._inner("data")
        if data is not None:
            if "local_text" in data and _has_field(self._cls, "eval"):
                self._leave_out_evaluation()
            self.content[self._spelled("data")] = data = with_components(data)
            if isinstance(data.get("tokenizer"), dict):
                data["tokenizer"] = with_tokenizer_kind(data["tokenizer"])
        model = self._inner("model")
        if model is not None and not _has_field(self._cls, "model.param_dtype"):
            self.content[self._spelled("model")], text = precision(model)
            if text is not None:
                self._put("train.precision", text, "model.param_dtype")
        for name in NULL_IS_DEFAULT:
            section, key = self._section_of(name), name.rpartition(".")[2]
            if section is not None and section.get(key, "") is None:
                del section[key]

    def _leave_out_evaluation(self) -> None:
        """Where there is one text, nothing of it is held out, and an evaluation has nothing."""
        train = self._inner("train") or {}
        every = train.get("eval_every") or None
        require(
            every is None,
            given=f"train.eval_every={every} with data.local_text",
            allowed="an evaluation where documents are held out",
            fix="set train.eval_every=0, or use data.components with more than one text",
        )
        train.pop("eval_every", None)
        self.content.setdefault("eval", None)

    def take_run_dir(self) -> str | None:
        """`logging.run_dir`, which is an option here, taken out."""
        logging = self._inner("logging")
        found = None if logging is None else logging.pop("run_dir", None)
        if found is not None and (not isinstance(found, str) or not found.strip()):
            raise ConfigError(
                message(
                    given=f"logging.run_dir={found!r}",
                    allowed="the path of a folder, or null",
                    fix="pass --run-dir FOLDER",
                )
            )
        return found

    def _move(self, name: str, value: Any, rule: Moved) -> None:
        if value is None and rule.is_null_left_out:
            return
        if rule.values is not None:
            if not isinstance(value, bool):
                allowed = f"{' or '.join(str(key).lower() for key in rule.values)}"
                self.problems[name] = message(
                    given=f"{name}={value!r}", allowed=allowed, fix=f"or set {rule.to}"
                )
                return
            value = rule.values[value]
        self._put(rule.to, value, name)

    def _put(self, name: str, value: Any, given_as: str) -> None:
        """Put a value where a field is, unless something is there."""
        *sections, key = name.split(".")
        here = self.content
        for depth, section in enumerate(sections):
            spelled = self._spelled(section) if depth == 0 else section
            if not isinstance(here.get(spelled), dict):
                here[spelled] = {}
            here = here[spelled]
        if key in here:
            self.problems[given_as] = message(
                given=f"{given_as} and {name} are the same field",
                allowed="one spelling at a time",
                fix=f"remove {given_as}",
            )
        here[key] = value

    def _section_of(self, name: str) -> Content | None:
        here: Any = self.content
        for depth, part in enumerate(name.split(".")[:-1]):
            spelled = self._spelled(part) if depth == 0 else part
            here = here.get(spelled) if isinstance(here, dict) else None
        return here if isinstance(here, dict) else None

    def _inner(self, section: str) -> Content | None:
        return self._section_of(f"{section}.")

    def _spelled(self, section: str) -> str:
        """A section's name as the file has it, or as the config has it."""
        from chomp.config.fields import settings_by_spelling

        item = settings_by_spelling(self._cls).get(section)
        spellings = (section,) if item is None else item.spellings
        return next((name for name in spellings if name in self.content), section)

    def _drop_if_empty(self, name: str) -> None:
        """Take a section out that only keys of its own were in, such as `debug`."""
        section = name.partition(".")[0]
        if self.content.get(section) == {} and not _has_field(self._cls, section):
            del self.content[section]


def _own_override(cls: type, text: str) -> str | None:
    """An override as the config spells it; None: it says what is done anyway."""
    from chomp.config.paths import dotted, split_override
    from chomp.config.yaml_text import parsed_yaml

    split = split_override(text)
    if split is None:
        return text  # refused where overrides are applied
    parts, value = split
    first = _canonical(cls, parts[0])
    name = ".".join([first, *parts[1:]])
    rule = RULES.get(name)
    if _has_field(cls, name) or (rule is None and name not in OF_SOURCES):
        return text
    if rule is None:
        raise ConfigError(
            f"override: {text!r}: "
            + message(
                given=f"{dotted(parts)}, which a YAML file may have",
                allowed="fields of the template's config",
                fix=f"use {OF_SOURCES[name]}",
            )
        )
    if isinstance(rule, Moved) and rule.values is None:
        return f"{rule.to}={value}"  # its own type says what the text means
    meant = parsed_yaml(value, source="the value")
    if isinstance(rule, Moved):
        values = rule.values or {}
        return f"{rule.to}={values[meant] if isinstance(meant, bool) else value}"
    if _is_taken(rule, meant):
        return None
    raise ConfigError(f"override: {text!r}: {_refusal(name, rule, meant)}")


def _canonical(cls: type, section: str) -> str:
    """A section as the tables name it: `train` and `optim`, however the config spells them."""
    from chomp.config.fields import settings_by_spelling

    item = settings_by_spelling(cls).get(section)
    known = {name.partition(".")[0] for name in RULES}
    spellings: Iterable[str] = () if item is None else item.spellings
    return next((name for name in spellings if name in known), section)


def _is_taken(rule: Fixed | Replaced, value: Any) -> bool:
    """Whether a value only says what is done anyway; by its type too, as to Python true is 1."""
    return isinstance(rule, Fixed) and (type(value), value) == (type(rule.value), rule.value)


def _refusal(name: str, rule: Fixed | Replaced, value: Any) -> str:
    if isinstance(rule, Replaced):
        return message(
            given=f"{name} is no key here", allowed=f"nothing, since {rule.here}", fix=rule.use
        )
    return message(
        given=f"{name}={_written(value)}",
        allowed=f"{_written(rule.value)}, since {rule.here}",
        fix=rule.use,
    )


def _written(value: Any) -> str:
    """A value as YAML writes it."""
    from chomp.config.yaml_text import yaml_of

    return yaml_of(value).partition("\n")[0]


def _has_field(cls: type, name: str) -> bool:
    """Whether a config class has a field by a dotted name, in any spelling."""
    from chomp.config.declared import sections
    from chomp.config.fields import settings_by_spelling

    classes: tuple[type, ...] = (cls,)
    for part in name.split("."):
        items = [settings_by_spelling(each).get(part) for each in classes]
        found = [item for item in items if item is not None]
        if not found:
            return False
        classes = tuple(inner for item in found for inner in sections(item.declared))
    return True


def _copied(value: Any) -> Any:
    """Mappings anew: what is moved between them is no change to what was read."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value
