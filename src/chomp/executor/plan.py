"""What would happen, and why: for each step run, skip or wait, where, and the field that changed.

Planning only reads. Dependencies stand before their dependants; a step that nobody needs any more
(its only dependants are done) is left out, unless it is forced.
"""

import logging
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chomp.config import MISSING, Difference, canonical_json, config_difference
from chomp.config.fields import KeyPath, dotted
from chomp.errors import ConfigError, LaunchError, StorageError
from chomp.executor.identity import (
    CLASS,
    HASH_DIGITS,
    MODULE,
    Identity,
    identities_at,
    in_order,
    plain_part,
    unhashed_fields,
    with_class_names,
)
from chomp.executor.status import LOCK, StepInfo, StepStatus, read_info, read_status
from chomp.executor.step import (
    LEAVES,
    ExecutorStep,
    InputName,
    OutputName,
    Resources,
    function_name,
    markers,
    replaced,
    source_hashes,
    template_folder,
)
from chomp.storage import is_folder, join, list_folder, lock_holder, name_of, normalise, parent_of
from chomp.storage.secrets import without_secrets

Action = Literal["run", "skip", "wait"]
_log = logging.getLogger(__name__)
_is_planning: ContextVar[bool] = ContextVar("is_planning", default=False)
CHANGES_SHOWN = 3
_MAX_VALUE_CHARACTERS = 80  # longer values are cut: the path says where to look


@contextmanager
def planning_only(is_wanted: bool = True) -> Iterator[None]:
    """Inside, what is asked for to plan steps may be read, and nothing is downloaded."""
    token = _is_planning.set(is_wanted)
    try:
        yield
    finally:
        _is_planning.reset(token)


