"""The plan: run, skip or wait, where and why, from what the folders say and without a trace."""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from executor_samples import run_here, status_of, step, work

from chomp import storage
from chomp.errors import LaunchError, StorageError
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    Resources,
    StepFailure,
    output_path_of,
    plan_steps,
    run_plan,
    this_output_path,
    versioned,
)
from chomp.storage import FileLock

Planned = Callable[..., list[PlannedStep]]
Ran = Callable[..., list[StepFailure]]


def test_dependencies_come_first_and_each_step_once(planned: Planned):
    bottom = step("bottom")
    left = step("left", data=output_path_of(bottom))
    right = step("right", data=bottom / "x", more=[left / "y"])
    plan = planned(right, left)
    assert [item.step.name for item in plan] == ["bottom", "left", "right"]
    assert {(item.action, item.reason) for item in plan} == {("run", "new")}
    assert plan[2].dependencies == (plan[0].path, plan[1].path)


def test_a_done_step_is_skipped_and_its_lost_dependencies_are_not_rebuilt(
    planned: Planned, ran: Ran
):
    bottom = step("bottom")
    top = step("top", data=output_path_of(bottom))
    assert ran(top) == []
    storage.remove_tree(planned(bottom)[0].path)
    assert [(item.title[:3], item.action, item.reason) for item in planned(top)] == [
        ("top", "skip", "done")
    ]
    assert ran(top) == []
    assert planned(bottom)[0].action == "run", "it was not made again"
    other = step("other", data=output_path_of(bottom))
    assert [item.step.name for item in planned(top, other)] == ["top", "bottom", "other"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (1, 2, "version: 1 -> 2"),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, "version.a.c: 2 -> 3"),
        ({"web.edu": 1}, {"web.edu": 2}, 'version."web.edu": 1 -> 2'),
        ([{"w": 1}, {"w": 2}], [{"w": 1}, {"w": 3}], "version.1.w: 2 -> 3"),
        ([1], [1, 2], "version: [1] -> [1, 2]"),
        ({"a": 1}, {"b": 1}, "version.a: 1 -> (missing), version.b: (missing) -> 1"),
        (1, 1.0, "version: 1 -> 1.0"),
        ([1], [1.0], "version: [1] -> [1.0]"),
        (1, "x" * 500, f"version: 1 -> '{'x' * 76}..."),
        (dict.fromkeys("abcde", 1), dict.fromkeys("abcde", 2), "version.c: 1 -> 2 and 2 more"),
    ],
)
def test_a_new_version_is_explained_by_the_field_that_changed(
    planned: Planned, ran: Ran, before: Any, after: Any, told: str
):
    ran(step("a/own", before))
    [earlier] = planned(step("a/own", before))
    [plan] = planned(step("a/own", after))
    assert plan.action == "run"
    assert plan.reason.startswith(f"changed since {earlier.identity.hash}: ")
    assert plan.reason.endswith(told)


@dataclass(frozen=True)
class AdamW:
    lr: float = 1.0


@dataclass(frozen=True)
class Lion:
    lr: float = 1.0


