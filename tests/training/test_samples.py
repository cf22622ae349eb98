"""Samples in the loop: how long they are, what begins them, and the names they are asked for by."""

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from chomp.config import apply_overrides, config_from_mapping, config_to_mapping
from chomp.config.fields import also_names
from chomp.errors import ConfigError
from chomp.kernels.precision import Precision
from chomp.mesh import BATCH_AXES
from chomp.tokenize import ByteTokenizer
from chomp.tracking import JsonlTracker, read_metrics
from chomp.training import SamplesConfig
from chomp.training.run_folder import RunFolder
from chomp.training.samples import Samples, prompt_of_step
from experiments.grug.base.launch import GrugBaseLaunchConfig
from experiments.grug.base.train import GrugRunConfig

TRAINING_PAGE = Path(__file__).parents[2] / "docs/training.md"


# ---- How long ------------------------------------------------------------------------------


def model(max_seq_len: int, **chunks: int | None) -> SimpleNamespace:
    """The part of a model's config that bounds samples; only some models have a `chunk_size`."""
    return SimpleNamespace(max_seq_len=max_seq_len, **chunks)


def test_nulls_are_the_defaults_of_the_seed():
    config = SamplesConfig()
    assert config.lengths_for(model(8192), seq_len=2048) == (1024, 144)
    assert config.lengths_for(model(8192, chunk_size=2048), seq_len=2048) == (1024, 2064)
    assert config.lengths_for(model(128), seq_len=128) == (64, 64)
    assert SamplesConfig(max_tokens=0).lengths_for(model(128), seq_len=128) == (64, 0)
    # Those of the model it generates with: nothing is left out of the draw.
    assert (config.temperature, config.top_k, config.top_p) == (1.0, None, None)


lengths = st.none() | st.integers(1, 300)


@given(lengths, lengths, st.integers(2, 300), st.integers(2, 300), st.none() | st.integers(1, 300))
def test_what_was_asked_for_is_kept_or_refused_and_the_rest_is_cut(
    prompt: int | None, following: int | None, seq_len: int, more: int, chunk: int | None
):
    config = SamplesConfig(prompt_tokens=prompt, max_tokens=following)
    max_seq_len = seq_len + more
    if prompt is not None and prompt > seq_len:
        with pytest.raises(ConfigError, match=rf"with train\.seq_len={seq_len}\. Allowed: 1 to "):
            config.lengths_for(model(max_seq_len, chunk_size=chunk), seq_len=seq_len)
        return
    # A length that was left open takes one token at the least.
    if (prompt or 1) + (following or 1) > max_seq_len:
        with pytest.raises(ConfigError, match=rf"model\.max_seq_len={max_seq_len}"):
            config.lengths_for(model(max_seq_len, chunk_size=chunk), seq_len=seq_len)
        return
    found = config.lengths_for(model(max_seq_len, chunk_size=chunk), seq_len=seq_len)
    wanted = seq_len // 2, (chunk or 128) + 16
    assert found[0] == prompt or prompt is None
    assert found[1] == following or following is None
    assert 0 < found[0] <= max(prompt or 0, wanted[0])
    assert 0 < found[1] <= max(following or 0, wanted[1])
    # Nothing is cut that had room.
    is_full = sum(found) == max_seq_len
    assert is_full or found == (prompt or wanted[0], following or wanted[1])


def test_a_period_without_samples_is_refused():
    with pytest.raises(ConfigError) as caught:
        SamplesConfig(every=5, max_tokens=0)
    assert caught.value.given == "samples.every=5 with samples.max_tokens=0"
    with pytest.raises(ConfigError, match="every=0"):
        SamplesConfig(every=0)  # null only by the seed's name


# ---- By which name -------------------------------------------------------------------------

NAMES = {
    "train.generate_every": ("samples.every", 5),
    "train.generate_input_len": ("samples.prompt_tokens", 6),
    "train.generate_max_tokens": ("samples.max_tokens", 7),
    "train.generate_temperature": ("samples.temperature", 0.5),
    "train.generate_top_k": ("samples.top_k", 9),
    "train.generate_top_p": ("samples.top_p", 0.25),
    "train.eval_every": ("eval.steps_per_eval", 3),
    "train.allow_cpu": ("mesh.allow_cpu", False),
}


def test_a_run_takes_the_names_of_the_seed_and_writes_its_own():
    seed = [f"{name}={value}" for name, (_, value) in NAMES.items()]
    own = [f"{name}={value}" for name, value in NAMES.values()]
    expected = apply_overrides(GrugBaseLaunchConfig(), own)
    assert apply_overrides(GrugBaseLaunchConfig(), seed) == expected
    in_file = {name.removeprefix("train."): value for name, (_, value) in NAMES.items()}
    assert config_from_mapping(GrugBaseLaunchConfig, {"train": in_file}).samples == expected.samples
    assert not any("generate" in key for key in config_to_mapping(expected)["trainer"])
    assert config_from_mapping(GrugBaseLaunchConfig, {"train": {"eval_every": 0}}).eval is not None


def test_every_name_in_another_section_stands_on_the_page_beside_its_field():
    for config in (GrugRunConfig, GrugBaseLaunchConfig):
        found = {".".join(item.name): ".".join(item.field) for item in also_names(config)}
        assert found == {name: field for name, (field, _) in NAMES.items()}
    rows = [line for line in TRAINING_PAGE.read_text().splitlines() if line.startswith("| `train.")]
    for name, (field, _) in NAMES.items():
        assert any(f"`{name}`" in row and f"`{field}`" in row for row in rows), name


# ---- What begins ---------------------------------------------------------------------------


