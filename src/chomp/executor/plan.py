"""What would happen, and why: for each step run, skip or wait, where, and the field that changed.

Planning only reads. Steps come in an order in which dependencies stand before their dependants;
a step that nobody needs any more (its only dependants are done) is left out, unless it is forced.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from chomp.errors import ConfigError, LaunchError
from chomp.executor.explain import (
    EarlierRuns,
    changes_since,
    describe_changes,
    not_allowed,
    plain_differences,
    record_differences,
    short,
    why_new,
)
from chomp.executor.identity import (
    Identities,
    Identity,
    in_order,
    plain_part,
    unhashed_fields,
    with_class_names,
)
from chomp.executor.pins import identities_at
from chomp.executor.status import LOCK, StepStatus, read_info, read_status
from chomp.executor.step import (
    ExecutorStep,
    InputName,
    OutputName,
    function_name,
    markers,
    replaced,
    source_hashes,
    template_folder,
)
from chomp.storage import is_folder, join, lock_holder, normalise

Action = Literal["run", "skip", "wait"]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step with its place on disk and what is to be done about it."""

    step: ExecutorStep
    identity: Identity
    path: str
    config: Any  # the step's config with every marker replaced
    plain_config: Any  # the same as plain data, with the names of classes
    dependencies: tuple[str, ...]  # output folders
    sources: Mapping[str, str]  # the template's files when the plan was made, as SHA-256
    action: Action
    reason: str
    is_forced: bool
    found: StepStatus | None  # what the folder said when the plan was made
    # What differs from the recorded run although the identity is the same.
    differences: tuple[str, ...]
    # The identity of the run in the folder, if that is another and is to be gone on with as this.
    continues: str | None = None

    @property
    def title(self) -> str:
        """Name and hash, as in the output path."""
        return f"{self.step.name}-{self.identity.hash}"


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

    `only`: patterns of names to plan, with what these need that is not there; of the rest nothing.
    `allow`: dotted fields that may differ from what a folder holds, which is then gone on with; it
    would be moved aside otherwise.
    `is_source_identity`: what was begun with other source of its template is run again, too.
    Equal steps are one step. The last of `steps` stands last, unless another one needs it.
    """
    roots = list(steps)
    identities = identities_at(prefix)

    def with_needs(some: Sequence[ExecutorStep]) -> list[ExecutorStep]:
        return list(in_order(some, lambda step: identities.of(step).dependencies))

    everything = with_needs(roots)
    if only:
        chosen = select_steps("--only", only, everything)
        roots = [step for step in everything if step.name in chosen]
        everything = with_needs(roots)
    names = select_steps("--force", force, everything)
    forced = {step: "forced" for step in everything if step.name in names}
    planner = _Planner(prefix, identities, forced, allow)
    if is_source_identity:
        for step in everything:
            if step not in forced and planner.is_of_other_source(step):
                forced[step] = "the source of its template has changed since it was run"
    # A done step does not lead to those it was made from, so forced ones are started from, too.
    hidden = [step for step in forced if step not in roots]
    for step in in_order([*hidden, *roots], planner.needs):
        planner.add(step)
    return list(planner.planned.values())


def select_steps(option: str, patterns: Sequence[str], steps: Sequence[ExecutorStep]) -> set[str]:
    """The names in which some pattern is found. `ConfigError` for a pattern that finds none.

    One that is of no use is a typing error: without a word, nothing or everything would run.
    """
    names = sorted({step.name for step in steps})
    found: set[str] = set()
    for text in patterns:
        pattern = _pattern(option, text)
        # An empty one, of a variable that is not set say, is found in every name.
        matches = {name for name in names if text and pattern.search(name)}
        if not matches:
            raise ConfigError(
                f"{option} {text!r}, which is found in no step's name",
                allowed=f"a part of one of {', '.join(names)}",
                fix="correct the pattern, or leave it out",
            )
        found |= matches
    return found


class _Decision(NamedTuple):
    """What is to be done about an output folder, decided at the first of equal steps."""

    step: ExecutorStep
    found: StepStatus | None
    action: Action
    reason: str
    continues: str | None = None


class _Planner:
    def __init__(
        self,
        prefix: str,
        identities: Identities,
        forced: Mapping[ExecutorStep, str],  # why each is run again
        allow: Sequence[str],
    ) -> None:
        self._prefix = prefix
        self._allow = allow
        self._identities = identities
        self._forced = forced
        self._decisions: dict[str, _Decision] = {}
        self._sources: dict[Path, dict[str, str]] = {}
        self._earlier = EarlierRuns()
        self.planned: dict[str, PlannedStep] = {}  # by output folder, as the decisions

    def needs(self, step: ExecutorStep) -> tuple[ExecutorStep, ...]:
        """The dependencies that have to be there before `step` can be brought about."""
        identity, path = self._identities.of(step), self._path(step)
        if path not in self._decisions:
            self._decisions[path] = self._decision(step, identity, path)
        _refuse_clash(self._decisions[path].step, step, self._identities, path)
        if self._decisions[path].step is step and self._decisions[path].action == "run":
            _refuse_to_replace_pinned(step, identity)
        # A finished step needs its dependencies no more, whatever has become of them.
        return identity.dependencies if self._decisions[path].action == "run" else ()

    def is_of_other_source(self, step: ExecutorStep) -> bool:
        """Whether the folder holds what was begun with another source of the step's template."""
        info = read_info(self._path(step))
        return info is not None and info.sources != self._source_of(step)

    def add(self, step: ExecutorStep) -> None:
        """Plan `step`, for which `needs` was asked before; an equal step is planned once."""
        identity, path = self._identities.of(step), self._path(step)
        config = replaced(step.config, lambda marker: self._located(marker, path))
        # With classes, which are told where they differ though all fields agree.
        plain = plain_part(step, with_class_names(config))
        if path in self.planned:
            # Merged in silence, two steps that differ in a forgotten field would be one result.
            _refuse_unequal(self.planned[path], step, identity, plain)
            return
        decision = self._decisions[path]
        is_forced = step in self._forced
        sources = self._source_of(step)
        is_other = _is_other(decision.found, identity) and decision.continues is None
        starts_over = is_forced or is_other
        info = None if starts_over else read_info(path)
        marked = [place for place, _ in markers(step.config)]
        # What was asked of a start that does not come is told: nothing else says it is ignored.
        uncovered = [
            place
            for place, is_of_one_start in unhashed_fields(step.config)
            if decision.action == "skip" or not is_of_one_start
        ]
        fn = function_name(step.fn)
        self.planned[path] = PlannedStep(
            step=step,
            identity=identity,
            path=path,
            config=config,
            plain_config=plain,
            dependencies=tuple(self._path(each) for each in identity.dependencies),
            sources=sources,
            action=decision.action,
            reason=decision.reason,
            is_forced=is_forced,
            found=decision.found,
            differences=record_differences(info, plain, marked, sources, fn, uncovered)
            if info
            else (),
            continues=decision.continues,
        )

    def _path(self, step: ExecutorStep) -> str:
        if step.override_output_path is not None:
            return normalise(step.override_output_path)
        return join(self._prefix, f"{step.name}-{self._identities.of(step).hash}")

    def _located(self, marker: InputName | OutputName, own_path: str) -> str:
        if isinstance(marker, OutputName):
            base = own_path
        else:
            base = self._prefix if marker.step is None else self._path(marker.step)
        return join(base, marker.sub) if marker.sub else base

    def _decision(self, step: ExecutorStep, identity: Identity, path: str) -> _Decision:
        found = read_status(path)
        if _is_other(found, identity) and step not in self._forced and self._allow:
            info = read_info(path)
            changes = [] if info is None else changes_since(info, step.name, identity)
            if info is not None and not not_allowed(changes, self._allow):
                action, reason = self._held(path) or (
                    "run",
                    f"continues {found.identity} with {describe_changes(changes)}, "
                    "which is allowed",
                )
                return _Decision(step, found, action, reason, continues=found.identity)
        return _Decision(step, found, *self._action(step, identity, path, found))

    def _action(
        self, step: ExecutorStep, identity: Identity, path: str, found: StepStatus | None
    ) -> tuple[Action, str]:
        if step in self._forced:
            return "run", self._forced[step]
        if _is_other(found, identity):
            return "run", f"its folder holds {found.identity}, which is moved aside"
        pinned = _pin_note(step, identity)
        if found is not None and found.state == "SUCCESS":
            return "skip", f"done{pinned}"
        if (held := self._held(path)) is not None:
            return held
        why = (
            why_new(step.name, identity, path, self._earlier)
            if found is None
            else _why_again(found)
        )
        return "run", f"{why}{pinned}"

    def _held(self, path: str) -> tuple[Action, str] | None:
        # Whatever the status: who has just taken the lock has not written one yet.
        holder = lock_holder(join(path, LOCK)) if is_folder(path) else None
        return None if holder is None else ("wait", f"being run by {holder}")

    def _source_of(self, step: ExecutorStep) -> Mapping[str, str]:
        folder = template_folder(step.fn)
        if folder is None:
            return {}
        # Read once, now: what a file holds when the step begins may be edited since it was loaded.
        if folder not in self._sources:
            self._sources[folder] = source_hashes(folder)
        return self._sources[folder]