def is_planning() -> bool:
    """Whether a plan is all that is wanted, so that nothing may be downloaded."""
    return _is_planning.get()


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step with its place on disk and what to do about it."""

    step: ExecutorStep
    identity: Identity
    path: str
    config: Any  # the step's config with every marker replaced
    plain_config: Any  # the same as plain data, with class names
    dependencies: tuple[str, ...]  # output folders
    sources: Mapping[str, str]  # the template's files when the plan was made, as SHA-256
    action: Action
    reason: str
    is_forced: bool
    found: StepStatus | None  # what the folder said when the plan was made
    # What differs from the recorded run although the identity is the same.
    differences: tuple[str, ...]
    # The identity of the run in the folder, if it is another one that is continued as this one.
    continues: str | None = None

    @property
    def title(self) -> str:
        """Name and hash, as in the output path."""
        return f"{self.step.name}-{self.identity.hash}"

    @property
    def resources(self) -> Resources:
        """What the step asks for; by default what an ordinary step does."""
        return self.step.resources or Resources()


def plan_steps(
    steps: Iterable[ExecutorStep],
    *,
    prefix: str,
    only: Sequence[str] = (),
    force: Sequence[str] = (),
    allow: Sequence[str] = (),
    is_source_identity: bool = False,
) -> list[PlannedStep]:
    """The plan for `steps` and all they depend on. `force`: patterns of names to run again.

    `only`: patterns of names to plan, with what these need that is not there, and nothing else.
    `allow`: dotted fields that may differ from what a folder holds, which is then continued; it
    would be moved aside otherwise.
    `is_source_identity`: what was begun with other source of its template is run again, too.
    Equal steps are one step. The last of `steps` stands last, unless another one needs it.
    """
    planner = _Planner(prefix, allow)
    identities, roots = planner.identities, list(steps)

    def with_needs(some: Sequence[ExecutorStep]) -> list[ExecutorStep]:
        return list(in_order(some, lambda step: identities.of(step).dependencies))

    everything = with_needs(roots)
    if only:
        chosen = select_steps("--only", only, everything)
        roots = [step for step in everything if step.name in chosen]
        everything = with_needs(roots)
    names = select_steps("--force", force, everything)
    for step in everything:
        if step.name in names:
            planner.forced[step] = "forced"
        elif is_source_identity:
            info = read_info(planner.path_of(step))
            if info is not None and info.sources != planner.sources_of(step):
                planner.forced[step] = "the source of its template has changed since it was run"
    # A done step does not lead to those it was made from, so forced ones are roots, too.
    hidden = [step for step in planner.forced if step not in roots]
    paths = [planner.path_of(step) for step in in_order([*hidden, *roots], planner.needs)]
    return [planner.planned[path] for path in dict.fromkeys(paths)]


def select_steps(option: str, patterns: Sequence[str], steps: Sequence[ExecutorStep]) -> set[str]:
    """The names in which some pattern is found. `ConfigError` for a pattern that finds none.

    That is a typing error: if it were ignored, nothing or everything would run.
    """
    names = sorted({step.name for step in steps})
    found: set[str] = set()
    for text in patterns:
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ConfigError(
                f"{option} {text!r}, which is not a regular expression ({error})",
                allowed="a regular expression that matches step names",
                fix=f"write for example {option} grug/base",
            ) from error
        # An empty pattern, of a variable that is not set say, is found in every name.
        matches = {name for name in names if text and pattern.search(name)}
        if not matches:
            raise ConfigError(
                f"{option} {text!r}, which is found in no step's name",
                allowed=f"a part of one of {', '.join(names)}",
                fix="correct the pattern, or leave it out",
            )
        found |= matches
    return found


class _Planner:
    """Plans one step after the other, each after those it needs."""

    def __init__(self, prefix: str, allow: Sequence[str]) -> None:
        self.identities = identities_at(prefix)
        self.forced: dict[ExecutorStep, str] = {}  # why each is run again
        self.planned: dict[str, PlannedStep] = {}  # by output folder, the first of equal steps
        self._prefix, self._allow = prefix, allow
        self._paths: dict[ExecutorStep, str] = {}
        self._sources: dict[Path, dict[str, str]] = {}
        self._earlier = _EarlierRuns()

    def path_of(self, step: ExecutorStep) -> str:
        """The output folder of a step."""
        if step not in self._paths:
            title = f"{step.name}-{self.identities.of(step).hash}"
            chosen = step.override_output_path
            self._paths[step] = join(self._prefix, title) if chosen is None else normalise(chosen)
        return self._paths[step]

    def sources_of(self, step: ExecutorStep) -> Mapping[str, str]:
        """The hashes of the files of the step's template."""
        folder = template_folder(step.fn)
        if folder is None:
            return {}
        # Read once, now: a file may be edited between now and the start of the step.
        if folder not in self._sources:
            self._sources[folder] = source_hashes(folder)
        return self._sources[folder]

    def needs(self, step: ExecutorStep) -> tuple[ExecutorStep, ...]:
        """Plan the step; the dependencies that have to be there before it runs."""
        identity, path = self.identities.of(step), self.path_of(step)

        def located(marker: InputName | OutputName) -> str:
            if isinstance(marker, OutputName):
                base = path
            else:
                base = self._prefix if marker.step is None else self.path_of(marker.step)
            return join(base, marker.sub) if marker.sub else base

        config = replaced(step.config, located)
        # With classes, so that a difference between classes of equal fields shows.
        plain = plain_part(step, with_class_names(config))
        if path in self.planned:
            _refuse_unequal(self.planned[path], step, identity, plain)
        else:
            self.planned[path] = self._plan(step, identity, path, config, plain)
        # A finished step needs its dependencies no more, whatever has become of them.
        return identity.dependencies if self.planned[path].action == "run" else ()

    def _plan(
        self, step: ExecutorStep, identity: Identity, path: str, config: Any, plain: Any
    ) -> PlannedStep:
        own, kept = f"{step.name}-{identity.own_hash}", f"{step.name}-{identity.hash}"
        pinned = "" if own == kept else f" (pinned: {own} counts as {kept})"
        found = read_status(path)
        info: StepInfo | None = None  # of the result that is kept, if there is one
        continues: str | None = None
        action: Action = "run"
        if step in self.forced:
            reason = self.forced[step]
        elif found is not None and found.identity != identity.hash:
            reason = f"its folder holds {found.identity}, which is moved aside"
            other = read_info(path) if self._allow else None
            if other is not None:
                changes = changes_since(other, step.name, identity)
                if not not_allowed(changes, self._allow):
                    info, continues = other, found.identity
                    reason = (
                        f"continues {continues} with {describe_changes(changes)}, which is allowed"
                    )
        else:
            info = read_info(path)
            if found is None:
                reason = self._earlier.why_new(step.name, identity, path)
            elif found.state == "SUCCESS":
                action, reason = "skip", "done"
            elif found.state == "DEP_FAILED":
                reason = "a step it depends on had failed"
            elif found.state == "RUNNING":
                reason = f"attempt {found.attempt} was killed; it continues"
            else:
                reason = f"attempt {found.attempt} ended as {found.state.lower()}; it continues"
            reason += pinned
        # Of what would be begun or continued, whatever the status: a process that has just taken
        # the lock has not written one yet.
        is_own = found is None or found.identity in (identity.hash, continues)
        if action == "run" and step not in self.forced and is_own and is_folder(path):
            holder = lock_holder(join(path, LOCK))
            if holder is not None:
                action, reason = "wait", f"being run by {holder}"
        if action == "run" and pinned:
            raise LaunchError(
                f"{own} counts as {kept}, whose result is not there or is to be made again",
                allowed="a pin to a result that is there and stays: else one is filed as the other",
                fix=f"take the pin back with `chomp pin --remove {own}`, or make {kept} first",
            )
        sources = self.sources_of(step)
        return PlannedStep(
            step=step,
            identity=identity,
            path=path,
            config=config,
            plain_config=plain,
            dependencies=tuple(self.path_of(each) for each in identity.dependencies),
            sources=sources,
            action=action,
            reason=reason,
            is_forced=step in self.forced,
            found=found,
            differences=()
            if info is None
            else _record_differences(info, step, plain, sources, is_reused=action == "skip"),
            continues=continues,
        )


