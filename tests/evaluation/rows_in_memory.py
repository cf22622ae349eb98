"""Rows to evaluate that a test writes itself, with weights of any size."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from chomp.data import EvalRows, GrugLmExample
from chomp.evaluation import TaggedEvaluator
from chomp.kernels.attention import AttentionMask

T, V = 6, 10
# Id 0 is the end of a document and stands for no bytes; the others stand for 1 to 4.
BYTES = np.asarray([0, 1, 2, 3, 4, 1, 2, 3, 4, 1], np.int32)


class RowsInMemory:
    """Tokens, weights and the document of each position's next token, as they were given."""

    def __init__(
        self,
        name: str,
        tokens: np.ndarray,
        weight: np.ndarray,
        documents: np.ndarray,
        tags: Sequence[str] = (),
    ) -> None:
        self.name, self.tags = name, (name, *tags)
        self.tokens, self.weight, self.documents = tokens, weight, documents

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def read(self, rows: np.ndarray, batch_size: int) -> EvalRows:
        lacking = [(0, batch_size - len(rows)), (0, 0)]
        return EvalRows(
            example=GrugLmExample(
                tokens=np.pad(self.tokens[rows], lacking),
                loss_weight=np.pad(self.weight[rows], lacking),
                attn_mask=AttentionMask.causal(
                    segment_ids=np.pad(
                        np.zeros_like(self.tokens[rows]), lacking, constant_values=-1
                    )
                ),
            ),
            documents=np.pad(self.documents[rows], lacking, constant_values=-1),
        )


def random_rows(name: str, *, num_rows: int, seed: int, tags: Sequence[str] = ()) -> RowsInMemory:
    """Rows of documents of about nine tokens, which go on from row to row; a third count not."""
    draw = np.random.default_rng(seed)
    weight = draw.uniform(-1.0, 2.0, size=(num_rows, T)).clip(min=0.0).astype(np.float32)
    weight[:, -1] = 0.0
    is_start = draw.random((num_rows, T)) < 1 / 9
    return RowsInMemory(
        name,
        draw.integers(0, V, size=(num_rows, T), dtype=np.int32),
        weight,
        np.cumsum(is_start).reshape(num_rows, T),
        tags,
    )


def losses_of(model: jax.Array, batch: GrugLmExample) -> jax.Array:
    """A loss for every position that anyone can compute: it depends on the token there."""
    return model * (1.5 + jnp.sin(batch.tokens.astype(jnp.float32)))


def evaluator_of(datasets, mesh, losses_of=losses_of, **settings) -> TaggedEvaluator:
    """An evaluator of batches of four rows with bytes, unless told otherwise."""
    usual = {"batch_size": 4, "max_batches": None, "bytes_per_token": BYTES}
    return TaggedEvaluator(datasets, losses_of, mesh=mesh, **{**usual, **settings})


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    """What has to be the same every time."""
    return {name: value for name, value in metrics.items() if not name.endswith("_time")}
