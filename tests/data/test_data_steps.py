"""A data config as executor steps: what is built, and what makes it another build."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

from chomp.data import (
    BatchSchedule,
    LmComponentConfig,
    LmDataConfig,
    MixtureStage,
    StreamConfig,
    TextFormat,
    TextSource,
    TokenizerBuildConfig,
    TokenizerConfig,
    TokenStore,
    build_eval_datasets,
    build_steps,
    build_tokenizer,
    build_train_dataset,
    documents_of_split,
    source_documents,
    with_data_steps,
)
from chomp.errors import ConfigError, DataError
from chomp.executor import ExecutorStep, InputName, PlannedStep, plan_steps, run_plan
from chomp.tokenize import ByteTokenizer, JsonTokenizer, load_tokenizer, save_tokenizer, train_bpe


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


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The `tokenizer.json` of somebody else."""
    return write_rules(tmp_path / "rules" / "tokenizer.json", vocab_size=270)


def write_rules(path: Path, *, vocab_size: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    texts = iter(["the same text on and on and on, and on and off again"])
    path.write_text(train_bpe(texts, vocab_size=vocab_size).to_json())
    return path


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
    dataset = build_train_dataset(built, tokenizer, seq_len=16, seed=0, batches=BatchSchedule(4))
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


def of_bytes(data: LmDataConfig) -> LmDataConfig:
    return replace(data, tokenizer=TokenizerConfig(kind="byte"))


def of_hub(data: LmDataConfig, name: str = "someone/small", **more: str) -> LmDataConfig:
    return replace(data, tokenizer=TokenizerConfig(kind="hub", name=name, **more))


def streamed(data: LmDataConfig, **settings: int) -> LmDataConfig:
    return with_component(data, "rhymes", stream=StreamConfig(**settings))


def other_format(data: LmDataConfig) -> LmDataConfig:
    return with_component(data, "rhymes", format=TextFormat(text_key="body"))


def moved(data: LmDataConfig) -> LmDataConfig:
    """The same files in another folder."""
    for name, component in data.components.items():
        (pattern,) = component.source.paths
        for file in Path(pattern).parent.glob("*.txt"):
            (file.parent / "moved").mkdir(exist_ok=True)
            (file.parent / "moved" / file.name).write_bytes(file.read_bytes())
        source = TextSource(paths=(str(Path(pattern).parent / "moved" / Path(pattern).name),))
        data = with_component(data, name, source=source)
    return data


def edited(data: LmDataConfig) -> LmDataConfig:
    """The config as it is, and a file of rhymes that changed."""
    (path,) = data.components["rhymes"].source.paths
    Path(path.replace("*", "03")).write_text("changed")
    return data


LATER = MixtureStage(start_step=9, weights={"numbers": 0.0, "rhymes": 1.0})
FIRST = MixtureStage(start_step=0, weights={"numbers": 1.0, "rhymes": 0.0})
RHYMES = {"tokens/rhymes-train", "tokens/rhymes-validation"}
STORES = {"tokens/numbers-train", "tokens/numbers-validation", *RHYMES}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (lambda data: data, edited, {"tokenizer/bpe", *STORES}),
        (of_bytes, lambda data: edited(of_bytes(data)), RHYMES),
        (lambda data: data, moved, set()),
        (
            lambda data: data,
            lambda data: replace(
                with_component(data, "rhymes", weight=0.2, tags=("text/rhymes",)),
                train_on_eos=False,
                mask_boundary_loss=False,
            ),
            set(),
        ),
        (
            lambda data: data,
            lambda data: replace(data, validation_fraction=0.3),
            {"tokenizer/bpe", *STORES},
        ),
        # The tokenizer is trained on what formats make of records; all stores are made with it.
        (lambda data: data, other_format, {"tokenizer/bpe", *STORES}),
        (of_bytes, lambda data: other_format(of_bytes(data)), RHYMES),
        (of_hub, lambda data: of_hub(data, "someone/large"), {"tokenizer/hub", *STORES}),
        (of_hub, lambda data: of_hub(data, revision="v2"), {"tokenizer/hub", *STORES}),
        (streamed, lambda data: streamed(data, window_documents=7), set()),
        (
            streamed,
            lambda data: streamed(data, max_validation_documents=7),
            {"tokens/rhymes-validation"},
        ),
        # A component of any stage is trained on.
        (lambda data: replace(data, stages=(FIRST, LATER)), lambda data: data, set()),
    ],
)
def test_what_is_built_anew_after_a_change(data, tmp_path: Path, before, after, expected):
    first = {name: planned.path for name, planned in plan(before(data), tmp_path / "o").items()}
    second = {name: planned.path for name, planned in plan(after(data), tmp_path / "o").items()}
    assert {name for name in second if second[name] != first[name]} == expected