def _refuse_unequal(
    planned: PlannedStep, step: ExecutorStep, identity: Identity, plain_config: Any
) -> None:
    """Raise if a step that would share the folder of a planned one would not do the same."""
    if planned.identity.hash != identity.hash:
        raise LaunchError(
            f"two different steps, {planned.step.name!r} and {step.name!r}, with one output "
            f"folder, {planned.path}",
            allowed="one step per folder",
            fix=f"give {step.name!r} another name or override_output_path",
        )
    if planned.identity.own_hash != identity.own_hash:
        return  # pinned: they differ, and somebody said that it does not matter
    changes = [
        f"{d.path} ({short(d.before)} and {short(d.after)})"
        for d in plain_differences(planned.plain_config, plain_config)
    ]
    functions = [function_name(planned.step.fn), function_name(step.fn)]
    changes += [" and ".join(functions)] if functions[0] != functions[1] else []
    # Merged without a word, two steps that differ in a forgotten field would be one result.
    if changes:
        raise LaunchError(
            f"two steps {planned.title} that differ in {', '.join(changes)}",
            allowed="steps that are equal, or different in what is versioned or in name",
            fix="mark what differs with versioned(...), or give one another name",
        )


# ---- Why a step is new ------------------------------------------------------------------------


class _EarlierRuns:
    """The nearest earlier runs of many steps. What it has read is not read again.

    The nearest is found quickly among thousands: a sweep of a thousand steps over a thousand
    earlier runs is a million comparisons. So each record is read once for a plan, and compared as
    one whole number, with a bit for each value that occurs.
    """

    def __init__(self) -> None:
        self._bits: dict[Hashable, int] = {}
        # Runs of a name in a folder, the latest first, and their values as bits.
        self._found: dict[tuple[str, str], tuple[list[StepInfo], list[int]]] = {}

    def why_new(self, name: str, identity: Identity, path: str) -> str:
        """Which versioned fields changed since the nearest earlier run of that name."""
        place = (name, parent_of(path))
        if place not in self._found:
            found = [info for _, info in _earlier_runs(name, place[1], name_of(name))]
            runs = sorted(found, key=lambda info: -info.started)
            self._found[place] = runs, [self._mask(info.values) for info in runs]
        runs, masks = self._found[place]
        if not runs:
            return "new"
        own = self._mask(identity.values)
        # A field that changed has two values of which each side lacks one; a field that one side
        # does not have is missing itself and with its value. Two bits for each, either way.
        distances = [(own ^ mask).bit_count() for mask in masks]
        nearest = runs[distances.index(min(distances))]
        changes = changes_since(nearest, name, identity)
        if not changes:
            return (
                f"new here; {nearest.output_path} was continued as this run, and --allow finds it"
            )
        return f"changed since {nearest.identity}: {describe_changes(changes)}"

    def _mask(self, values: Mapping[str, Any]) -> int:
        """Identity values as bits: one for each field that there is, one for each value it has."""
        mask = 0
        for field, value in values.items():
            # With its type: in Python true equals 1, and 1 equals 1.0.
            known = value if isinstance(value, LEAVES) else canonical_json(value)
            for thing in (field, (field, type(value), known)):
                mask |= 1 << self._bits.setdefault(thing, len(self._bits))
        return mask


