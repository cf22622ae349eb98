"""What would happen, and why: for each step run, skip or wait, where, and the field that changed.

Planning only reads. Steps come in an order in which dependencies stand before their dependants;
a step that nobody needs any more (its only dependants are done) is left out, unless it is forced.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from chomp.errors import ConfigError, LaunchError, message
from chomp.executor.identity import Identities, Identity, plain_part
from chomp.executor.order import in_order
from chomp.executor.reasons import (
    changes_since,
    not_allowed,
    plain_differences,
    record_differences,
    short,
    told_changes,
    why_new,
)
from chomp.executor.source import function_name, source_hashes, template_folder
from chomp.executor.status import LOCK, StepStatus, read_info, read_status
from chomp.executor.step import ExecutorStep, InputName, OutputName, markers, replaced, unversioned
from chomp.storage import Lease, is_folder, join, normalise

Action = Literal["run", "skip", "wait"]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step with its place on disk and what is to be done about it."""

    step: ExecutorStep
    identity: Identity
    path: str
    config: Any  # the step's config with every marker replaced
    plain_config: Any  # the same as plain data
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
    force: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> list[PlannedStep]:
    """The plan for `steps` and all they depend on. `force`: patterns of names to run again.

    `allow`: dotted fields that may differ from what a folder holds, which is then gone on with; it
    would be moved aside otherwise.
    Equal steps are one step. The last of `steps` stands last, unless another one needs it.
    """
    roots = list(steps)
    identities = Identities()
    for step in roots:
        identities.of(step)
    forced = _matching(force, identities.steps())
    planner = _Planner(prefix, identities, forced, allow)
    # A done step does not lead to those it was made from, so forced ones are started from, too.
    hidden = [step for step in forced if step not in roots]
    for step in in_order([*hidden, *roots], planner.needs):
        planner.add(step)
    return list(planner.planned.values())


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
        forced: Sequence[ExecutorStep],
        allow: Sequence[str],
    ) -> None:
        self._prefix = prefix
        self._allow = allow
        self._identities = identities
        self._forced = set(forced)
        self._decisions: dict[str, _Decision] = {}
        self._sources: dict[Path, dict[str, str]] = {}
        self.planned: dict[str, PlannedStep] = {}  # by output folder, as the decisions

    def needs(self, step: ExecutorStep) -> tuple[ExecutorStep, ...]:
        """The dependencies that have to be there before `step` can be brought about."""
        identity, path = self._identities.of(step), self._path(step)
        if path not in self._decisions:
            self._decisions[path] = self._decision(step, identity, path)
        _refuse_clash(self._decisions[path].step, step, self._identities, path)
        # A finished step needs its dependencies no more, whatever has become of them.
        return identity.dependencies if self._decisions[path].action == "run" else ()

    def add(self, step: ExecutorStep) -> None:
        """Plan `step`, for which `needs` was asked before; an equal step is planned once."""
        identity, path = self._identities.of(step), self._path(step)
        config = replaced(step.config, lambda marker: self._located(marker, path))
        plain = plain_part(step, config)
        if path in self.planned:
            # Merged in silence, two steps that differ in a forgotten field would be one result.
            _refuse_unequal(self.planned[path], step, plain)
            return
        decision = self._decisions[path]
        is_forced = step in self._forced
        sources = self._source_of(step)
        is_other = _is_other(decision.found, identity) and decision.continues is None
        starts_over = is_forced or is_other
        info = None if starts_over else read_info(path)
        marked = [place for place, _ in markers(step.config)]
        # What was asked of a start that does not come: nothing else would tell that it is ignored.
        asked = list(unversioned(step.config)) if decision.action == "skip" else []
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
            differences=record_differences(info, plain, marked, sources, asked) if info else (),
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
                    f"continues {found.identity} with {told_changes(changes)}, which is allowed",
                )
                return _Decision(step, found, action, reason, continues=found.identity)
        return _Decision(step, found, *self._action(step, identity, path, found))

    def _action(
        self, step: ExecutorStep, identity: Identity, path: str, found: StepStatus | None
    ) -> tuple[Action, str]:
        if step in self._forced:
            return "run", "forced"
        if _is_other(found, identity):
            return "run", f"its folder holds {found.identity}, which is moved aside"
        if found is not None and found.state == "SUCCESS":
            return "skip", "done"
        if (held := self._held(path)) is not None:
            return held
        if found is not None:
            return "run", _why_again(found)
        return "run", why_new(step.name, identity, path)

    def _held(self, path: str) -> tuple[Action, str] | None:
        # Whatever the status: who has just taken the lock has not written one yet.
        holder = Lease.live_holder(join(path, LOCK)) if is_folder(path) else None
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


def _why_again(found: StepStatus) -> str:
    if found.state == "DEP_FAILED":
        return "a step it depends on had failed"
    if found.state == "RUNNING":
        return f"attempt {found.attempt} was killed; it continues"
    return f"attempt {found.attempt} ended as {found.state.lower()}; it continues"


def _refuse_clash(
    one: ExecutorStep, other: ExecutorStep, identities: Identities, path: str
) -> None:
    if identities.of(one).hash != identities.of(other).hash:
        raise LaunchError(
            message(
                given=f"two different steps, {one.name!r} and {other.name!r}, with one output "
                f"folder, {path}",
                allowed="one step per folder",
                fix=f"give {other.name!r} another name or override_output_path",
            )
        )


def _refuse_unequal(planned: PlannedStep, step: ExecutorStep, plain_config: Any) -> None:
    """Raise if a step that shares the identity of a planned one would not do the same."""
    told = [
        f"{d.path} ({short(d.before)} and {short(d.after)})"
        for d in plain_differences(planned.plain_config, plain_config)
    ]
    functions = [function_name(planned.step.fn), function_name(step.fn)]
    told += [" and ".join(functions)] if functions[0] != functions[1] else []
    if told:
        raise LaunchError(
            message(
                given=f"two steps {planned.title} that differ in {', '.join(told)}",
                allowed="steps that are equal, or different in what is versioned or in name",
                fix="mark what differs with versioned(...), or give one another name",
            )
        )


def _matching(patterns: Sequence[str], steps: Sequence[ExecutorStep]) -> list[ExecutorStep]:
    """The steps with a name that some pattern is found in; each pattern must be of use."""
    found: list[ExecutorStep] = []
    for text in patterns:
        pattern = _pattern(text)
        matches = [step for step in steps if pattern.search(step.name)]
        if not matches:
            raise ConfigError(
                message(
                    given=f"--force {text!r}, which is found in no step's name",
                    allowed=f"a part of one of {', '.join(sorted({s.name for s in steps}))}",
                    fix="correct the pattern, or leave it out",
                )
            )
        found += matches
    return list(dict.fromkeys(found))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            message(
                given=f"--force {text!r}, which is no regular expression ({error})",
                allowed="a regular expression that matches step names",
                fix="write for example --force grug/base",
            )
        ) from error