def test_weight_0_in_some_stages_alone_holds_out_the_usual_fraction(data, tmp_path: Path):
    assert replace(data, stages=(FIRST, LATER)).held_out_fraction("rhymes") == 0.2
    never = replace(data, stages=(FIRST,))
    assert [never.held_out_fraction(name) for name in data.components] == [0.2, 1.0]


def test_a_component_that_is_only_evaluated_has_no_part_in_training(data, tmp_path: Path):
    alone = replace(data, components={"numbers": data.components["numbers"]})
    with_idle = with_component(data, "rhymes", weight=0.0)
    assert plan(with_idle, tmp_path).keys() - plan(alone, tmp_path).keys() == {
        "tokens/rhymes-validation"
    }
    tokenizers = [plan(config, tmp_path)["tokenizer/bpe"].path for config in (alone, with_idle)]
    assert tokenizers[0] == tokenizers[1]
    assert with_data_steps(with_idle).components["rhymes"].train_store is None


def test_a_component_of_weight_0_is_evaluated_whole(data: LmDataConfig, tmp_path: Path):
    idle = with_component(data, "rhymes", weight=0.0)
    steps = plan(idle, tmp_path / "outputs")
    run_all(steps)
    paths = {name: steps[f"tokens/{name}-validation"].path for name in data.components}
    stores = {name: TokenStore.open(path) for name, path in paths.items()}
    assert stores["rhymes"].manifest.num_documents == 30
    assert 0 < stores["numbers"].manifest.num_documents < 15
    tokenizer = load_tokenizer(steps["tokenizer/bpe"].path)
    for name, path in paths.items():
        idle = with_component(idle, name, validation_store=path)
    rows = {each.name: each.num_rows for each in build_eval_datasets(idle, tokenizer, seq_len=16)}
    assert rows["rhymes"] >= stores["rhymes"].manifest.num_tokens // 16


def test_a_component_of_weight_0_takes_a_store_of_a_part_only_if_it_is_the_held_out_one(
    data, tmp_path: Path, caplog
):
    data = replace(data, tokenizer=TokenizerConfig(kind="byte"))
    steps = plan(data, tmp_path / "outputs")
    run_all(steps)
    for name in data.components:
        path = steps[f"tokens/{name}-validation"].path
        data = with_component(data, name, validation_store=path)
    idle = with_component(data, "rhymes", weight=0.0)
    assert len(build_eval_datasets(data, ByteTokenizer(), seq_len=16)) == 2
    assert not caplog.records
    # As it was built before weight 0 meant all documents: runs of that time are still evaluated.
    assert len(build_eval_datasets(idle, ByteTokenizer(), seq_len=16)) == 2
    assert "'rhymes' is evaluated IN PART" in caplog.text
    other = with_component(idle, "rhymes", validation_store=steps["tokens/rhymes-train"].path)
    with pytest.raises(DataError) as caught:
        build_eval_datasets(other, ByteTokenizer(), seq_len=16)
    assert "'rhymes'" in caught.value.given
    assert "0.2" in caught.value.given


@pytest.mark.parametrize("stages", [(), (MixtureStage(start_step=0, weights={"a": 0.0}),)])
def test_a_config_that_trains_on_nothing_is_refused(stages):
    with pytest.raises(ConfigError) as caught:
        LmDataConfig(components={"a": LmComponentConfig(weight=0.0)}, stages=stages)
    assert "0" in caught.value.given


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
    with pytest.raises(DataError) as caught:
        with_data_steps(data)
    assert "nowhere" in caught.value.given


def test_a_tokenizer_of_another_model_is_known_by_the_content_of_its_file(
    data, tmp_path: Path, rules: Path
):
    def paths(**more: object) -> dict[str, str]:
        tokenizer = TokenizerConfig(kind="json", file=str(rules), **more)
        steps = plan(replace(data, tokenizer=tokenizer), tmp_path)
        return {name: planned.path for name, planned in steps.items()}

    before = paths()
    assert "tokenizer/json" in before
    write_rules(rules, vocab_size=271)
    assert not set(paths().values()) & set(before.values())
    write_rules(rules, vocab_size=270)
    assert paths() == before
    assert not set(paths(bos="<|endoftext|>").values()) & set(before.values())


def test_stores_are_made_with_the_tokenizer_of_a_file(data, tmp_path: Path, rules: Path):
    tokenizer = TokenizerConfig(kind="json", file=str(rules), bos="<|endoftext|>")
    steps = plan(replace(data, tokenizer=tokenizer), tmp_path / "outputs")
    run_all(steps)
    built = load_tokenizer(steps["tokenizer/json"].path)
    expected = JsonTokenizer(rules.read_text(), bos="<|endoftext|>")
    assert built.content_hash == expected.content_hash
    store = TokenStore.open(steps["tokens/rhymes-train"].path, tokenizer_hash=built.content_hash)
    begin, end = store.documents.span(1)
    document = store.read(np.asarray([begin]), np.asarray([end - begin])).tolist()
    assert (document[0], document[-1]) == (built.bos_id, built.eos_id)
    assert built.decode(document).startswith("rhymes ")


