"""What a run asks of its kernels: the part of a model's config that they depend on."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol, runtime_checkable

from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from chomp.errors import divisors, require
from chomp.kernels.attention import Backend
from chomp.mesh import BATCH_AXES


@runtime_checkable
class ModelShapes(Protocol):
    """The part of a model's config that its kernels depend on."""

    @property
    def vocab_size(self) -> int:
        """Token ids the model knows."""
        ...

    @property
    def hidden_dim(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads."""
        ...

    @property
    def inferred_head_dim(self) -> int:
        """Width of one head."""
        ...

    @property
    def sliding_window(self) -> int | None:
        """Keys a query sees; None: the whole prefix."""
        ...

    @property
    def logit_soft_cap(self) -> float | None:
        """Bound of the logits; None: none."""
        ...

    @property
    def attention(self) -> Backend:
        """The attention backend that is asked for."""
        ...


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
    def of(model: ModelShapes, *, seq_len: int) -> "KernelShapes":
        """The shapes of a model that is trained on rows of `seq_len`."""
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
            # Of a model that has one: in most, values are as wide as keys.
            value_dim=getattr(model, "value_head_dim", None),
            heads_field=_heads_field(model),
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


def _heads_field(model: ModelShapes) -> str:
    """The field that the number of key-value heads comes from: a model may have one of each."""
    names = {item.name for item in fields(model)} if is_dataclass(model) else set[str]()
    return "num_kv_heads" if "num_kv_heads" in names or "num_heads" not in names else "num_heads"