def from_file(patch: pytest.MonkeyPatch, folder: Path, name: str) -> Any:
    """An `AdamW` of the file adamw.py in a folder, loaded under a name of its own."""
    (folder / "adamw.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass AdamW:\n    lr: float = 1.0\n"
    )
    spec = importlib.util.spec_from_file_location(name, folder / "adamw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module.AdamW()


def test_two_classes_of_one_name_and_two_modules_are_told_apart(
    planned: Planned, ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    load = partial(from_file, monkeypatch)
    package = tmp_path / "optimizers"
    package.mkdir()
    (package / "__init__.py").touch()
    ran(step("own", {"opt": load(package, "made_up_1")}))
    [again] = planned(step("own", {"opt": load(package, "made_up_2")}))
    assert (again.action, again.differences) == ("skip", ()), "it is the same file"
    theirs = step("own", {"opt": load(tmp_path, "made_up_3")})
    [other] = planned(theirs)
    told = "version.opt.<module>: recorded 'optimizers.adamw', now 'adamw'"
    assert (other.action, other.differences) == ("skip", (told,))
    with pytest.raises(LaunchError, match=r"opt\.<module> \('optimizers\.adamw' and 'adamw'\)"):
        planned(step("own", {"opt": load(package, "made_up_1")}), theirs)


def test_classes_that_moved_in_the_library_or_were_not_recorded_yet_are_no_difference(
    planned: Planned, ran: Ran
):
    own = step("own", opt=AdamW(lr=versioned(1.0)), more=[AdamW()], resources=Resources(cpus=2))
    ran(own)
    info = f"{planned(own)[0].path}/.executor_info"
    record = storage.read_json(info)
    config = record["config"]
    assert config["resources"]["<module>"].startswith("chomp.")
    config["resources"]["<module>"] = "chomp.executor.of_an_earlier_version"
    storage.write_json_atomic(info, record)
    assert planned(own)[0].differences == ()
    for key in ("<module>", "<class>"):
        del config["opt"][key], config["more"][0][key], config["resources"][key]
        storage.write_json_atomic(info, record)
        assert planned(own)[0].differences == ()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (AdamW(), Lion(), "version.<class>: 'AdamW' -> 'Lion'"),
        ({"opt": AdamW()}, {"opt": Lion()}, "version.opt.<class>: 'AdamW' -> 'Lion'"),
        ([AdamW()], [Lion()], "version.0.<class>: 'AdamW' -> 'Lion'"),
        (AdamW(), Lion(2.0), "version.<class>: 'AdamW' -> 'Lion', version.lr: 1.0 -> 2.0"),
        (AdamW(), {"lr": 1.0}, "version.<class>: 'AdamW' -> (missing)"),
        (this_output_path("x"), "<output>/x", "its hash alone: '{old}' -> '{new}'"),
    ],
)
def test_a_class_that_changed_is_named_and_so_is_a_text_in_place_of_a_path(
    planned: Planned, ran: Ran, before: Any, after: Any, told: str
):
    ran(step("own", before))
    [earlier] = planned(step("own", before))
    [plan] = planned(step("own", after))
    old, new = earlier.identity.hash, plan.identity.hash
    assert plan.reason == f"changed since {old}: {told.format(old=old, new=new)}"


def test_a_class_that_no_identity_covers_is_listed_when_it_differs(planned: Planned, ran: Ran):
    def own(optimizer: type) -> ExecutorStep:
        return step("own", opt=optimizer(lr=versioned(1.0)))

    ran(own(AdamW))
    assert planned(own(AdamW))[0].differences == ()
    assert planned(own(Lion))[0].differences == ("opt.<class>: recorded 'AdamW', now 'Lion'",)
    with pytest.raises(LaunchError, match=r"opt\.<class> \('AdamW' and 'Lion'\)"):
        planned(own(AdamW), own(Lion))


def test_a_changed_dependency_is_named_where_it_is_used(planned: Planned, ran: Ran):
    def top(version: int) -> ExecutorStep:
        return step("top", data=versioned([step("bottom", version) / "x"]))

    ran(top(1))
    old, new = (planned(step("bottom", version))[0].identity.hash for version in (1, 2))
    reason = planned(top(2))[-1].reason
    assert reason.endswith(f": data.0: 'bottom-{old}/x' -> 'bottom-{new}/x'")


def test_the_reason_compares_with_the_nearest_and_then_the_latest_run(planned: Planned, ran: Ran):
    for lr, width in [(1, 1), (2, 2), (3, 2), (9, 9)]:
        ran(step("own", {"lr": lr, "width": width}))
    # Runs of longer names are no earlier runs of this one.
    ran(step("own-x", {"lr": 4, "width": 2}))
    assert planned(step("own", {"lr": 4, "width": 2}))[0].reason.endswith(": version.lr: 3 -> 4")