class Successor(eqx.Module):
    """A model whose likeliest next token is the next number."""

    scale: jax.Array

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        return jnp.zeros(batch_size, jnp.int32, out_sharding=P(BATCH_AXES))

    def decode_step(self, cache: jax.Array, token_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.scale * jax.nn.one_hot(token_ids + 1, 257), cache + 1


class Texts:
    """Held-out documents in memory."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    @property
    def num_rows(self) -> int:
        return len(self.texts)

    def prompt(self, num_tokens: int, number: int, *, is_tail: bool) -> list[int]:
        text = self.texts[number % len(self.texts)].encode()
        return list(text[-num_tokens:] if is_tail else text[:num_tokens])


TRAINED = Texts("rs", "tu", "uv")


def samples_of(*datasets: Texts, folder: Path, mesh: Mesh, every: int | None = 2) -> Samples:
    config = SimpleNamespace(
        samples=SamplesConfig(every=every, temperature=0.0, prompt_tokens=2, max_tokens=3),
        model=model(8),
        trainer=SimpleNamespace(seq_len=4),
        data=None,
    )
    return Samples(
        SimpleNamespace(
            config=config,
            eval_datasets=datasets,
            tokenizer=ByteTokenizer(),
            tracker=JsonlTracker(folder / "metrics.jsonl", attempt=1),
            folder=RunFolder(str(folder), 1),
            mesh=mesh,
            mp=Precision(),
        )
    )


@pytest.fixture(autouse=True)
def _trained_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chomp.training.samples.TrainedTexts", lambda data, tokenizer: TRAINED)


def test_the_first_dataset_with_documents_begins_each_sample_by_its_step(tmp_path, one_device_mesh):
    texts = Texts("ab", "gh", "mn")
    samples = samples_of(Texts(), texts, Texts("zz"), folder=tmp_path, mesh=one_device_mesh)
    written = written_by(samples, (2, 4, 5), folder=tmp_path, mesh=one_device_mesh)
    assert written == {"step-2.txt": "gh▸ijk", "step-4.txt": "mn▸opq", "step-5.txt": "mn▸opq"}
    kept = [row["name"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert kept == ["sample-step-2", "sample-step-4", "sample-step-5"]


@pytest.mark.parametrize("every", [1, 2, 10, 100])
def test_head_and_tail_of_a_document_are_drawn_by_the_step_about_as_often(every: int):
    def prompts(steps: Sequence[int]) -> list[str]:
        return [
            bytes(prompt_of_step(Texts("head-tail"), step, num_tokens=4, every=every)).decode()
            for step in steps
        ]

    steps = range(every, 101 * every, every)
    drawn = prompts(steps)
    assert set(drawn) == {"head", "tail"}
    assert 35 <= drawn.count("tail") <= 65
    # A run that begins again in the middle draws what it would have drawn.
    assert prompts(steps[40:]) == drawn[40:]


def test_a_run_with_one_sample_may_show_either_end():
    last = [
        bytes(prompt_of_step(Texts("head-tail"), steps, num_tokens=4, every=None)).decode()
        for steps in range(1, 101)
    ]
    assert set(last) == {"head", "tail"}


@pytest.mark.parametrize("datasets", [(), (Texts(), Texts())])
def test_without_a_held_out_document_training_documents_begin_and_one_warning_says_so(
    datasets, tmp_path, one_device_mesh, caplog
):
    with caplog.at_level(logging.WARNING):
        samples = samples_of(*datasets, folder=tmp_path, mesh=one_device_mesh)
        written = written_by(samples, (2, 4), folder=tmp_path, mesh=one_device_mesh)
    assert written == {"step-2.txt": "tu▸vwx", "step-4.txt": "uv▸wxy"}
    assert caplog.text.count("samples go on from TRAINING documents") == 1


def test_a_warning_of_training_documents_needs_a_reason(tmp_path, one_device_mesh, caplog):
    with caplog.at_level(logging.WARNING):
        samples_of(Texts("a"), folder=tmp_path, mesh=one_device_mesh)
    assert not caplog.text


class Failing(Successor):
    """A model whose decoding cannot be compiled, as one that does not fit into memory."""

    def decode_step(self, cache: jax.Array, token_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")


def test_a_sample_that_fails_is_a_warning_and_the_next_is_written(
    tmp_path, one_device_mesh, caplog
):
    samples = samples_of(Texts("ab", "gh", "mn"), folder=tmp_path, mesh=one_device_mesh)
    broken = Failing(jnp.float32(9))
    with caplog.at_level(logging.WARNING), jax.set_mesh(one_device_mesh):
        for step in (2, 3):
            samples.write(broken, step)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    for step, text in zip((2, 3), told, strict=True):
        assert f"no sample of step {step} (the run goes on without it; {step - 1} so far)" in text
        assert "RuntimeError: RESOURCE_EXHAUSTED: out of memory" in text
        assert "samples.max_tokens=0" in text
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]
    written = written_by(samples, (4,), folder=tmp_path, mesh=one_device_mesh)
    assert written == {"step-4.txt": "mn▸opq"}


def test_a_sample_that_fails_ends_a_run_of_several_processes_whose_others_would_wait(
    tmp_path, one_device_mesh, monkeypatch
):
    samples = samples_of(Texts("ab", "gh", "mn"), folder=tmp_path, mesh=one_device_mesh)
    broken = Failing(jnp.float32(9))
    monkeypatch.setattr(jax, "process_count", lambda: 2)  # as JAX says where there are two
    with jax.set_mesh(one_device_mesh), pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        samples.write(broken, 2)


def written_by(samples: Samples, steps: Sequence[int], *, folder: Path, mesh: Mesh):
    """The samples of those steps, by the names of their files."""
    with jax.set_mesh(mesh):
        for step in steps:
            samples.write(Successor(jnp.float32(9)), step)
    return {path.name: path.read_text() for path in (folder / "samples").iterdir()}
