"""What cannot run is refused before any data is built: by a dry run, and by the run itself."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from rich.console import Console

from chomp.data import (
    GrugLmExample,
    HuggingFaceSource,
    JsonlSource,
    LmComponentConfig,
    LmDataConfig,
    TextFormat,
    TokenizerConfig,
)
from chomp.errors import ChompError, ConfigError, DataError, StorageError
from chomp.executor import plan_steps
from chomp.kernels.attention import AttentionMask
from chomp.launch.run import run_planned
from chomp.tokenize import BpeTokenizer, train_bpe
from chomp.tracking.logging_config import LoggingConfig, TensorBoardConfig, WandbConfig
from chomp.training import TRAINED_TOKENS, HarnessConfig, check_run, dry_run
from chomp.training.setup import compile_step, require_step_memory
from experiments.grug.base import launch as base
from experiments.grug.base.train import GrugRunConfig, fresh_state, train_step_of
from tests import tiny

METRICS = {"train/loss": jnp.float32(1), TRAINED_TOKENS: jnp.float32(1)}
TASK = "task: here\ndataset_path: json\ndoc_to_text: a\ndoc_to_target: b\n"


@pytest.fixture(scope="module")
def rules() -> str:
    """The tokenizer.json of 300 ids."""
    tokenizer = train_bpe(["the cat sat on the mat and ate the rat " * 20] * 3, vocab_size=270)
    assert isinstance(tokenizer, BpeTokenizer)
    return tokenizer.to_json()


@pytest.fixture
def config(tmp_path: Path, rules: str) -> GrugRunConfig:
    """A run that nothing is wrong with, and of which nothing is built."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "here.yaml").write_text(TASK)
    (tmp_path / "tokenizer.json").write_text(rules)
    records = tmp_path / "records.jsonl"
    records.write_text("".join(f'{{"body": "text {number}"}}\n' for number in range(20)))
    component = LmComponentConfig(
        source=JsonlSource(paths=(str(records),)), format=TextFormat(text_key="body")
    )
    tokenizer = TokenizerConfig(kind="json", file=str(tmp_path / "tokenizer.json"))
    made = tiny.run_config(
        LmDataConfig(tokenizer=tokenizer, components={"mine": component}), tmp_path / "run"
    )
    return replace(made, model=replace(made.model, vocab_size=272))


def dry(config: GrugRunConfig) -> str:
    console = Console(width=120, file=io.StringIO())
    dry_run(config, fresh_state, train_step_of, is_data_ready=False, console=console)
    return console.file.getvalue()


def check(config: GrugRunConfig, *, is_here: bool = True) -> None:
    check_run(config, fresh_state, train_step_of, is_here=is_here)


def changed(config: GrugRunConfig, section: str, **values: Any) -> GrugRunConfig:
    return replace(config, **{section: replace(getattr(config, section), **values)})


def with_harness(config: GrugRunConfig, *tasks: str) -> GrugRunConfig:
    folder = Path(config.output_path).parent / "tasks"
    return changed(config, "eval", harness=HarnessConfig(tasks=tasks, include_path=str(folder)))


def with_stream(config: GrugRunConfig) -> GrugRunConfig:
    source = HuggingFaceSource(path="nobody/nothing", streaming=True)
    return changed(config, "data", components={"web": LmComponentConfig(source=source)})


def with_sinks(config: GrugRunConfig, **sinks: Any) -> GrugRunConfig:
    return replace(config, logging=LoggingConfig(console=False, **sinks))


@dataclass(frozen=True)
class Fault:
    change: Callable[[GrugRunConfig], GrugRunConfig]
    kind: type[ChompError]
    words: str  # a field or a name that the message has to have
    missing: str | None = None  # a package


