"""A data config as executor steps: what is built, and what makes it another build."""

from dataclasses import replace
from pathlib import Path

import jaxtyping
import pytest

from chomp.data import (
    LmComponentConfig,
    LmDataConfig,
    TextSource,
    TokenizerConfig,
    build_eval_datasets,
    build_train_dataset,
    with_data_steps,
)
from chomp.errors import DataError
from chomp.executor import ExecutorStep, InputName, PlannedStep, plan_steps, run_plan
from chomp.tokenize import ByteTokenizer, load_tokenizer, save_tokenizer


@pytest.fixture(autouse=True)
def _markers_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let configs hold markers where their annotations promise what the executor puts there."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def data(tmp_path: Path) -> LmDataConfig:
    """Two components of text files, nothing built."""
    for name in ("numbers", "rhymes"):
        for i in range(30):
            (tmp_path / f"{name}-{i:02}.txt").write_text(f"{name} {i} and on and on\n" * 5)
    return LmDataConfig(
        tokenizer=TokenizerConfig(vocab_size=300),
        components={
            name: LmComponentConfig(source=TextSource(paths=(str(tmp_path / f"{name}-*.txt"),)))
            for name in ("numbers", "rhymes")
        },
        validation_fraction=0.2,
    )


def with_component(data: LmDataConfig, name: str, **changes: object) -> LmDataConfig:
    changed = replace(data.components[name], **changes)
    return replace(data, components={**data.components, name: changed})


def plan(data: LmDataConfig, prefix: Path) -> dict[str, PlannedStep]:
    """The steps that a run on `data` depends on, by name."""
    run = ExecutorStep(name="run", fn=print, config=with_data_steps(data))
    found = {planned.step.name: planned for planned in plan_steps([run], prefix=str(prefix))}
    del found["run"]
    return found


def changed_steps(before: LmDataConfig, after: LmDataConfig, prefix: Path) -> set[str]:
    paths = {name: planned.path for name, planned in plan(before, prefix).items()}
    return {name for name, planned in plan(after, prefix).items() if planned.path != paths[name]}


def run_all(steps: dict[str, PlannedStep]) -> None:
    failures = run_plan(list(steps.values()), lambda planned: planned.step.fn(planned.config))
    assert [failure.error for failure in failures] == []


def test_every_path_that_is_not_given_is_the_output_of_a_step(data: LmDataConfig):
    ready = with_data_steps(data)
    tokenizer = ready.tokenizer.path
    assert isinstance(tokenizer, InputName)
    assert tokenizer.step.name == "tokenizer/bpe"
    for name, component in ready.components.items():
        for split in ("train", "validation"):
            store = getattr(component, f"{split}_store")
            assert isinstance(store, InputName)
            assert store.step.name == f"tokens/{name}-{split}"
            assert store.step.config.tokenizer_path is tokenizer
    assert replace(ready, tokenizer=data.tokenizer, components=data.components) == data


def test_given_paths_are_kept_and_their_sources_are_not_read(tmp_path: Path):
    component = LmComponentConfig(
        source=TextSource(paths=("nowhere/*.txt",)), train_store="t", validation_store="v"
    )
    data = LmDataConfig(
        tokenizer=TokenizerConfig(path="some/tokenizer"), components={"given": component}
    )
    assert with_data_steps(data) == data


def test_running_the_steps_gives_what_training_opens(data: LmDataConfig, tmp_path: Path):
    steps = plan(data, tmp_path / "outputs")
    assert next(iter(steps)) == "tokenizer/bpe"
    run_all(steps)
    tokenizer = load_tokenizer(steps["tokenizer/bpe"].path)
    built = replace(
        data,
        components={
            name: replace(
                component,
                train_store=steps[f"tokens/{name}-train"].path,
                validation_store=steps[f"tokens/{name}-validation"].path,
            )
            for name, component in data.components.items()
        },
    )
    dataset = build_train_dataset(built, tokenizer, seq_len=16, seed=0)
    assert dataset.examples(0, 4).tokens.max() < tokenizer.vocab_size
    assert len(build_eval_datasets(built, tokenizer, seq_len=16)) == 2
    again = plan(data, tmp_path / "outputs")
    assert {planned.action for planned in again.values()} == {"skip"}


def test_a_step_killed_after_its_last_write_succeeds_when_run_again(data, tmp_path: Path):
    steps = plan(data, tmp_path / "outputs")
    run_all(steps)
    for planned in steps.values():
        (Path(planned.path) / ".executor_status").unlink()
    run_all(plan(data, tmp_path / "outputs"))


def test_a_changed_file_changes_the_tokenizer_and_every_store_made_with_it(data, tmp_path: Path):
    before = {name: planned.path for name, planned in plan(data, tmp_path).items()}
    (tmp_path / "rhymes-03.txt").write_text("changed")
    after = {name: planned.path for name, planned in plan(data, tmp_path).items()}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


def test_with_the_byte_tokenizer_a_changed_file_changes_its_own_stores(data, tmp_path: Path):
    data = replace(data, tokenizer=TokenizerConfig(kind="byte"))
    before = {name: planned.path for name, planned in plan(data, tmp_path).items()}
    (tmp_path / "rhymes-03.txt").write_text("changed")
    after = {name: planned.path for name, planned in plan(data, tmp_path).items()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"tokens/rhymes-train", "tokens/rhymes-validation"}


def test_weights_tags_and_rules_change_no_step(data: LmDataConfig, tmp_path: Path):
    other = with_component(data, "rhymes", weight=0.2, tags=("text/rhymes",))
    other = replace(other, train_on_eos=False, mask_boundary_loss=False)
    assert changed_steps(data, other, tmp_path) == set()


def test_another_split_changes_every_step(data: LmDataConfig, tmp_path: Path):
    other = replace(data, validation_fraction=0.3)
    assert changed_steps(data, other, tmp_path) == set(plan(data, tmp_path))


def test_a_component_that_is_only_evaluated_has_no_part_in_training(data, tmp_path: Path):
    alone = replace(data, components={"numbers": data.components["numbers"]})
    with_idle = with_component(data, "rhymes", weight=0.0)
    assert plan(with_idle, tmp_path).keys() - plan(alone, tmp_path).keys() == {
        "tokens/rhymes-validation"
    }
    tokenizers = [plan(config, tmp_path)["tokenizer/bpe"].path for config in (alone, with_idle)]
    assert tokenizers[0] == tokenizers[1]
    assert with_data_steps(with_idle).components["rhymes"].train_store is None


def test_a_given_tokenizer_is_known_by_its_content_and_not_by_its_path(data, tmp_path: Path):
    save_tokenizer(ByteTokenizer(), str(tmp_path / "one"))
    save_tokenizer(ByteTokenizer(), str(tmp_path / "same"))
    steps = plan(data, tmp_path / "outputs")
    run_all({"tokenizer/bpe": steps["tokenizer/bpe"]})
    one, same, other = (
        replace(data, tokenizer=TokenizerConfig(path=path))
        for path in (str(tmp_path / "one"), str(tmp_path / "same"), steps["tokenizer/bpe"].path)
    )
    assert "tokenizer/bpe" not in plan(one, tmp_path)
    assert changed_steps(one, same, tmp_path) == set()
    assert changed_steps(one, other, tmp_path) == set(plan(one, tmp_path))


def test_a_given_tokenizer_that_is_not_there_is_an_error_of_the_plan(data: LmDataConfig):
    data = replace(data, tokenizer=TokenizerConfig(path="nowhere"))
    with pytest.raises(DataError, match="no tokenizer in nowhere"):
        with_data_steps(data)
