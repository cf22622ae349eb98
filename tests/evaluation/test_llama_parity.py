"""The harness on base as a Llama, against lm-eval's own Hugging Face model with the same weights.

The other side is a golden file, so that torch is needed only to make it (`llama_reference`).
"""

import json
import os
import re
import shutil
import subprocess
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from chomp.checkpoint import CheckpointMetadata, latest_checkpoint, save_step_checkpoint
from chomp.checkpoint.arrays import named_leaves, with_leaves
from chomp.checkpoint.export import export_weights
from chomp.config import config_to_mapping
from chomp.evaluation.harness import (
    HarnessModel,
    HarnessResults,
    RequestScorer,
    run_tasks,
    sampler,
)
from chomp.kernels.precision import Precision
from chomp.tokenize import JsonTokenizer, save_tokenizer
from experiments.grug.base.model import GrugModelConfig, Transformer
from experiments.grug.base.train import scores_of
from tests.evaluation.llama_reference import (
    EOS,
    GOLDEN,
    MODEL,
    RECIPE,
    ROOT,
    TASK_NAMES,
    answered,
    arrays,
    recipe_code,
    shapes,
    tasks_in,
)

TORCH_PYTHON = "CHOMP_TORCH_PYTHON"
# Of a log-likelihood, summed over the tokens of a request.
TOLERANCE = 1e-4


@cache
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def tokenizer() -> JsonTokenizer:
    return JsonTokenizer(golden()["tokenizer"], eos=EOS)


def llama(mesh: Mesh) -> Transformer:
    """Base with the weights of the formula."""
    with jax.set_mesh(mesh):
        fresh = jax.jit(lambda: Transformer.init(GrugModelConfig(**MODEL), key=jax.random.key(0)))()
        placed = {
            name: jax.device_put(arrays()[name.replace("/", ".")], leaf.sharding)
            for name, leaf in named_leaves(fresh).items()
        }
        return with_leaves(fresh, placed)


class Recorded(HarnessModel):
    """The model of the harness, which keeps what it was asked and what it said."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.seen: list[dict[str, Any]] = []

    def loglikelihood(self, requests, disable_tqdm=False):
        found = super().loglikelihood(requests, disable_tqdm)
        self.seen += answered("loglikelihood", requests, found)
        return found

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        found = super().loglikelihood_rolling(requests, disable_tqdm)
        self.seen += answered("loglikelihood_rolling", requests, found)
        return found

    def generate_until(self, requests, disable_tqdm=False):
        found = super().generate_until(requests, disable_tqdm)
        self.seen += answered("generate_until", requests, found)
        return found


@pytest.fixture(scope="module")
def ours(
    one_device_mesh: Mesh, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], HarnessResults]:
    """What was asked of ours and answered, and the results."""
    mesh, folder = one_device_mesh, tmp_path_factory.mktemp("llama")
    model = llama(mesh)
    scorer = RequestScorer(
        partial(scores_of, Precision()),
        mesh=mesh,
        batch_size=4,
        row_len=MODEL["max_seq_len"],
        pad_id=0,
    )
    generate = sampler(model, mesh=mesh, tokenizer=tokenizer(), batch_size=8)
    harness = Recorded(model, scorer, tokenizer=tokenizer(), generate=generate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        results = run_tasks(harness, TASK_NAMES, include_path=tasks_in(folder / "tasks"))
    return harness.seen, results


def by_request(seen: list[dict[str, Any]]) -> dict[tuple[str, ...], Any]:
    """The response to each request."""
    return {(item["kind"], *item["texts"]): item["response"] for item in seen}


def deviations(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> dict[str, float]:
    """The largest of a log-likelihood for each kind of request; all else has to be equal."""
    theirs, largest = by_request(expected), dict[str, float]()
    assert by_request(found).keys() == theirs.keys()
    for key, response in by_request(found).items():
        (kind, *_), other = key, theirs[key]
        if kind == "loglikelihood":
            assert response[1] == other[1], key  # whether it is the greedy continuation
            response, other = response[0], other[0]
        if kind == "generate_until":
            assert response == other, key
        else:
            largest[kind] = max(largest.get(kind, 0.0), abs(response - other))
    return largest


def test_every_request_gets_what_a_hugging_face_llama_says(ours):
    seen, results = ours
    largest = deviations(seen, golden()["requests"])
    assert max(largest.values()) < TOLERANCE, largest
    # Or it would be a lesser test: too long for a row, greedy and not, several texts.
    assert results.cuts.truncated > 10
    greedy = [item["response"][1] for item in seen if item["kind"] == "loglikelihood"]
    assert {True, False} == set(greedy)
    assert len({item["response"] for item in seen if item["kind"] == "generate_until"}) > 4


def test_every_metric_is_what_a_hugging_face_llama_gets(ours):
    found = {f"{row.task}/{row.metric}": row.value for row in ours[1].rows}
    expected = golden()["metrics"]
    assert found.keys() == expected.keys()
    assert 0.0 < expected["answers/exact_match"] < 1.0
    for name, value in expected.items():
        # A perplexity is the exponential of a mean log-likelihood, which is what has to agree.
        is_perplexity = name.endswith("perplexity")
        pair = (np.log(found[name]), np.log(value)) if is_perplexity else (found[name], value)
        np.testing.assert_allclose(*pair, rtol=0, atol=TOLERANCE, err_msg=name)


def test_the_table_of_the_recipe_is_its_code_and_has_every_array_once():
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \| (yes|no) \|$", RECIPE.read_text(), re.M)
    written = re.findall(r'^    "([\w.]+)": "([\w.]+)",$', recipe_code(), re.M)
    assert [(name, theirs) for name, theirs, _ in rows] == written
    numbered = {re.sub(r"^blocks\.\d+\.", "blocks.N.", name): s for name, s in shapes().items()}
    assert len(rows) == len(numbered)
    for name, _, is_transposed in rows:
        is_matrix = len(numbered[name]) == 2 and name != "token_embed"
        assert is_transposed == ("yes" if is_matrix else "no"), name


@pytest.mark.slow
def test_an_exported_checkpoint_becomes_that_llama_by_the_recipe(one_device_mesh, tmp_path, ours):
    python = os.environ.get(TORCH_PYTHON) or ""
    if shutil.which(python) is None:
        pytest.skip(f"{TORCH_PYTHON} names no Python with torch, transformers and lm-eval")
    run, exported, out = tmp_path / "run", tmp_path / "exported", tmp_path / "found.json"
    about = CheckpointMetadata(
        step=7,
        run_id="llama",
        attempt=1,
        config_hash="",
        config={"model": config_to_mapping(GrugModelConfig(**MODEL))},
        data_fingerprint="",
        data_offset=0,
        tokens_seen=0,
    )
    save_tokenizer(tokenizer(), str(run / "tokenizer"))
    with jax.set_mesh(one_device_mesh):
        state = {"params": llama(one_device_mesh), "step": jnp.int32(7)}
        save_step_checkpoint(str(run / "checkpoints"), state, about)
    export_weights(latest_checkpoint(str(run / "checkpoints")), str(exported), run=str(run))
    program = Path("tests/evaluation/llama_reference.py")
    done = subprocess.run(
        [python, str(program), "--exported", str(exported), "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    live = json.loads(out.read_text())
    # The golden file is current, and ours agrees with what was just computed.
    assert max(deviations(live["requests"], golden()["requests"]).values()) < TOLERANCE
    assert max(deviations(ours[0], live["requests"]).values()) < TOLERANCE