def test_a_result_that_was_moved_aside_is_no_earlier_version(planned: Planned, ran: Ran):
    ran(step("own"))
    ran(step("own"), force=("own",))
    storage.remove_tree(planned(step("own"))[0].path)
    assert planned(step("own"))[0].reason == "new"


def test_planning_writes_nothing(
    planned: Planned, ran: Ran, snapshot: Callable[[], Any], prefix: str
):
    assert planned(step("own"))
    assert not Path(prefix).exists()
    ran(
        step("done"),
        step("failed", error="no"),
        step("above", data=step("failed", error="no") / ""),
    )
    with FileLock.acquire(f"{planned(step('failed'))[0].path}/.executor_lock", timeout_s=0):
        before = snapshot()
        plan = planned(
            step("done"), step("failed", error="no"), step("done", 2), step("new"), force=("done",)
        )
        assert [item.action for item in plan] == ["run", "wait", "run", "run"]
        assert snapshot() == before


def test_a_live_holder_is_waited_for_and_a_dead_one_is_not(planned: Planned, ran: Ran):
    ran(step("own", error="no"))
    [item] = planned(step("own"))
    lock = f"{item.path}/.executor_lock"
    with FileLock.acquire(lock, timeout_s=0):
        record = storage.read_bytes(lock)
        [held] = planned(step("own"))
    assert held.action == "wait"
    assert held.reason.startswith(f"being run by process {os.getpid()} on ")
    storage.write_bytes_atomic(lock, record)  # as a killed process leaves it
    [left] = planned(step("own"))
    assert (left.action, left.reason) == ("run", "attempt 1 ended as failed; it continues")


def test_forced_steps_are_found_behind_done_ones(planned: Planned, ran: Ran):
    top = step("top", data=step("middle", data=step("bottom") / "x") / "y")
    ran(top)
    plan = planned(top, force=("^bot", "middle"))
    assert [(item.step.name, item.action) for item in plan] == [
        ("bottom", "run"),
        ("middle", "run"),
        ("top", "skip"),
    ]
    assert plan[0].reason == "forced"


def test_the_last_step_that_was_asked_for_stands_last_forced_or_not(planned: Planned):
    plan = planned(step("a"), step("b", data=step("c") / ""), force=("b", "c"))
    assert [item.step.name for item in plan] == ["c", "a", "b"]


def test_settings_that_are_not_versioned_are_listed_when_they_differ(planned: Planned, ran: Ran):
    ran(step("own", log={"every": 1}, tags=["a"], gone=1))
    [plan] = planned(step("own", log={"every": 2}, tags=["a", "b"], fresh="x"))
    assert plan.action == "skip"
    assert plan.differences == (
        "log.every: recorded 1, now 2",
        "tags: recorded ['a'], now ['a', 'b']",
        "gone: recorded 1, now (missing)",
        "fresh: recorded (missing), now 'x'",
    )
    [forced] = planned(step("own", log={"every": 2}), force=("own",))
    assert forced.differences == (), "it starts from nothing"
    ran(step("failed", error="no"))
    [continued] = planned(step("failed"))
    assert continued.action == "run"
    assert continued.differences == ("error: recorded 'no', now (missing)",)


def test_where_outputs_lie_is_no_difference(tmp_path: Path):
    def moved(where: str) -> list[PlannedStep]:
        own = step("own", a=this_output_path("x"), b=[step("other") / "y"], c=versioned([1]))
        listed = ExecutorStep("listed", repr, [this_output_path(), {"a": step("other") / "x"}, 1])
        return plan_steps([own, listed], prefix=str(tmp_path / where))

    run_plan(moved("here"), run_here)
    (tmp_path / "here").rename(tmp_path / "there")
    assert [(item.action, item.differences) for item in moved("there")] == [("skip", ())] * 2


