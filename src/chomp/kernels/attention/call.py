"""One attention call as far as a backend's limits go: where it runs, its sizes, its mask's kind.

Everything here is known while tracing, so a choice made from it is made once for a program.
"""

from dataclasses import dataclass

from jaxtyping import Array, Float

from chomp.errors import require
from chomp.kernels.attention.mask import AttentionMask
from chomp.kernels.platform import compute_capability, platform_of

# Axes: B batch, S sequence, H query heads, G key-value heads, K head width.


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What self attention of `num_heads` heads over rows of `seq_len` asks for."""

    platform: str  # cpu, gpu or tpu
    dtype: str
    head_dim: int
    num_heads: int
    num_kv_heads: int
    seq_len: int
    is_causal: bool = True
    has_window: bool = False
    has_documents: bool = False
    value_dim: int | None = None  # of a head's values on one device; None: head_dim
    # Of an NVIDIA GPU, as (9, 0) for Hopper; None on everything else.
    compute_capability: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        require(
            self.num_heads % self.num_kv_heads == 0,
            f"{self.num_heads} query heads with {self.num_kv_heads} key-value heads",
            allowed="query heads that are a multiple of key-value heads",
            fix="change num_heads or num_kv_heads",
        )

    @staticmethod
    def of(
        q: Float[Array, "B S H K"],
        k: Float[Array, "B S G K"],
        mask: AttentionMask,
        *,
        value_dim: int | None = None,
    ) -> "AttentionCall":
        """The call of these arrays on the platform they are traced for."""
        platform = platform_of(q)
        return AttentionCall(
            platform=platform,
            dtype=str(q.dtype),
            head_dim=q.shape[3],
            num_heads=q.shape[2],
            num_kv_heads=k.shape[2],
            seq_len=q.shape[1],
            is_causal=mask.is_causal,
            has_window=mask.sliding_window is not None,
            has_documents=mask.segment_ids is not None,
            value_dim=value_dim,
            compute_capability=compute_capability() if platform == "gpu" else None,
        )
