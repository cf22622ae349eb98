"""What the kernels are tried on at the start of a run: its own masks and layout, in small.

Numbers are made by numpy, equal on every host, and rounded to the run's dtype before either side
sees them. Sizes are cut to what takes a fraction of a second and of the memory.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from chomp.kernels.attention import (
    AttentionMask,
    Backend,
    documents_of_rows,
    max_segments,
)
from chomp.kernels.kernel_shapes import KernelShapes
from chomp.kernels.loss import chunk_rows
from chomp.mesh import BATCH_AXES, batch_shards, local_rows, place_rows

# Axes: N rows of the run's batch, B rows that are tried, S positions, H query heads, G key-value
# heads, K head width, W width of values, D model width, V vocabulary.

# Scores of the reference on one device. On a CPU a matter of time, with two rows if they are short.
# Elsewhere a part of the memory, as about five arrays of that size are there at once.
_MAX_SCORES_CPU, _MAX_SCORES_OF_TWO_CPU = 1 << 23, 1 << 19
_MEMORY_PART = 32
_MAX_MODEL_WIDTH, _MAX_VOCABULARY = 32, 1 << 14
# Vocabularies end inside a block of a kernel as the run's does: blocks are powers of two up to it.
_VOCABULARY_BLOCK = 1 << 12
# Standard deviation of scores: at 2, single keys matter in sums over thousands of them.
_SCORE_SIZE = 2.0


class AttentionInputs(NamedTuple):
    """Arguments of attention, and the cotangent of its result."""

    q: Float[Array, "B S H K"]
    k: Float[Array, "B S G K"]
    v: Float[Array, "B S G W"]
    slope: Float[Array, "B S H W"]
    segment_ids: Int[Array, "B S"] | None


class LossInputs(NamedTuple):
    """Arguments of the loss; weights are whole, fractional and 0."""

    hidden: Float[Array, "B S D"]
    head: Float[Array, "D V"]
    labels: Int[Array, "B S"]
    weight: Float[Array, "B S"]


def attention_inputs(
    shapes: KernelShapes, mask: AttentionMask, backend: Backend, *, dtype: DTypeLike, mesh: Mesh
) -> AttentionInputs:
    """Random heads on the mesh, and the documents of the rows of `mask` that have the most.

    The ratio of heads is the run's, and a device has two key-value heads where the run gives it
    more than one: with one there would be no wrong way to map query heads to them.
    """
    cuts_values = shapes.cuts_values(mesh)
    model = 1 if cuts_values else mesh.shape["model"]
    kv_heads = model * min(shapes.num_kv_heads // model, 2)
    heads = kv_heads * (shapes.num_heads // shapes.num_kv_heads)
    rows, length = _rows_and_length(shapes.seq_len, heads // model, mesh)
    batch = rows * batch_shards(mesh)
    ids = None
    if mask.segment_ids is not None:
        ids = mask.segment_ids[:, :length]
        if backend == "cudnn_packed":
            # Rows of a device share its room, and here those of most documents come together. What
            # would be too many are one document; padding takes an entry of its own.
            ids = np.minimum(ids, max_segments(length) - 2)
        ids = _rows_of_most_documents(ids, batch, mesh)
    random = np.random.default_rng(0)

    of_heads, of_values = shapes.attention_specs(mesh)

    def made(count: int, width: int, spec: P, size: float = 1.0) -> Array:
        numbers = size * random.standard_normal((batch, length, count, width), np.float32)
        return _placed(numbers.astype(np.dtype(dtype)), mesh, spec)

    value_dim = shapes.value_dim or shapes.head_dim
    return AttentionInputs(
        q=made(heads, shapes.head_dim, of_heads, _SCORE_SIZE),
        k=made(kv_heads, shapes.head_dim, of_heads),
        v=made(kv_heads, value_dim, of_values),
        slope=made(heads, value_dim, of_values),
        segment_ids=ids,
    )


def loss_inputs(shapes: KernelShapes, *, dtype: DTypeLike, mesh: Mesh) -> LossInputs:
    """Random hidden states of just as many tokens as take several chunks on each device.

    Of the devices that one CPU plays, all together take as many: they share its cores.
    """
    model, shards = mesh.shape["model"], batch_shards(mesh)
    vocab = _checked_vocabulary(shapes.vocab_size // model) * model
    width = min(shapes.hidden_dim, _MAX_MODEL_WIDTH)
    length = length_of_several_chunks(width, vocab // model)
    if mesh_platform(mesh) == "cpu":
        length = -(-length // shards)
    random = np.random.default_rng(1)
    # A cap is to bend the logits, or it would not be seen whether it is there.
    size = max(_SCORE_SIZE, (shapes.logit_soft_cap or 0.0) / 2)

    def made(shape: tuple[int, ...], size: float, spec: P) -> Array:
        numbers = size * random.standard_normal(shape, np.float32)
        return _placed(numbers.astype(np.dtype(dtype)), mesh, spec)

    tokens = (shards, length)
    labels = random.integers(0, vocab, tokens, np.int32)
    weight = random.choice(np.asarray([0.0, 0.25, 1.0], np.float32), tokens)
    return LossInputs(
        hidden=made((*tokens, width), 1.0, P(BATCH_AXES, None, None)),
        head=made((width, vocab), size * width**-0.5, P(None, "model")),
        labels=_placed(labels, mesh, P(BATCH_AXES, None)),
        weight=_placed(weight, mesh, P(BATCH_AXES, None)),
    )


def mesh_platform(mesh: Mesh) -> str:
    """Where the devices of a mesh are: cpu, gpu or tpu."""
    name: str = mesh.devices.flat[0].platform
    return name if name in ("cpu", "tpu") else "gpu"


def _rows_and_length(seq_len: int, heads: int, mesh: Mesh) -> tuple[int, int]:
    """Rows for each device and their length: two whole rows, or one, or the beginning of one."""
    of_two, most = _max_scores(mesh)
    if 2 * heads * seq_len**2 <= of_two:
        return 2, seq_len
    longest = int((most / heads) ** 0.5)
    # Blocks of kernels divide by 128; a row that is cut should not be the one odd length.
    return 1, seq_len if seq_len <= longest else max(longest // 128 * 128, 128)


def _max_scores(mesh: Mesh) -> tuple[int, int]:
    if mesh_platform(mesh) == "cpu":
        return _MAX_SCORES_OF_TWO_CPU, _MAX_SCORES_CPU
    stats = jax.local_devices()[0].memory_stats() or {}
    # The state is on the device already: only what it leaves can be used.
    memory = stats.get("bytes_limit", 1 << 34) - stats.get("bytes_in_use", 0)
    most = 1 << (memory // _MEMORY_PART // 4).bit_length() - 1  # hosts agree on a power of two
    return most, most


def _checked_vocabulary(vocab: int) -> int:
    if vocab <= _MAX_VOCABULARY:
        return vocab
    return _MAX_VOCABULARY - _VOCABULARY_BLOCK + vocab % _VOCABULARY_BLOCK


def length_of_several_chunks(width: int, vocab: int) -> int:
    """The fewest tokens that the loss takes in more than one chunk, or nearly the fewest."""
    wanted = chunk_rows(1 << 22, width, vocab)
    lengths = range(wanted, 4 * wanted, wanted // 8 + 1)
    return next((n for n in lengths if chunk_rows(n, width, vocab) < n), 4 * wanted)


def _rows_of_most_documents(ids: Int[np.ndarray, "N S"], batch: int, mesh: Mesh) -> Any:
    """`batch` rows on the mesh, each host's from its own; again from the first if there are few."""
    mine = local_rows(mesh, batch)
    documents = documents_of_rows(ids)
    chosen = np.resize(np.argsort(-documents, kind="stable"), len(mine))
    return place_rows(ids[chosen], mesh, rows=mine, batch_size=batch, batch_axis=0)


def _placed(array: np.ndarray, mesh: Mesh, spec: P) -> Array:
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
