"""A YAML file's content in the spelling of a template's own config.

Variables are replaced, and keys of the first chomp become the fields that mean the same, or are
refused with what replaces them. All problems of a file come in one message.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from chomp.cli.earlier_data import (
    precision,
    taken_multiple,
    with_components,
    with_special_tokens,
    with_tokenizer_kind,
)
from chomp.cli.earlier_keys import NULL_IS_DEFAULT, ONLY_EARLIER, RULES, Moved, Rule
from chomp.cli.earlier_overrides import OF_FILES
from chomp.cli.earlier_words import has_field, is_taken, refusal, unknown_earlier
from chomp.cli.secret_keys import refuse_secrets
from chomp.errors import ConfigError, message, require

Content = dict[str, Any]
T = TypeVar("T")


class FileContent(NamedTuple):
    """What a YAML file says: the config of a launch file, and where its run goes.

    `moved` has the keys that stand there for fields of other names; `vocab_multiple` is what the
    model's vocabulary is to be rounded up to.
    """

    config: Content
    run_dir: str | None
    moved: Mapping[str, str]
    vocab_multiple: int | None


def own_content(cls: type, content: Content, *, source: str) -> FileContent:
    """The content of a file, variables replaced, by the keys of the launch config `cls`."""
    from chomp.config.messages import raise_problems
    from chomp.config.variables import replace_variables

    refuse_secrets(content, source=source)
    file = _File(cls, replace_variables(content, source=source))
    run_dir = file.read_together()
    for name, rule in RULES.items():
        file.apply(name, rule)
    file.refuse_unknown()
    raise_problems(source, map(ConfigError, file.problems.values()))
    return FileContent(file.content, run_dir, file.moved, file.vocab_multiple)


class _File:
    """The content of one file while its keys are looked at."""

    def __init__(self, cls: type, content: Content) -> None:
        self._cls = cls
        self.content = {key: _copied(value) for key, value in content.items()}
        self.problems: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.vocab_multiple: int | None = None

    def apply(self, name: str, rule: Rule) -> None:
        """Do what a rule says about a key, if the file has it and the template has it not."""
        section = self._section_of(name)
        key = name.rpartition(".")[2]
        if section is None or key not in section or has_field(self._cls, name):
            return
        value = section.pop(key)
        self._drop_if_empty(name)
        if isinstance(rule, Moved):
            self._move(name, value, rule)
        elif not is_taken(rule, value):
            self.problems[name] = refusal(name, rule, value)

    def read_together(self) -> str | None:
        """Take care of keys whose meaning depends on each other; where the run goes."""
        parts: tuple[Callable[[], None], ...] = (
            self._leave_out_evaluation,
            self._read_special_ids,
            self._read_tokenizer,
            self._read_components,
            self._read_precision,
        )
        for part in parts:
            self._noted(part)
        for name in NULL_IS_DEFAULT:
            section, key = self._section_of(name), name.rpartition(".")[2]
            if section is not None and section.get(key, "") is None:
                del section[key]
        return self._noted(self._take_run_dir)

    def refuse_unknown(self) -> None:
        """Name what is left of a section that is none here, once all rules have been applied."""
        self._refuse_misspelt()
        if ONLY_EARLIER not in self.content or has_field(self._cls, ONLY_EARLIER):
            return
        left = self.content.pop(ONLY_EARLIER) or {}
        names = (
            [f"{ONLY_EARLIER}.{key}" for key in left] if isinstance(left, dict) else [ONLY_EARLIER]
        )
        self.problems |= {name: unknown_earlier(name) for name in names}

    def _refuse_misspelt(self) -> None:
        """Name keys that seem to be those that only files have: `templat`."""
        from chomp.config.fields import settings_by_spelling
        from chomp.config.messages import did_you_mean, nearest

        known = settings_by_spelling(self._cls)
        for key in [key for key in self.content if isinstance(key, str) and key not in known]:
            near = nearest(key, [*known, *OF_FILES])
            if near in OF_FILES:
                del self.content[key]
                self.problems[key] = message(
                    given=f"{key} is not a known key{did_you_mean(near)}",
                    allowed=f"{' and '.join(OF_FILES)}, and the keys of the template's config",
                    fix=f"rename it to {near}",
                )

    def _noted(self, part: Callable[[], T]) -> T | None:
        """What a part of the reading gives; one that fails is a problem among others."""
        try:
            return part()
        except ConfigError as error:
            self.problems[str(error)] = str(error)
            return None

    def _read_special_ids(self) -> None:
        if has_field(self._cls, "model.eos_token_id"):
            return
        model, data = self._inner("model"), self._inner("data") or {}
        tokenizer = data.get("tokenizer")
        given: Content = tokenizer if isinstance(tokenizer, dict) else {}
        without_ids, named = with_special_tokens(model or {}, given)
        if model is not None:
            self.content[self._spelled("model")] = without_ids
        if tokenizer is given:
            data["tokenizer"] = named

    def _read_tokenizer(self) -> None:
        data = self._inner("data")
        if data is not None and isinstance(data.get("tokenizer"), dict):
            if has_field(self._cls, "model.vocab_size"):
                self.vocab_multiple = taken_multiple(data["tokenizer"])
            data["tokenizer"] = with_tokenizer_kind(data["tokenizer"])

    def _read_components(self) -> None:
        data = self._inner("data")
        if data is not None:
            self.content[self._spelled("data")] = with_components(data)

    def _read_precision(self) -> None:
        model = self._inner("model")
        if model is None or has_field(self._cls, "model.param_dtype"):
            return
        self.content[self._spelled("model")], text, keys = precision(model)
        if text is not None:
            self._put("train.precision", text, " and ".join(keys))

    def _leave_out_evaluation(self) -> None:
        """Where there is one text, nothing of it is held out, and an evaluation has nothing."""
        data, train = self._inner("data") or {}, self._inner("train") or {}
        is_text = bool(data.get("local_text")) and data.get("backend") in (None, "local_text")
        if not is_text or not has_field(self._cls, "eval"):
            return
        every = train.pop("eval_every", None) or None
        steps = train.get("steps")
        if isinstance(every, int) and isinstance(steps, int) and every > steps:
            every = None  # never, such as the first chomp's 2500 in a short run
        asked = [] if every is None else [f"train.eval_every={every}"]
        asked += ["eval"] if self.content.get("eval") is not None else []
        self.content["eval"] = None
        require(
            not asked,
            given=f"{' and '.join(asked)} with data.local_text",
            allowed="an evaluation where documents are held out",
            fix="set train.eval_every=0 and no eval, or use data.components with more than one "
            "text",
        )

    def _take_run_dir(self) -> str | None:
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
                    given=f"{name}={value!r}",
                    allowed=allowed,
                    fix=f"write one of them, or set {rule.to}",
                )
                return
            value = rule.values[value]
        self.moved[name] = rule.to
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
        if self.content.get(section) == {} and not has_field(self._cls, section):
            del self.content[section]


def _copied(value: Any) -> Any:
    """Mappings anew: what is moved between them is no change to what was read."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value