def test_a_tokenizer_file_that_changes_between_plan_and_build_is_refused(
    data, tmp_path: Path, rules: Path
):
    tokenizer = TokenizerConfig(kind="json", file=str(rules))
    steps = plan(replace(data, tokenizer=tokenizer), tmp_path / "outputs")
    write_rules(rules, vocab_size=271)
    planned = steps["tokenizer/json"]
    with pytest.raises(DataError) as caught:
        planned.step.fn(planned.config)
    assert "when this build was planned" in caught.value.allowed
    assert not Path(planned.path, "chomp_tokenizer.json").exists()


def test_a_stream_has_no_train_store_and_a_bounded_validation_store(data, tmp_path: Path):
    stream = StreamConfig(max_validation_documents=2)
    streamed = with_component(data, "rhymes", stream=stream)
    steps = plan(streamed, tmp_path / "outputs")
    assert plan(data, tmp_path).keys() - steps.keys() == {"tokens/rhymes-train"}
    assert with_data_steps(streamed).components["rhymes"].train_store is None
    run_all(steps)
    stores = {
        name: TokenStore.open(steps[f"tokens/{name}-validation"].path) for name in data.components
    }
    assert stores["rhymes"].manifest.num_documents == 2
    assert stores["rhymes"].manifest.identity.max_documents == 2
    assert stores["numbers"].manifest.num_documents > 2
    assert stores["numbers"].manifest.identity.max_documents is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "json"}, "kind=json without data.tokenizer.file"),
        ({"kind": "hub"}, "kind=hub without data.tokenizer.name"),
        ({"kind": "bpe", "vocab_size": 256}, "vocab_size=256"),
        ({"kind": "bpe", "file": "x.json"}, "file=x.json with data.tokenizer.kind=bpe"),
        ({"kind": "byte", "eos": 3}, "eos=3 with data.tokenizer.kind=byte"),
        ({"kind": "json", "file": "x", "name": "y"}, "name=y with data.tokenizer.kind=json"),
        ({"kind": "hub", "name": "x", "file": "y"}, "file=y with data.tokenizer.kind=hub"),
        ({"kind": "json", "file": "x", "revision": "y"}, "revision=y with data.tokenizer.kind="),
    ],
)
def test_settings_that_do_not_belong_to_a_kind_of_tokenizer_are_refused(settings, expected):
    with pytest.raises(ConfigError) as caught:
        TokenizerConfig(**settings)
    assert expected in caught.value.given


def test_errors_of_a_plan_name_the_component(data: LmDataConfig):
    lost = with_component(data, "rhymes", source=TextSource(paths=("nowhere/*.txt",)))
    with pytest.raises(DataError) as caught:
        with_data_steps(lost)
    assert "component 'rhymes': " in caught.value.given
    bare = with_component(data, "rhymes", source=None)
    with pytest.raises(ConfigError) as caught:
        with_data_steps(bare)
    assert "data.components.rhymes" in caught.value.given


def test_a_tokenizer_may_learn_from_the_first_documents_only(data: LmDataConfig, tmp_path: Path):
    few = replace(data, tokenizer=TokenizerConfig(vocab_size=300, training_documents=2))
    steps = plan(few, tmp_path / "outputs")
    run_all({"tokenizer/bpe": steps["tokenizer/bpe"]})
    texts = []
    for name in sorted(data.components):
        documents = source_documents(data.components[name].source)
        texts += [d.text for d in islice(documents_of_split(documents, "train", 0.2), 2)]
    expected = train_bpe(texts, vocab_size=300).content_hash
    assert load_tokenizer(steps["tokenizer/bpe"].path).content_hash == expected


def test_a_tokenizer_of_a_hub_is_the_one_that_is_named(tmp_path: Path, monkeypatch):
    asked = []

    def load(name: str, **options: object) -> ByteTokenizer:
        asked.append((name, options))
        return ByteTokenizer()

    monkeypatch.setattr(build_steps, "load_hub_tokenizer", load)
    tokenizer = TokenizerConfig(kind="hub", name="someone/small", revision="v2", eos="</s>", bos=1)
    build_tokenizer(TokenizerBuildConfig(output_path=str(tmp_path), tokenizer=tokenizer))
    assert isinstance(load_tokenizer(str(tmp_path)), ByteTokenizer)
    options = {"revision": "v2", "eos": "</s>", "bos": 1, "is_patient": True}
    assert asked == [("someone/small", options)]


def test_a_tokenizer_that_is_not_built_yet_cannot_be_loaded():
    with pytest.raises(ConfigError) as caught:
        TokenizerConfig().load()
    assert "launch file" in caught.value.fix
