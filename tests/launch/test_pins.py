"""`chomp pin`: what counts as what, what a plan makes of it, and which pairs are refused."""

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.cli.main import exit_code
from chomp.errors import LaunchError, StorageError
from chomp.executor import ExecutorStep, output_path_of, plan_steps, run_plan, versioned
from chomp.executor.identity import PINS, add_pin, identities_at, read_pins, remove_pin

Run = Callable[..., subprocess.CompletedProcess[str]]


def work(config: Any) -> None:
    """What the steps do: nothing."""


def own(version: Any, name: str = "own") -> ExecutorStep:
    return ExecutorStep(name, work, {"version": versioned(version)})


def top(version: Any) -> ExecutorStep:
    return ExecutorStep("top", work, {"data": output_path_of(own(version), "x")})


def titles(*steps: ExecutorStep) -> list[str]:
    return [f"{step.name}-{identities_at('nowhere').of(step).hash}" for step in steps]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Where `top(1)` is done, and with it `own(1)`."""
    folder = str(tmp_path / "outputs")
    assert run_plan(plan_steps([top(1)], prefix=folder), lambda item: None) == []
    return folder


def test_a_pinned_identity_is_done_and_so_is_what_is_made_from_it(prefix: str):
    kept, other = titles(own(1), own(2))
    assert [item.action for item in plan_steps([top(2)], prefix=prefix)] == ["run", "run"]
    assert add_pin(prefix, kept, other) == (kept, other)
    [plan] = plan_steps([own(2)], prefix=prefix)
    assert (plan.action, plan.path) == ("skip", f"{prefix}/{kept}")
    assert plan.reason == f"done (pinned: {other} counts as {kept})"
    assert plan.differences == ()
    [above] = plan_steps([top(2)], prefix=prefix)
    assert (above.action, above.reason) == ("skip", "done")
    assert above.config["data"] == f"{prefix}/{kept}/x"
    assert [item.path for item in plan_steps([own(1), own(2)], prefix=prefix)] == [plan.path]
    # It can be taken back.
    assert remove_pin(prefix, other) == other
    assert read_pins(prefix) == {}
    assert plan_steps([own(2)], prefix=prefix)[0].path == f"{prefix}/{other}"
    with pytest.raises(LaunchError, match=f"{other}, which counts as itself.*nothing is pinned"):
        remove_pin(prefix, other)


def test_what_is_pinned_never_runs_in_the_place_of_what_it_counts_as(prefix: str):
    kept, other = titles(own(1), own(2))
    add_pin(prefix, kept, other)
    refused = f"{other} counts as {kept}, whose result is not there or is to be made again"
    with pytest.raises(LaunchError, match=refused):
        plan_steps([own(2)], prefix=prefix, force=["own"])
    os.rename(f"{prefix}/{kept}", f"{prefix}/elsewhere")
    with pytest.raises(LaunchError, match=refused):
        plan_steps([own(2)], prefix=prefix)
    # The kept one may be made again by itself, and then stands for the other as before.
    assert run_plan(plan_steps([own(1)], prefix=prefix), lambda item: None) == []
    assert plan_steps([own(2)], prefix=prefix)[0].action == "skip"


def test_pins_may_follow_each_other(prefix: str):
    assert run_plan(plan_steps([own(2)], prefix=prefix), lambda item: None) == []
    first, second, third = titles(own(1), own(2), own(3))
    add_pin(prefix, second, third)
    add_pin(prefix, first, second)
    assert plan_steps([own(3)], prefix=prefix)[0].path == f"{prefix}/{first}"
    with pytest.raises(LaunchError, match="it would count as itself, or in a circle"):
        add_pin(prefix, second, first)
    with pytest.raises(LaunchError, match=f"counts as {second} already.*--remove {third} first"):
        add_pin(prefix, first, third)


def test_folders_name_what_they_hold_made_or_not(prefix: str, tmp_path: Path):
    kept, other = titles(own(1), own(2))
    chosen = replace(own(1), override_output_path=str(tmp_path / "chosen"))
    assert run_plan(plan_steps([chosen], prefix=prefix), lambda item: None) == []
    assert add_pin(prefix, str(tmp_path / "chosen"), f"{prefix}/{other}/") == (kept, other)
    assert add_pin(prefix, kept, other) == (kept, other), "once more is no harm"


@pytest.mark.parametrize(
    ("kept", "other", "words"),
    [
        (own(1), own(1), "it would count as itself"),
        (own(1), own(1, "other"), "two steps of different names"),
        (own(5), own(2), r"nothing is there.*Fix: run it first"),
        (own(7), own(2), r"it is FAILED"),
    ],
)
def test_a_pair_that_cannot_be_one_result_is_refused(
    prefix: str, kept: ExecutorStep, other: ExecutorStep, words: str
):
    run_plan(plan_steps([own(7)], prefix=prefix), lambda item: 1 // 0)
    with pytest.raises(LaunchError, match=words):
        add_pin(prefix, *titles(kept, other))
    assert not Path(prefix, PINS).exists()


@pytest.mark.parametrize("text", ["own", "own-123", "own-XYZ456789012", "-0123456789ab"])
def test_what_names_no_step_is_refused(prefix: str, text: str):
    with pytest.raises(LaunchError, match=r"names no step.*12 hexadecimal digits"):
        add_pin(prefix, titles(own(1))[0], text)


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', "{", '{"a": "b"}', "cycle"])
def test_a_file_that_does_not_hold_pins_is_an_error_that_names_it(prefix: str, content: str):
    one, two = titles(own(1), own(2))
    text = json.dumps({one: two, two: one}) if content == "cycle" else content
    Path(prefix, PINS).write_text(text)
    with pytest.raises(StorageError, match=rf"{PINS}.*Fix: "):
        plan_steps([own(1)], prefix=prefix)


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A prefix where six versions of one step are done."""
    folder = str(tmp_path_factory.mktemp("six"))
    assert run_plan(plan_steps(map(own, range(6)), prefix=folder), lambda item: None) == []
    return folder


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_whatever_is_pinned_every_identity_ends_at_one_that_counts_as_itself(
    six: str, pairs: list[tuple[int, int]]
):
    names = titles(*map(own, range(6)))
    Path(six, PINS).unlink(missing_ok=True)
    for kept, other in pairs:
        with suppress(LaunchError):
            add_pin(six, names[kept], names[other])
    pins, identities = read_pins(six), identities_at(six)
    for version, name in enumerate(names):
        end = f"own-{identities.of(own(version)).hash}"
        assert end not in pins
        assert (end != name) == (name in pins)