FAULTS = {
    "tokenizer": Fault(
        lambda config: changed(config, "model", vocab_size=256), ConfigError, "model.vocab_size"
    ),
    "end of a document": Fault(
        lambda config: changed(
            config, "data", tokenizer=replace(config.data.tokenizer, eos="</s>")
        ),
        DataError,
        "</s>",
    ),
    "wandb": Fault(
        lambda config: with_sinks(config, wandb=WandbConfig(enabled=True)),
        ConfigError,
        "wandb",
        missing="wandb",
    ),
    "tensorboard": Fault(
        lambda config: with_sinks(config, tensorboard=TensorBoardConfig(enabled=True)),
        ConfigError,
        "tensorboard",
        missing="tensorboardX",
    ),
    "datasets": Fault(with_stream, DataError, "chomp\\[hf\\]", missing="datasets"),
    "lm-eval": Fault(
        lambda config: with_harness(config, "here"),
        ConfigError,
        "chomp\\[harness\\]",
        missing="lm_eval",
    ),
    "task": Fault(lambda config: with_harness(config, "heer"), ConfigError, "did you mean here"),
    "length of a task's rows": Fault(
        lambda config: changed(
            config,
            "eval",
            harness=HarnessConfig(tasks=("here",), include_path="tasks", max_length=4096),
        ),
        ConfigError,
        "model.max_seq_len",
    ),
    "evaluation": Fault(
        lambda config: changed(config, "eval", eval_current=False), ConfigError, "eval_current"
    ),
    "record": Fault(
        lambda config: changed(
            config,
            "data",
            components={"mine": replace(config.data.components["mine"], format=TextFormat())},
        ),
        DataError,
        "component 'mine'",
    ),
    "batch": Fault(
        lambda config: changed(config, "trainer", batch_size=3), ConfigError, "train.batch_size=3"
    ),
    "kernel": Fault(
        lambda config: changed(config, "model", attention="cudnn"), ConfigError, "cudnn"
    ),
    "memory": Fault(
        lambda config: changed(config, "model", hidden_dim=2**20, intermediate_dim=2**20),
        ConfigError,
        "TiB of each device",
    ),
    "activations": Fault(
        lambda config: changed(config, "trainer", batch_size=2**26), ConfigError, "training step"
    ),
    "first weights": Fault(
        lambda config: changed(config, "trainer", initialize_from="/no/such/run"),
        ConfigError,
        "/no/such/run",
    ),
    "a later schedule": Fault(
        lambda config: changed(config, "optimizer", schedule_start=2),
        ConfigError,
        "optim.schedule_start=2",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_dry_run_and_the_check_before_a_run_refuse_the_same(
    name: str, config: GrugRunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fault = FAULTS[name]
    if fault.missing is not None:
        monkeypatch.setitem(sys.modules, fault.missing, None)
        for module in ("chomp.evaluation.harness", "chomp.training.harness"):
            monkeypatch.delitem(sys.modules, module, raising=False)
    before = sorted(tmp_path.rglob("*"))
    for refusing in (dry, check):
        with pytest.raises(fault.kind, match=fault.words):
            refusing(fault.change(config))
    assert sorted(tmp_path.rglob("*")) == before


def test_what_can_run_is_not_refused(config: GrugRunConfig):
    # A tokenizer with fewer ids than the model is fine, and so is a task that is there.
    check(with_harness(config, "here"))
    assert "can be read" in dry(config)


def test_devices_of_another_process_are_not_judged(config: GrugRunConfig):
    large = FAULTS["memory"].change(config)
    check(large, is_here=False)
    wrong = FAULTS["tokenizer"].change(config)
    with pytest.raises(ConfigError):
        check(wrong, is_here=False)


def test_a_step_that_does_not_fit_is_refused_by_a_dry_run_once_it_is_compiled(
    config: GrugRunConfig,
):
    with pytest.raises(ConfigError, match=r"training step.* needs .* TiB of each device.*grad_acc"):
        dry(changed(config, "trainer", batch_size=2**26))


def test_a_run_whose_step_does_not_fit_ends_before_its_first_step(one_device_mesh):
    @jax.jit
    def step(state: jax.Array, batch: GrugLmExample) -> tuple[jax.Array, dict[str, jax.Array]]:
        large = jnp.sort(state[:, None] + state[None, :], axis=0)  # 4 TiB
        return state + large[0], METRICS

    rows = jnp.zeros((1, 1, 2), jnp.int32)
    batch = GrugLmExample(tokens=rows, loss_weight=rows, attn_mask=AttentionMask.causal())
    with jax.set_mesh(one_device_mesh):
        compiled = compile_step(step, jnp.zeros(2**20), batch, None)
        with pytest.raises(ConfigError, match="training step"):
            require_step_memory(compiled, is_state_held=True)


@pytest.mark.parametrize(
    ("metrics", "given", "allowed"),
    [
        ({TRAINED_TOKENS: jnp.float32(1)}, "['trained_tokens']", "train/loss"),
        ({"train/loss": jnp.float32(1), "my/own": jnp.float32(1)}, "my/own", "trained_tokens"),
        ({**METRICS, "my/rows": jnp.zeros((4, 2))}, "'my/rows' has shape (4, 2)", "scalars"),
    ],
)
def test_a_step_whose_metrics_cannot_be_logged_is_refused_before_it_is_compiled(
    metrics: dict[str, jax.Array], given: str, allowed: str
):
    step = jax.jit(lambda state, batch: (state, metrics))
    with pytest.raises(ConfigError) as refused:
        compile_step(step, jnp.zeros(()), jnp.zeros(()), None)
    assert given in refused.value.given
    assert allowed in refused.value.allowed
    assert refused.value.fix


def test_a_step_may_return_any_number_of_its_own():
    metrics = {**METRICS, "train/z_loss": jnp.float32(1), "my/one": jnp.zeros((1,))}
    step = jax.jit(lambda state, batch: (state, metrics))
    compile_step(step, jnp.zeros(()), jnp.zeros(()), None)


def test_a_hub_that_cannot_be_reached_ends_a_run_and_is_told_by_a_dry_run(
    config: GrugRunConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    on_hub = TokenizerConfig(kind="hub", name="nobody/nothing")
    config = changed(config, "data", tokenizer=on_hub)
    with pytest.raises(StorageError, match="nobody/nothing"):
        check(config)
    [line] = [line for line in dry(config).splitlines() if line.startswith("Not tried")]
    assert "nobody/nothing" in line
    assert "model.vocab_size" in line


@pytest.mark.parametrize("name", ["tokenizer", "wandb", "task", "memory"])
def test_a_launched_run_refuses_before_anything_is_built(
    name: str, config: GrugRunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Configs hold markers where their annotations promise what the executor puts there.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    fault = FAULTS[name]
    if fault.missing is not None:
        monkeypatch.setitem(sys.modules, fault.missing, None)
    wrong = fault.change(config)
    launch = base.GrugBaseLaunchConfig(
        model=wrong.model,
        data=wrong.data,
        trainer=wrong.trainer,
        optimizer=wrong.optimizer,
        eval=wrong.eval,
        samples=wrong.samples,
        logging=wrong.logging,
    )
    prefix = str(tmp_path / "outputs")

    def plan_and_run() -> None:
        planned = plan_steps(base.steps(launch), prefix=prefix)
        assert len(planned) == 4  # a tokenizer, two stores, the run
        run_planned(planned, prefix=prefix)

    with pytest.raises(fault.kind, match=fault.words):
        plan_and_run()
    assert not (tmp_path / "outputs").exists()
