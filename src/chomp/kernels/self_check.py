"""Whether the kernels of this run agree with their references, checked once at its start.

Values and gradients, under the run's own mesh, masks and dtype: a kernel may be right in every test
and wrong on one driver, one head layout or one row of documents.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from chomp.errors import KernelError, divisors, require
from chomp.kernels.attention import (
    AttentionCall,
    AttentionMask,
    Backend,
    BackendChoice,
    attention,
    choose_backend,
    documents_of_rows,
    max_segments,
    reference_attention,
)
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.kernels.loss import LossKernel, chunk_rows, linear_cross_entropy, loss_kernel
from chomp.kernels.platform import quick_jit
from chomp.mesh import BATCH_AXES, batch_shards, local_rows, place_rows

# Axes: N rows of the run's batch (or vectors of an array), B rows that are tried, S positions, H
# query heads, G key-value heads, K head width, W width of values, D model width, V vocabulary.


@dataclass(frozen=True, kw_only=True)
class KernelShapes:
    """What a run asks of its kernels."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_dim: int
    vocab_size: int
    seq_len: int
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    backend: Backend = "auto"
    value_dim: int | None = None  # width of a head's values; None: head_dim
    heads_field: str = "num_kv_heads"  # what the model's config calls them, for messages

    @staticmethod
    def of(model: Any, *, seq_len: int) -> "KernelShapes":
        """The shapes of a model, by its config, that is trained on rows of `seq_len`."""
        # Messages name the field that the number of key-value heads comes from.
        names = {item.name for item in fields(model)} if is_dataclass(model) else set[str]()
        has_kv_heads = "num_kv_heads" in names or "num_heads" not in names
        return KernelShapes(
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.inferred_head_dim,
            hidden_dim=model.hidden_dim,
            vocab_size=model.vocab_size,
            seq_len=seq_len,
            sliding_window=model.sliding_window,
            logit_soft_cap=model.logit_soft_cap,
            backend=model.attention,
            # Most models have none: values are as wide as keys.
            value_dim=getattr(model, "value_head_dim", None),
            heads_field="num_kv_heads" if has_kv_heads else "num_heads",
        )

    def cuts_values(self, mesh: Mesh | AbstractMesh) -> bool:
        """Whether the mesh's model axis cuts the width of the values, there being one head."""
        is_one = self.num_kv_heads == 1 and self.value_dim is not None
        return is_one and (self.value_dim or 1) % mesh.shape["model"] == 0

    def local_value_dim(self, mesh: Mesh | AbstractMesh) -> int | None:
        """The width of a head's values on one device; None: head_dim."""
        parts = mesh.shape["model"] if self.cuts_values(mesh) else 1
        return None if self.value_dim is None else self.value_dim // parts

    def attention_specs(self, mesh: Mesh | AbstractMesh) -> tuple[P, P]:
        """How queries and keys, and how values, lie on the mesh."""
        if self.cuts_values(mesh):
            return P(BATCH_AXES, None, None, None), P(BATCH_AXES, None, None, "model")
        return (P(BATCH_AXES, None, "model", None),) * 2

    def require_cut_by(self, mesh: Mesh | AbstractMesh) -> None:
        """Raise `ConfigError` unless the mesh's model axis cuts heads and vocabulary evenly."""
        model = mesh.shape["model"]
        heads = {} if self.cuts_values(mesh) else {self.heads_field: self.num_kv_heads}
        for name, size in {**heads, "vocab_size": self.vocab_size}.items():
            above = -(-size // model) * model
            fewer = [part for part in divisors(size) if part <= mesh.size]
            require(
                size % model == 0,
                f"model.{name}={size} with mesh.model={model}",
                allowed=f"multiples of {model}",
                fix=f"set model.{name}={above}, or mesh.model to one of {fewer}",
            )


# ---- Deviation ----------------------------------------------------------------------------------


# Inputs are of size 1, so results that matter are not far below; a smaller one is a sum of terms
# that should cancel, such as the gradient of the score of a single key, and is held to this size.
_LEAST_SIZE = 1e-2
# Error of one product, by how it is computed: in the dtype itself, or in fewer bits where a chip
# splits float32 (TF32 on NVIDIA, bfloat16 on TPU). Float32 itself: sums of thousands of products.
_PRODUCT_ERRORS = {
    ("float32", "cpu"): 2.0**-18,
    ("float32", "gpu"): 2.0**-10,
    ("float32", "tpu"): 2.0**-7,
    ("float16", "any"): 2.0**-10,
    ("bfloat16", "any"): 2.0**-7,
}


class Deviation(NamedTuple):
    """The error of all numbers together, and of the worst vector; NaN if any is not finite.

    Relative to the size of what was expected; for a single vector, at least to the typical size.
    """

    relative: float
    worst: float

    def is_within(self, tolerance: "Deviation") -> bool:
        """Whether both numbers are within `tolerance`; NaN never is."""
        return self.relative <= tolerance.relative and self.worst <= tolerance.worst


def tolerance(dtype: DTypeLike, platform: str) -> Deviation:
    """How far a correct kernel may deviate in `dtype` on a platform (cpu, gpu or tpu).

    Attention in bfloat16 uses 0.15 of this, in float32 on a CPU 0.1 (November 2026).
    """
    name = np.dtype(dtype).name
    error = _PRODUCT_ERRORS.get((name, platform)) or _PRODUCT_ERRORS[name, "any"]
    return Deviation(relative=2 * error, worst=8 * error)


def deviation(found: Array, expected: Array) -> Deviation:
    """How far `found` is from `expected`, whose vectors lie along the last axis.

    Compares what the devices of this process hold; both arrays lie on them in the same way. A
    vector that is expected to be 0 has no part in the typical size.
    """
    vectors, exact = _local_vectors(found), _local_vectors(expected)
    difference, size = (np.linalg.norm(x, axis=1) for x in (vectors - exact, exact))
    least = _LEAST_SIZE * exact.shape[1] ** 0.5
    root = max(float(np.count_nonzero(size)), 1.0) ** 0.5
    typical = max(float(np.linalg.norm(size)) / root, least)
    relative = np.linalg.norm(difference) / root / typical
    worst = np.max(difference / np.maximum(size, typical))
    return Deviation(relative=float(relative), worst=float(worst))


def _local_vectors(x: Array) -> Float[np.ndarray, "N K"]:
    parts = [np.asarray(shard.data, np.float32) for shard in x.addressable_shards]
    return np.concatenate([part.reshape(-1, x.shape[-1]) for part in parts])


# ---- Inputs -------------------------------------------------------------------------------------
#
# The run's own masks and layout, in small. Numbers come from numpy, equal on every host, and are
# rounded to the run's dtype before either side sees them. Sizes are cut to a fraction of a second.


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
    d_out: Float[Array, "B S H W"]
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

    def random_heads(count: int, width: int, spec: P, size: float = 1.0) -> Array:
        numbers = size * random.standard_normal((batch, length, count, width), np.float32)
        return _place(numbers.astype(np.dtype(dtype)), mesh, spec)

    value_dim = shapes.value_dim or shapes.head_dim
    return AttentionInputs(
        q=random_heads(heads, shapes.head_dim, of_heads, _SCORE_SIZE),
        k=random_heads(kv_heads, shapes.head_dim, of_heads),
        v=random_heads(kv_heads, value_dim, of_values),
        d_out=random_heads(heads, value_dim, of_values),
        segment_ids=ids,
    )


def loss_inputs(shapes: KernelShapes, *, dtype: DTypeLike, mesh: Mesh) -> LossInputs:
    """Random hidden states of just as many tokens as take several chunks on each device.

    Virtual devices of one CPU share its cores, so there the tokens are divided among them.
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

    def random_array(shape: tuple[int, ...], size: float, spec: P) -> Array:
        numbers = size * random.standard_normal(shape, np.float32)
        return _place(numbers.astype(np.dtype(dtype)), mesh, spec)

    tokens = (shards, length)
    labels = random.integers(0, vocab, tokens, np.int32)
    weight = random.choice(np.asarray([0.0, 0.25, 1.0], np.float32), tokens)
    return LossInputs(
        hidden=random_array((*tokens, width), 1.0, P(BATCH_AXES, None, None)),
        head=random_array((width, vocab), size * width**-0.5, P(None, "model")),
        labels=_place(labels, mesh, P(BATCH_AXES, None)),
        weight=_place(weight, mesh, P(BATCH_AXES, None)),
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


def _place(array: np.ndarray, mesh: Mesh, spec: P) -> Array:
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


# ---- The check ----------------------------------------------------------------------------------


# Large beside what runs use, so that a z-loss that is left out of the gradient is seen in bfloat16.
_LOGSUMEXP_WEIGHT = 0.1

Attend = Callable[..., Array]
LossOf = Callable[..., Array]
# What a kernel gave and what it should have given, by the name of the part.
Pairs = dict[str, Sequence[Array]]
Deviations = Mapping[str, Deviation]


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """Which kernels run, and how far they are from their references."""

    choice: BackendChoice
    loss_kernel: LossKernel
    attention: Deviations
    loss: Deviations
    tolerance: Deviation
    dtype: str
    attention_shape: tuple[int, ...]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Values for a tracker, under the names of `chomp.tracking`."""
        return {
            "kernels/attention": self.choice.name,
            "kernels/attention_reason": self.choice.reason,
            "kernels/loss": self.loss_kernel,
            "kernels/attention_deviation": _largest(self.attention),
            "kernels/loss_deviation": _largest(self.loss),
            "kernels/self_check_seconds": self.seconds,
        }

    def line(self) -> str:
        """One line for a log."""
        return (
            f"attention {self.choice.name} ({self.choice.reason}); off the reference by "
            f"{_largest(self.attention):.1e}, loss ({self.loss_kernel}) by "
            f"{_largest(self.loss):.1e}; allowed {self.tolerance.relative:.1e} in {self.dtype}; "
            f"checked in {self.seconds:.2f} s"
        )

    def table(self) -> str:
        """Every part that was compared, a line for each."""
        rows = [
            f"{kernel:<10} {part:<18} {found.relative:>9.1e} {found.worst:>9.1e}"
            for kernel, parts in (("attention", self.attention), ("loss", self.loss))
            for part, found in parts.items()
        ]
        head = f"{'kernel':<10} {'part':<18} {'relative':>9} {'worst':>9}"
        last = f"{'allowed':<29} {self.tolerance.relative:>9.1e} {self.tolerance.worst:>9.1e}"
        return "\n".join([head, *rows, last])


def check_kernels(
    shapes: KernelShapes,
    mask: AttentionMask,
    *,
    dtype: DTypeLike,
    mesh: Mesh,
    attend: Attend = attention,
    loss_of: LossOf = linear_cross_entropy,
) -> KernelReport:
    """Run attention and loss as this run will, beside their references in float32.

    `mask` holds rows of the run as numpy segment ids `[N, S]`, or none. Raises `KernelError` where
    values or gradients deviate beyond what `dtype` explains. Well under a second on a CPU.
    """
    started = time.perf_counter()
    mask = mask.with_sliding_window(shapes.sliding_window or mask.sliding_window)
    choice = attention_choice(shapes, mask, dtype=dtype, mesh=mesh)
    heads = attention_inputs(shapes, mask, choice.name, dtype=dtype, mesh=mesh)
    tokens = loss_inputs(shapes, dtype=dtype, mesh=mesh)
    mask = mask.with_segment_ids(heads.segment_ids)
    # Asked for as the run asks; by name only if smaller shapes would lead to another choice.
    small = choose_backend(
        AttentionCall.of(heads.q, heads.k, mask, value_dim=shapes.local_value_dim(mesh)),
        shapes.backend,
    )
    backend = shapes.backend if small.name == choice.name else choice.name
    program = _program(attend, loss_of, backend, shapes.logit_soft_cap, mesh_platform(mesh))
    with jax.set_mesh(mesh):
        attended, scored = program(heads, mask, tokens)
    report = KernelReport(
        choice=choice,
        loss_kernel=loss_kernel(
            mesh_platform(mesh),
            shapes.logit_soft_cap,
            is_whole_vocabulary=mesh.shape["model"] == 1,
        ),
        attention=_deviations(attended),
        loss=_deviations(scored),
        tolerance=tolerance(dtype, mesh_platform(mesh)),
        dtype=np.dtype(dtype).name,
        attention_shape=heads.q.shape,
        seconds=time.perf_counter() - started,
    )
    _require_agreement(report)
    return report


def attention_choice(
    shapes: KernelShapes, mask: AttentionMask, *, dtype: DTypeLike, mesh: Mesh
) -> BackendChoice:
    """The backend that `attention` takes for a run of those shapes; no array is created.

    Raises `ConfigError` too if the mesh cannot cut the shapes.
    """
    shapes.require_cut_by(mesh)
    spec, _ = shapes.attention_specs(mesh)
    q, k = (
        jax.ShapeDtypeStruct(
            (batch_shards(mesh), shapes.seq_len, heads, shapes.head_dim),
            dtype,
            sharding=NamedSharding(mesh, spec),
        )
        for heads in (shapes.num_heads, shapes.num_kv_heads)
    )
    call = partial(AttentionCall.of, value_dim=shapes.local_value_dim(mesh))
    calls: list[AttentionCall] = []
    with jax.set_mesh(mesh):
        jax.eval_shape(lambda q, k: calls.append(call(q, k, mask)), q, k)
    return choose_backend(calls[0], shapes.backend)


def attention_pairs(attend: Attend, inputs: AttentionInputs, mask: AttentionMask) -> Pairs:
    """Values and gradients of `attend`, each with the reference's in float32."""
    heads, d_out = inputs[:3], inputs.d_out
    is_token = True
    if mask.segment_ids is not None:
        is_token = mask.segment_ids[:, :, None, None] != PAD_SEGMENT
        # Nothing that is trained on depends on padding, so all gradients have to be 0 there.
        d_out = jnp.where(is_token, d_out, 0.0)
    values, back = jax.vjp(lambda *x: attend(*x, mask), *heads)
    gradients = back(d_out)
    with jax.default_matmul_precision("highest"):
        exact = [x.astype(jnp.float32) for x in heads]
        values_exact, back_exact = jax.vjp(
            lambda q, k, v: reference_attention(q, k, v, mask), *exact
        )
        exact_gradients = back_exact(d_out.astype(jnp.float32))
    # What padding computes is anything finite: times 0 it is 0, and NaN stays NaN.
    values = jnp.where(is_token, values, 0.0 * values)
    values_exact = jnp.where(is_token, values_exact, 0.0)
    return {
        "value": (values, values_exact),
        **{
            f"gradient of {name}": pair
            for name, *pair in zip("qkv", gradients, exact_gradients, strict=True)
        },
    }


def loss_pairs(loss_of: LossOf, inputs: LossInputs, logit_soft_cap: float | None) -> Pairs:
    """The weighted sum of losses, its gradients, and the losses that an evaluation adds up.

    Each with the reference's in float32.
    """
    how = {"logsumexp_weight": _LOGSUMEXP_WEIGHT, "logit_soft_cap": logit_soft_cap}

    def parts(of: LossOf, *arguments: Array) -> tuple[Array, ...]:
        targets = (inputs.labels, inputs.weight)
        total, back = jax.vjp(lambda *x: of(*x, *targets, reduction="sum", **how), *arguments)
        # A cotangent other than 1, so that a kernel that ignores it is seen.
        d_hidden, d_head = back(jnp.full_like(total, 0.5))
        each = of(*arguments, *targets, reduction="none", **how)
        return total[None], d_hidden, d_head.T, each[..., None]

    found = parts(loss_of, inputs.hidden, inputs.head)
    with jax.default_matmul_precision("highest"):
        exact = [x.astype(jnp.float32) for x in (inputs.hidden, inputs.head)]
        reference = partial(linear_cross_entropy, implementation="reference")
        expected = parts(reference, *exact)
    names = ("value", "gradient of hidden", "gradient of head", "each token's loss")
    return dict(zip(names, zip(found, expected, strict=True), strict=True))


@cache
def _program(
    attend: Attend, loss_of: LossOf, backend: Backend, logit_soft_cap: float | None, platform: str
) -> Callable[..., tuple[Pairs, Pairs]]:
    """Both comparisons in one jitted function: two would take the compiler longer.

    Kept, so that a second run of a process need not compile them again.
    """

    def compare(
        heads: AttentionInputs, mask: AttentionMask, tokens: LossInputs
    ) -> tuple[Pairs, Pairs]:
        attended = attention_pairs(partial(attend, backend=backend), heads, mask)
        return attended, loss_pairs(loss_of, tokens, logit_soft_cap)

    return quick_jit(compare, platform)


def _deviations(pairs: Pairs) -> Deviations:
    # A jitted function gives back its dictionaries sorted; the value is what one looks for first.
    parts = sorted(pairs, key=lambda part: part != "value")
    return {part: deviation(*pairs[part]) for part in parts}


def _largest(found: Deviations) -> float:
    return float(np.max([part.relative for part in found.values()]))  # NaN stays NaN


def _require_agreement(report: KernelReport) -> None:
    allowed = report.tolerance
    for kernel, parts in (("attention", report.attention), ("loss", report.loss)):
        name, remedy = f"attention backend {report.choice.name}", "force --attention reference"
        if kernel == "loss":
            name, remedy = "loss kernel", "run on another device, or with another version of JAX"
        for part, found in parts.items():
            if found.is_within(allowed):
                continue
            raise KernelError(
                f"the {name} is wrong on this device: its {part} differs from the reference by "
                f"{found.relative:.2g} (at the worst place {found.worst:.2g}) in {report.dtype}, "
                f"with heads {list(report.attention_shape)}",
                allowed=f"{allowed.relative:.2g} (at the worst place {allowed.worst:.2g})",
                fix=f"{remedy}, and report this with jax {jax.__version__}, jaxlib "
                f"{version('jaxlib')}, {jax.devices()[0].device_kind}",
            )
