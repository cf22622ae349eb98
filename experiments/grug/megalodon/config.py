"""Shape of a Megalodon, what it may not be, and what it costs."""

from dataclasses import dataclass
from typing import Literal

from chomp.config import Config, setting
from chomp.errors import require, require_divides, require_positive
from chomp.kernels.attention import Backend
from chomp.kernels.remat import Remat
from experiments.grug.megalodon.chunks import DropoutMode

InitMode = Literal["he", "xavier", "bert", "gaussian", "none"]


@dataclass(frozen=True, kw_only=True)
class GrugModelConfig(Config):
    """Shape of the model; the defaults are those of the 200M one (`presets.py`)."""

    vocab_size: int
    model_dim: int = 1024
    num_layers: int = 12
    num_heads: int = 1
    z_dim: int = 256  # of queries and keys together, which share one projection
    value_dim: int = 2048
    ffn_hidden_dim: int = 2560
    cema_ndim: int = 16  # modes of the moving average in each channel
    chunk_size: int = 2048  # tokens that attention sees at most
    attention_window: int | None = None  # the last so many tokens in the place of chunks
    norm_num_groups: int = 32
    norm_eps: float = 1e-5
    norm_affine: bool = True  # scales and biases of the norms that are not over time
    rope_base: float = 10_000.0
    swiglu: bool = False  # SiLU(x) * y in the place of SiLU(x)
    rescale_nffn: bool = False  # a learned factor for what each FFN adds, smaller in deeper layers
    scale_emb: bool = False  # embeddings times sqrt(model_dim)
    share_emb: bool = False  # the head is the embedding
    output_size: int = -1  # logits; -1: one for each id of the vocabulary
    dropout: float = 0.0  # of embeddings, and of what attention and FFN add
    attention_dropout: float = 0.0
    attention_dropout_mode: DropoutMode = "post_softmax"
    hidden_dropout: float = 0.0  # of averages, and inside the FFN
    init_mode: InitMode = "he"
    remat: Remat = setting(default="none", mark="schedule")  # what the backward pass makes again
    attention: Backend = setting(default="auto", mark="schedule")  # which kernel

    def __post_init__(self) -> None:
        numbers = ("vocab_size", "model_dim", "num_layers", "num_heads", "z_dim", "value_dim")
        numbers += ("ffn_hidden_dim", "cema_ndim", "chunk_size", "norm_num_groups", "norm_eps")
        require_positive(self, *numbers, "rope_base")
        for name in ("z_dim", "value_dim"):
            require_divides("num_heads", self.num_heads, name, getattr(self, name))
        require_divides("norm_num_groups", self.norm_num_groups, "model_dim", self.model_dim)
        require(
            self.norm_num_groups < self.model_dim,
            f"norm_num_groups={self.norm_num_groups} with model_dim={self.model_dim}",
            allowed="groups of two features or more: the first token of a group of one is 0",
            fix=f"set norm_num_groups={self.model_dim // 2}",
        )
        require(
            self.inferred_head_dim % 2 == 0,
            f"z_dim={self.z_dim} with num_heads={self.num_heads}",
            allowed="an even z_dim / num_heads: rotary positions rotate pairs",
            fix=f"set z_dim={self.z_dim + self.num_heads}",
        )
        require(
            self.attention_window is None or self.attention_window > 0,
            f"attention_window={self.attention_window}",
            allowed="a number of tokens above 0, or null for chunks",
            fix=f"set attention_window={self.chunk_size}, or leave it out",
        )
        require(
            self.output_size == -1 or (self.output_size >= self.vocab_size and not self.share_emb),
            f"output_size={self.output_size} with vocab_size={self.vocab_size} and "
            f"share_emb={self.share_emb}",
            allowed="-1, or without share_emb a number of logits that has one for every id",
            fix="set output_size=-1",
        )
        for name in ("dropout", "attention_dropout", "hidden_dropout"):
            require(
                0.0 <= getattr(self, name) < 1.0,
                f"{name}={getattr(self, name)}",
                allowed="from 0 up to but not 1",
                fix=f"set {name}=0.1",
            )

    # What a kernel is told of any model, by base's names.
    @property
    def hidden_dim(self) -> int:
        """Width of the residual stream."""
        return self.model_dim

    @property
    def num_kv_heads(self) -> int:
        """Every head has its own keys."""
        return self.num_heads

    @property
    def inferred_head_dim(self) -> int:
        """Width of a head's queries and keys."""
        return self.z_dim // self.num_heads

    @property
    def value_head_dim(self) -> int:
        """Width of a head's values."""
        return self.value_dim // self.num_heads

    @property
    def sliding_window(self) -> int:
        """Keys that a query sees at most."""
        return self.attention_window or self.chunk_size

    @property
    def logit_soft_cap(self) -> None:
        """Logits are not bounded."""
        return None

    @property
    def max_seq_len(self) -> int:
        """Any length, as far as places are counted: nothing in the model ends with a position."""
        return 2**31 - 1

    @property
    def num_logits(self) -> int:
        """Width of the head."""
        return self.vocab_size if self.output_size == -1 else self.output_size

    def flops_per_token(self, seq_len: int) -> float:
        """Forward operations per token in a row of `seq_len`: 2 per multiply-add, causal."""
        d, e, window = self.model_dim, self.value_dim, min(self.sliding_window, seq_len)
        if self.attention_window is None:
            whole, rest = divmod(seq_len, window)
            pairs = whole * window * (window + 1) / 2 + rest * (rest + 1) / 2
        else:
            pairs = window * (seq_len - (window - 1) / 2)
        attention = d * (self.z_dim + 2 * e + d) + e * d + (self.z_dim + e) * pairs / seq_len
        average = 6 * d * self.cema_ndim  # a complex factor, and the real part of another one
        ffn = (3 if self.swiglu else 2) * d * self.ffn_hidden_dim
        return 2.0 * (self.num_layers * (attention + average + ffn) + d * self.num_logits)
