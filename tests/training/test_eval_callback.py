"""Evaluation in the loop: each model under its own prefix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chomp.data import EvalRows, GrugLmExample
from chomp.evaluation import TaggedEvaluator
from chomp.kernels.attention import AttentionMask
from chomp.tracking import JsonlTracker, read_metrics
from chomp.training import build_tagged_eval_callback


class OneRow:
    """A single row of four tokens, repeated to fill a batch and counted once."""

    name, tags, num_rows = "row", ("row",), 1

    def read(self, rows: np.ndarray, batch_size: int) -> EvalRows:
        tokens = np.ones((batch_size, 4), np.int32)
        weight = np.zeros((batch_size, 4), np.float32)
        weight[0, :3] = 1.0
        example = GrugLmExample(tokens=tokens, loss_weight=weight, attn_mask=AttentionMask.causal())
        return EvalRows(example=example, documents=np.zeros_like(tokens))


@pytest.fixture
def evaluate(tmp_path, one_device_mesh):
    def losses_of(model: jax.Array, batch: GrugLmExample) -> jax.Array:
        return model * batch.tokens.astype(jnp.float32)

    def evaluator(prefix: str) -> TaggedEvaluator:
        return TaggedEvaluator(
            [OneRow()],
            losses_of,
            mesh=one_device_mesh,
            batch_size=2,
            max_batches=None,
            bytes_per_token=None,
            prefix=prefix,
        )

    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    evaluators = {"current": evaluator("eval"), "ema": evaluator("eval/ema")}
    with jax.set_mesh(one_device_mesh):
        yield build_tagged_eval_callback(evaluators, tracker)
    tracker.finish()


def models(current: float, ema: float) -> dict[str, jax.Array]:
    return {"current": jnp.float32(current), "ema": jnp.float32(ema)}


def test_each_model_is_logged_under_its_own_prefix_at_the_completed_step(evaluate, tmp_path):
    found = evaluate(models(2.0, 3.0), 10)
    assert (found["eval/loss"], found["eval/ema/loss"]) == (2.0, 3.0)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["step"] == 9
    assert row["eval_loss"] == row["eval/loss"] == 2.0
    assert row["eval/ema/row/tokens"] == 3.0
