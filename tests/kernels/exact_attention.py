"""Attention and its gradients by the formula in float64 numpy, and how far a result is from it."""

from dataclasses import dataclass
from functools import cache

import numpy as np

# Axes: B batch, S positions, Q queries, T keys, H query heads, K head width.


@dataclass(frozen=True)
class Rows:
    """Rows to attend in: sizes, mask and random arrays that bfloat16 can hold."""

    batch: int = 2
    length: int = 24
    heads: int = 4
    kv_heads: int = 2
    width: int = 8
    is_causal: bool = True
    window: int | None = None
    # Lengths of the documents of each row, padding behind them; None: no documents.
    documents: tuple[tuple[int, ...], ...] | None = None

    @property
    def segment_ids(self) -> np.ndarray | None:
        """The documents as ids that count up, -1 in the padding."""
        if self.documents is None:
            return None
        ids = np.full((self.batch, self.length), -1, np.int32)
        for row, lengths in zip(ids, self.documents, strict=True):
            counted = np.repeat(np.arange(len(lengths)), lengths)
            row[: len(counted)] = counted
        return ids

    @property
    def allowed(self) -> np.ndarray:
        """Dense mask [B, Q, T]."""
        query, key = np.arange(self.length)[:, None], np.arange(self.length)[None, :]
        seen = np.ones((self.batch, self.length, self.length), bool)
        if self.is_causal:
            seen &= key <= query
        if self.window is not None:
            seen &= key > query - self.window
        ids = self.segment_ids
        return seen if ids is None else seen & (ids[:, :, None] == ids[:, None, :])

    def arrays(self, seed: int = 0) -> tuple[np.ndarray, ...]:
        """q, k, v and the weight of each result, in steps that bfloat16 can hold."""
        draw, heads = np.random.default_rng(seed), (self.heads, self.kv_heads, self.kv_heads)
        shapes = [(self.batch, self.length, count, self.width) for count in (*heads, self.heads)]
        return tuple(np.round(draw.normal(size=shape) * 32) / 32 for shape in shapes)

    def exact(self) -> dict[str, np.ndarray]:
        """The result and, for the sum of results times weights, the gradients of q, k, v."""
        return _exact(self)


@cache
def _exact(rows: Rows) -> dict[str, np.ndarray]:
    # Products of matrices [B, H, S, K], which numpy leaves to its fast library, unlike einsum.
    repeats, scale = rows.heads // rows.kv_heads, rows.width**-0.5
    q, k, v, weight = (array.transpose(0, 2, 1, 3) for array in rows.arrays())
    k, v = k.repeat(repeats, axis=1), v.repeat(repeats, axis=1)
    scores = np.where(rows.allowed[:, None], q @ k.swapaxes(2, 3) * scale, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    d_shares = weight @ v.swapaxes(2, 3)
    d_scores = shares * (d_shares - (shares * d_shares).sum(-1, keepdims=True)) * scale

    def of_groups(d_heads: np.ndarray) -> np.ndarray:
        """A key-value head collects the gradients of the query heads it serves."""
        b, _, s, k = d_heads.shape
        return d_heads.reshape(b, rows.kv_heads, repeats, s, k).sum(2).swapaxes(1, 2)

    return {
        "out": (shares @ v).swapaxes(1, 2),
        "q": (d_scores @ k).swapaxes(1, 2),
        "k": of_groups(d_scores.swapaxes(2, 3) @ q),
        "v": of_groups(shares.swapaxes(2, 3) @ weight),
    }


def deviations(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest and mean deviation of each array, over the largest value of the exact one."""
    result = {}
    for name, values in exact.items():
        # Where all are zero (the gradient of a query that sees itself alone), absolute ones.
        scale = np.abs(values).max() or 1.0
        off = np.abs(np.asarray(found[name], np.float64) - values) / scale
        result[f"{name} max"], result[f"{name} mean"] = float(off.max()), float(off.mean())
    return result
