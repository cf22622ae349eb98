"""Results read again: what they say has to follow from the values that they hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chomp.errors import ConfigError
from chomp.ledger.comparison import Question, compare
from chomp.ledger.results import (
    read_results,
    readable_results,
    result_of,
    save_result,
)
from chomp.ledger.runs import find_side
from tests.ledger.made_runs import make_side

ROOT = Path(__file__).parents[2]
BASE = {0: 4.00, 1: 4.10, 2: 3.90}
Content = dict[str, Any]


def save(root: Path, ends: dict[int, float], **question: Any) -> Path:
    """A comparison of made runs, kept in a checkout."""
    make_side(root / "outputs/grug", "base", BASE)
    make_side(root / "outputs/grug", "mine", ends)
    sides = [find_side(name, outputs=str(root / "outputs")) for name in ("base", "mine")]
    result = result_of(
        compare(*sides, Question(**question)),
        made="2026-11-16 10:00:00",
        command="chomp compare base mine",
    )
    return save_result(root, result)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of a result whose word is better."""
    return save(tmp_path, {0: 3.960, 1: 4.058, 2: 3.861})


def change(path: Path, edit: Callable[[Content], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def deciding(content: Content) -> Content:
    return content["budgets"][0]


def test_what_was_saved_is_read_again(kept, tmp_path):
    [result] = read_results(tmp_path)
    assert result.word == "better"
    assert result.budgets[0].progress == ((1.0, 1.0),) * 3


@pytest.mark.parametrize(
    ("ends", "question"),
    [
        ({0: 4.02, 1: 4.02, 2: 3.95}, {}),  # cannot tell
        ({0: 3.9}, {}),  # one seed
        (BASE, {}),  # equal
        ({0: 3.96, 1: float("nan"), 2: 3.86}, {}),
        ({0: 4.04, 1: 4.141, 2: 3.942}, {"best": "highest", "at": "flops"}),
        ({0: 3.96, 1: 4.058, 2: 3.861}, {"confidence": 0.99, "smallest_percent": 2.0}),
    ],
)
def test_whatever_the_verdict_its_file_follows_from_its_values(tmp_path, ends, question):
    save(tmp_path, ends, **question)
    assert len(read_results(tmp_path)) == 1


def test_a_run_that_diverged_is_kept_with_the_word_that_it_makes(tmp_path):
    grug = tmp_path / "outputs/grug"
    make_side(grug, "mine", {3: 4.0}, outcome="NonFiniteError", steps=30)
    save(tmp_path, {0: 3.960, 1: 4.058, 2: 3.861})
    [result] = read_results(tmp_path)
    assert result.word == "cannot tell"
    assert "seed 3: mine-0003 ended with NonFiniteError" in result.diverged


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            lambda all_: all_.update(word="worse"),
            "its word is worse, and its values make it better",
        ),
        (lambda all_: all_.update(best="highest"), "its values make it worse"),
        (lambda all_: all_.update(smallest_percent=5.0), "its values make it no difference"),
        (lambda all_: all_.update(diverged=["seed 3"]), "its values make it cannot tell"),
        (lambda all_: all_.update(verdict="worse: by far"), "its verdict begins otherwise"),
        (lambda all_: all_.update(at="time", budgets=all_["budgets"][:1]), "time is to decide"),
        (lambda all_: all_["budgets"].append(deciding(all_)), "its budgets are tokens, flops"),
        (lambda all_: all_["seeds"][1].update(seed=0, data_seed=0), "a seed is there twice"),
        (lambda all_: all_["seeds"].pop(), "3 values of the base, 3 of the variant, for 2 seeds"),
        (lambda all_: deciding(all_)["base"].pop(), "2 values of the base, 3 of the variant"),
        (lambda all_: deciding(all_)["progress"].pop(), "3 values of the base"),
        (lambda all_: deciding(all_).update(spent=[0.0, 1.0, 1.0]), "what was spent in tokens"),
        (
            lambda all_: deciding(all_).update(progress=[[0.67, 1.0]] * 3),
            "its values make it cannot tell",
        ),
        (lambda all_: deciding(all_)["base"].__setitem__(0, 4.5), "do not give its differences"),
        (lambda all_: deciding(all_)["variant"].__setitem__(0, None), "do not give its differ"),
        (lambda all_: deciding(all_)["statistics"].update(p=0.5), "do not give its p"),
        (lambda all_: deciding(all_)["statistics"].update(low=None), "do not give its low"),
        (lambda all_: deciding(all_).update(statistics=None), "do not give its statistics"),
        (lambda all_: all_["budgets"][2]["statistics"].update(mean=0.0), "at equal time its val"),
        (lambda all_: all_.update(confidence=0.9), "do not give its low, high, confidence"),
        (lambda all_: all_.update(confidence=1.0), "its confidence is 1.0"),
    ],
)
def test_a_result_that_does_not_follow_from_its_own_values_is_refused(kept, tmp_path, edit, told):
    change(kept, edit)
    with pytest.raises(ConfigError) as caught:
        read_results(tmp_path)
    assert kept.name in caught.value.given
    assert told in caught.value.given
    found, problems = readable_results(tmp_path)
    assert found == []
    assert problems[0].startswith(f"docs/reports/results/{kept.name} cannot be read")


def test_other_last_digits_are_those_of_another_machine(kept, tmp_path):
    def edit(content: Content) -> None:
        deciding(content)["statistics"]["p"] *= 1 + 1e-11

    change(kept, edit)
    assert len(read_results(tmp_path)) == 1


def test_an_early_file_without_schedules_is_read(kept, tmp_path):
    change(kept, lambda content: [found.pop("progress") for found in content["budgets"]])
    change(kept, lambda content: content.pop("diverged"))
    assert len(read_results(tmp_path)) == 1


def test_the_results_of_this_repository_follow_from_their_values():
    assert read_results(ROOT)