def _is_other(found: StepStatus | None, identity: Identity) -> TypeGuard[StepStatus]:
    """Whether a folder holds another version, as one that was chosen by hand may."""
    return found is not None and found.identity != identity.hash


def _pin_note(step: ExecutorStep, identity: Identity) -> str:
    if identity.own_hash == identity.hash:
        return ""
    return f" (pinned: {step.name}-{identity.own_hash} counts as {step.name}-{identity.hash})"


def _refuse_to_replace_pinned(step: ExecutorStep, identity: Identity) -> None:
    """Raise `LaunchError` for a pinned step that would run: in the folder of what it counts as."""
    if identity.own_hash == identity.hash:
        return
    own, kept = f"{step.name}-{identity.own_hash}", f"{step.name}-{identity.hash}"
    raise LaunchError(
        f"{own} counts as {kept}, whose result is not there or is to be made again",
        allowed="a pin to a result that is there and stays: else one is filed as the other",
        fix=f"take the pin back with `chomp pin --remove {own}`, or make {kept} first",
    )


def _why_again(found: StepStatus) -> str:
    if found.state == "DEP_FAILED":
        return "a step it depends on had failed"
    if found.state == "RUNNING":
        return f"attempt {found.attempt} was killed; it continues"
    return f"attempt {found.attempt} ended as {found.state.lower()}; it continues"