def describe_changes(changes: Sequence[Difference], form: str = "{}: {} -> {}") -> str:
    """The first changes, each with its path and both values, and how many more there are."""
    shown = [form.format(d.path, short(d.before), short(d.after)) for d in changes]
    more = f" and {len(shown) - CHANGES_SHOWN} more" if len(shown) > CHANGES_SHOWN else ""
    return f"{', '.join(shown[:CHANGES_SHOWN])}{more}"


def changes_since(info: StepInfo, name: str, identity: Identity) -> list[Difference]:
    """What makes a step another one than the one that a folder records."""
    before, after = {"name": info.name, **info.values}, {"name": name, **identity.values}
    # Records have no secrets, so secrets must not show as a change.
    changes = _changed_values(without_secrets(before), without_secrets(after))
    if changes or info.identity in (identity.hash, identity.own_hash):
        return changes
    # A path and a text that reads like it, or a record from before hashes distinguished them.
    return [
        Difference(
            path="its hash alone", before=info.identity, after=identity.hash, mark="identity"
        )
    ]


def not_allowed(changes: Iterable[Difference], allowed: Iterable[str]) -> list[Difference]:
    """The changes outside of the fields that may change, which are given by dotted paths."""
    fields = tuple(allowed)
    return [
        change
        for change in changes
        if not any(change.path == field or change.path.startswith(f"{field}.") for field in fields)
    ]


def nearest_allowed(name: str, identity: Identity, path: str, allowed: Sequence[str]) -> str | None:
    """The folder beside `path` of an earlier run that differs in allowed fields only, if any.

    The nearest, and among those the latest; folders are named `<something>-<hash>`, as `path` is.
    """
    found: list[tuple[int, float, str]] = []
    for folder, info in _earlier_runs(name, parent_of(path), name_of(path)[: -HASH_DIGITS - 1]):
        changes = changes_since(info, name, identity)
        if not not_allowed(changes, allowed):
            found.append((len(changes), -info.started, folder))
    return min(found)[2] if found else None