def test_a_config_that_is_no_mapping_is_compared_too(planned: Planned, ran: Ran):
    def own(config: Any) -> ExecutorStep:
        return ExecutorStep("own", repr, config)

    ran(own([1, {"a": 2}]))
    assert planned(own([1, {"a": 2}]))[0].differences == ()
    assert planned(own([1, {"a": 3}]))[0].differences == ("config.1.a: recorded 2, now 3",)
    assert planned(own({"a": 3}))[0].differences
    ran(own(versioned(5)))
    assert planned(own(versioned(5)))[0].differences == ()


def test_an_edited_template_is_listed_and_hashed_when_the_plan_is_made(
    planned: Planned, prefix: str, tmp_path: Path
):
    template = tmp_path / "template"
    template.mkdir()
    (template / "model.py").write_text("def train(config): pass\n")
    scope: dict[str, Any] = {}
    exec(compile("def train(config): pass\n", str(template / "model.py"), "exec"), scope)
    own = ExecutorStep("own", scope["train"], {"out": this_output_path()})
    plan = planned(own)
    # The code is loaded by now, so this edit is not part of the run.
    (template / "model.py").write_text("def train(config): return 1\n")
    (template / "layers.py").write_text("")
    assert run_plan(plan, run_here) == []
    assert planned(own)[0].differences == (
        "template source layers.py: added or removed since the recorded run",
        "template source model.py: edited since the recorded run",
    )


def test_a_folder_chosen_by_hand_that_holds_another_version_is_run_anew(
    planned: Planned, ran: Ran, prefix: str
):
    def there(version: int) -> ExecutorStep:
        return ExecutorStep(
            "own", work, step("own", version).config, override_output_path=f"{prefix}/there"
        )

    ran(there(1))
    [plan] = planned(there(2))
    assert plan.path == f"{prefix}/there"
    assert (plan.action, plan.differences) == ("run", ())
    assert (
        plan.reason
        == f"its folder holds {planned(there(1))[0].identity.hash}, which is moved aside"
    )
    assert ran(there(2)) == []
    assert planned(there(2))[0].action == "skip"
    status = status_of(f"{prefix}/there")
    assert status.attempt == 1
    [aside] = [name for name in os.listdir(prefix) if name.startswith("there.replaced-")]
    assert storage.read_text(f"{prefix}/{aside}/runs") == "ran\n"


@pytest.mark.parametrize("name", [".executor_status", ".executor_info"])
@pytest.mark.parametrize("content", ["[]", "{}", "3", "{", "wrong type"])
def test_a_record_that_nobody_here_wrote_is_an_error_that_names_it(
    planned: Planned, ran: Ran, name: str, content: str
):
    ran(step("own"))
    path = f"{planned(step('own'))[0].path}/{name}"
    # Fields of a later version do no harm.
    storage.write_json_atomic(path, {**storage.read_json(path), "later": 1})
    assert planned(step("own"))[0].action == "skip"
    if content == "wrong type":
        storage.write_json_atomic(path, {**storage.read_json(path), "started": "q"})
    else:
        Path(path).write_text(content)
    told = "started" if content == "wrong type" else ""
    with pytest.raises(StorageError, match=rf"{path}.*{told}.*Fix: .*remove"):
        planned(step("own"))


def test_a_damaged_record_of_an_earlier_run_keeps_no_other_from_its_plan(
    planned: Planned, ran: Ran, caplog: pytest.LogCaptureFixture
):
    for lr in (1, 2):
        ran(step("own", {"lr": lr, "width": lr}))
    damaged = f"{planned(step('own', {'lr': 1, 'width': 1}))[0].path}/.executor_info"
    Path(damaged).write_text('{"name": ')
    assert planned(step("own", {"lr": 3, "width": 2}))[0].reason.endswith(": version.lr: 2 -> 3")
    assert damaged in caplog.text


def test_a_chain_may_be_longer_than_python_calls_may_nest(planned: Planned):
    steps = [step("s0")]
    for i in range(1, 1200):
        steps.append(step(f"s{i}", data=output_path_of(steps[-1])))
    assert [item.step.name for item in planned(steps[-1])] == [f"s{i}" for i in range(1200)]