def _refuse_clash(
    one: ExecutorStep, other: ExecutorStep, identities: Identities, path: str
) -> None:
    """Raise if two steps of different identities would have one output folder."""
    if identities.of(one).hash != identities.of(other).hash:
        raise LaunchError(
            f"two different steps, {one.name!r} and {other.name!r}, with one output folder, {path}",
            allowed="one step per folder",
            fix=f"give {other.name!r} another name or override_output_path",
        )


def _refuse_unequal(
    planned: PlannedStep, step: ExecutorStep, identity: Identity, plain_config: Any
) -> None:
    """Raise if a step that shares the identity of a planned one would not do the same."""
    if planned.identity.own_hash != identity.own_hash:
        return  # pinned: they differ, and somebody said that it does not matter
    told = [
        f"{d.path} ({short(d.before)} and {short(d.after)})"
        for d in plain_differences(planned.plain_config, plain_config)
    ]
    functions = [function_name(planned.step.fn), function_name(step.fn)]
    told += [" and ".join(functions)] if functions[0] != functions[1] else []
    if told:
        raise LaunchError(
            f"two steps {planned.title} that differ in {', '.join(told)}",
            allowed="steps that are equal, or different in what is versioned or in name",
            fix="mark what differs with versioned(...), or give one another name",
        )


def _pattern(option: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{option} {text!r}, which is no regular expression ({error})",
            allowed="a regular expression that matches step names",
            fix=f"write for example {option} grug/base",
        ) from error