# ---- The command ----------------------------------------------------------------------------


def test_the_command_pins_lists_and_removes(prefix: str, capsys: pytest.CaptureFixture[str]):
    kept, other = titles(own(1), own(2))
    said = f"{other} counts as {kept} from now on. Undo: chomp pin --remove {other}\n"
    for words, printed in (
        (["--list"], f"Nothing is pinned in {prefix}.\n"),
        ([kept, other], said),
        (["--list"], f"{other} counts as {kept}\n"),
        (["--remove", other], f"{other} counts as itself again.\n"),
    ):
        assert exit_code(["pin", *words, "--prefix", prefix]) == 0
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize("wrong", ["", "a", "a b --list", "a --remove b"])
def test_a_command_that_asks_for_nothing_or_for_two_things_is_refused(
    wrong: str, capsys: pytest.CaptureFixture[str]
):
    assert exit_code(["pin", *wrong.split()]) == 2
    assert "Allowed: chomp pin A B, chomp pin --list" in capsys.readouterr().err


def test_a_launch_file_obeys_the_pins_of_its_prefix(launch: Run, tmp_path: Path):
    assert launch().returncode == 0
    changed = launch("--plan", "-o", "lr=0.2").stdout.splitlines()[1].split()[2]
    [done] = tmp_path.glob("outputs/train-*")
    add_pin(str(tmp_path / "outputs"), str(done), str(tmp_path / changed))
    again = launch("-o", "lr=0.2")
    assert again.stdout.splitlines()[0] == f"Already done: train is at outputs/{done.name}"
    assert f"(done (pinned: {Path(changed).name} counts as {done.name}))" in (
        launch("--plan", "-o", "lr=0.2").stdout
    )