def _changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What differs between the values of two identities, by dotted path."""
    found: list[Difference] = []
    for path in dict.fromkeys([*before, *after]):
        old, new = before.get(path, MISSING), after.get(path, MISSING)
        # The first says so of most, and is quick.
        if repr(old) == repr(new) or (
            MISSING not in (old, new) and canonical_json(old) == canonical_json(new)
        ):
            continue
        # A list by the parts that differ; whole if a config takes them for equal, as 1 and 1.0.
        inner = config_difference({"": old}, {"": new}) if isinstance(old, list) else []
        found += [
            Difference(
                path=path + each.path.removeprefix(dotted(("",))),
                before=each.before,
                after=each.after,
                mark="identity",
            )
            for each in inner
        ] or [Difference(path=path, before=old, after=new, mark="identity")]
    return found


def _record_differences(
    info: StepInfo, step: ExecutorStep, config: Any, sources: Mapping[str, str], *, is_reused: bool
) -> tuple[str, ...]:
    """How a run with this plain config and template source differs from its record.

    Left out is what the identity covers, and where outputs lie. It does not cover modules of
    classes, and fields that are not hashed. Of these, what is asked of one start is listed only if
    the result is reused: nothing else says then that it was not done.
    """
    differences = plain_differences(info.config, config)
    if differences:  # looking for secrets takes longer than the rest
        differences = plain_differences(*map(without_secrets, (info.config, config)))
    found = []
    if differences:
        # As `plain_differences` writes the places of a config that is not a mapping.
        root: KeyPath = () if isinstance(config, dict) else ("config",)
        covered = [(*root, *place) for place, _ in markers(step.config)]
        not_covered = [
            (*root, *place)
            for place, is_of_one_start in unhashed_fields(step.config)
            if is_reused or not is_of_one_start
        ]
        # A record from before classes, or modules, were written down says nothing of them.
        silent = [key for key in (CLASS, MODULE) if not _has_key(info.config, key)]
        for each in differences:
            is_module = _is_at(each.path, MODULE)
            is_covered = any(_is_within(each.path, path) for path in covered) and not any(
                _is_within(each.path, path) for path in not_covered
            )
            if (is_covered and not is_module) or any(_is_at(each.path, key) for key in silent):
                continue
            # A class of the library that was moved to another file is the same by its name.
            if is_module and all(str(m).startswith("chomp.") for m in (each.before, each.after)):
                continue
            found.append(f"{each.path}: recorded {short(each.before)}, now {short(each.after)}")
    # By its own name: the same launch file is one module as a command and another when loaded.
    fn = function_name(step.fn)
    if info.fn.rpartition(".")[2] != fn.rpartition(".")[2]:
        found.append(f"function: recorded {info.fn}, now {fn}")
    for name in sorted({*info.sources, *sources}):
        if info.sources.get(name) != sources.get(name):
            verb = "edited" if name in info.sources and name in sources else "added or removed"
            found.append(f"template source {name}: {verb} since the recorded run")
    return tuple(found)


def plain_differences(before: Any, after: Any) -> list[Difference]:
    """What differs between two step configs in plain form, which need not be mappings."""
    if repr(before) == repr(after):
        return []  # in most of a large plan, and in a tenth of the time
    if isinstance(before, dict) and isinstance(after, dict):
        return config_difference(before, after)
    return config_difference({"config": before}, {"config": after})


def short(value: Any) -> str:
    """The value as Python writes it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def _earlier_runs(name: str, folder: str, stem: str) -> list[tuple[str, StepInfo]]:
    """The runs of a step of that name in `<folder>/<stem>-<hash>`, each with its folder."""
    if not is_folder(folder):
        return []
    # The whole name: results that were moved aside have a longer one.
    pattern = re.compile(re.escape(stem) + rf"-[0-9a-f]{{{HASH_DIGITS}}}")
    siblings = [join(folder, each) for each in list_folder(folder) if pattern.fullmatch(each)]
    found = []
    for sibling in siblings:
        try:
            info = read_info(sibling)
        except StorageError as error:  # of another run: no reason not to begin this one
            _log.warning("passed over among the earlier runs of %s: %s", name, error)
            continue
        if info is not None and info.name == name:
            found.append((sibling, info))
    return found


def _is_within(path: str, outer: KeyPath) -> bool:
    return not outer or path == dotted(outer) or path.startswith(f"{dotted(outer)}.")


def _has_key(plain: Any, key: str) -> bool:
    if isinstance(plain, dict):
        return key in plain or any(_has_key(each, key) for each in plain.values())
    return isinstance(plain, list) and any(_has_key(each, key) for each in plain)


def _is_at(path: str, key: str) -> bool:
    return path == key or path.endswith(f".{key}")
