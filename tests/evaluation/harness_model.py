"""A tiny base model with something to say, and its scores by whole forward passes."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from chomp.data import GrugLmExample
from chomp.evaluation.harness import Request, RequestScorer, Score
from chomp.kernels.loss import Scores
from experiments.grug.base.model import GrugModelConfig, Transformer
from tests.evaluation.noisy_model import noisy_model

CFG = GrugModelConfig(
    vocab_size=320,
    hidden_dim=32,
    intermediate_dim=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    max_seq_len=64,
    initializer_std=0.3,
)
EOS = 256
TOGETHER = 8  # rows of a forward pass


class Args(NamedTuple):
    """What the model reads of an lm-eval instance."""

    args: tuple[object, ...]


def model_on(mesh: Mesh) -> Transformer:
    """The model of this file."""
    return noisy_model(CFG, mesh)


def scores_of(model: Transformer, batch: GrugLmExample) -> Scores:
    """Losses and greedy flags, as a template gives them."""
    return model.next_token_scores(batch.tokens, batch.attn_mask)


@cache
def scorer_on(mesh: Mesh) -> RequestScorer:
    """One scorer for all tests, so one compilation."""
    return RequestScorer(scores_of, mesh=mesh, batch_size=4, row_len=CFG.max_seq_len, pad_id=EOS)


@jax.jit
def _log_probabilities(model: Transformer, tokens: jax.Array) -> jax.Array:
    return jax.reshard(jax.nn.log_softmax(model.logits(tokens)), PartitionSpec(None, None, None))


def log_probabilities(mesh: Mesh, sequences: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Of every next token, each sequence alone in its row, without a word about documents."""
    found: list[np.ndarray] = []
    for first in range(0, len(sequences), TOGETHER):
        part = sequences[first : first + TOGETHER]
        rows = np.zeros((TOGETHER, CFG.max_seq_len), np.int32)
        for row, tokens in zip(rows, part, strict=False):
            row[: len(tokens)] = tokens
        with jax.set_mesh(mesh):
            found += list(np.asarray(_log_probabilities(model_on(mesh), jnp.asarray(rows))))
    return found[: len(sequences)]


def by_hand(mesh: Mesh, requests: list[Request]) -> list[Score]:
    """The scores of requests that fit, from whole forward passes."""
    found = []
    rows = log_probabilities(mesh, [request.tokens for request in requests])
    for (tokens, start), row in zip(requests, rows, strict=True):
        places = np.arange(start - 1, len(tokens) - 1)
        scored = np.asarray(tokens[start:], np.int64)
        total = float(row[places, scored].astype(np.float64).sum())
        found.append(Score(total, bool((row[places].argmax(-1) == scored).all())))
    return found


def greedy_ids(mesh: Mesh, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """The likeliest continuation, one whole forward pass a token."""
    tokens = list(prompt)
    step = partial(log_probabilities, mesh)
    for _ in range(max_tokens):
        tokens.append(int(step([tuple(tokens)])[0][len(tokens) - 1].argmax()))
    return tokens[len(prompt) :]
