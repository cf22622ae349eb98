"""Whether this run's kernels agree with their references, asked once at its start.

Values and gradients, under the run's own mesh, masks and dtype: a kernel may be right in every test
and wrong on one driver, one head layout or one row of documents.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array

from chomp.errors import KernelError
from chomp.kernels.attention import (
    AttentionCall,
    AttentionMask,
    Backend,
    BackendChoice,
    attention,
    choose_backend,
    reference_attention,
)
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.kernels.check_inputs import (
    AttentionInputs,
    LossInputs,
    attention_inputs,
    loss_inputs,
    mesh_platform,
)
from chomp.kernels.deviation import Deviation, deviation, tolerance
from chomp.kernels.kernel_shapes import KernelShapes
from chomp.kernels.loss import LossKernel, linear_cross_entropy, loss_kernel
from chomp.kernels.quick_compile import quick_jit
from chomp.mesh import batch_shards

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
    """The backend that `attention` takes for a run of those shapes, or refuses; nothing is made.

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
    heads, slope = inputs[:3], inputs.slope
    is_token = True
    if mask.segment_ids is not None:
        is_token = mask.segment_ids[:, :, None, None] != PAD_SEGMENT
        # Nothing that is trained on depends on padding, so all gradients have to be 0 there.
        slope = jnp.where(is_token, slope, 0.0)
    values, back = jax.vjp(lambda *x: attend(*x, mask), *heads)
    gradients = back(slope)
    with jax.default_matmul_precision("highest"):
        exact = [x.astype(jnp.float32) for x in heads]
        values_exact, back_exact = jax.vjp(
            lambda q, k, v: reference_attention(q, k, v, mask), *exact
        )
        exact_gradients = back_exact(slope.astype(jnp.float32))
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
        told = (inputs.labels, inputs.weight)
        total, back = jax.vjp(lambda *x: of(*x, *told, reduction="sum", **how), *arguments)
        # A slope other than 1, so that one that is left out is seen.
        by_hidden, by_head = back(jnp.full_like(total, 0.5))
        each = of(*arguments, *told, reduction="none", **how)
        return total[None], by_hidden, by_head.T, each[..., None]

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
        for part, found in parts.items():
            if not found.is_within(allowed):
                raise _disagreement(report, kernel, part, found)


def _disagreement(report: KernelReport, kernel: str, part: str, found: Deviation) -> KernelError:
    name, way_out = f"attention backend {report.choice.name}", "force --attention reference"
    if kernel == "loss":
        name, way_out = "loss kernel", "run on another device, or with another version of JAX"
    most = report.tolerance
    return KernelError(
        f"the {name} is wrong here: its {part} is off the reference by {found.relative:.2g} "
        f"(at the worst place {found.worst:.2g}) in {report.dtype}, with heads "
        f"{list(report.attention_shape)}",
        allowed=f"{most.relative:.2g} (at the worst place {most.worst:.2g})",
        fix=f"{way_out}, and report this with jax {jax.__version__}, jaxlib {version('jaxlib')}, "
        f"{jax.devices()[0].device_kind}",
    )
