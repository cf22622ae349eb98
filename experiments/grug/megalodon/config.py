"""Shape of a Megalodon, what it costs, and the shapes that were published."""

from dataclasses import dataclass, replace
from typing import Literal

from chomp.config import Config, setting
from chomp.errors import require, require_divides
from chomp.kernels.attention import Backend
from chomp.kernels.layers import Remat

DropoutMode = Literal["post_softmax", "dropkey"]
InitMode = Literal["he", "xavier", "bert", "gaussian", "none"]


@dataclass(frozen=True, kw_only=True)
class GrugModelConfig(Config):
    """Shape of the model; the defaults are those of the 200M one (`PRESETS`)."""

    # Upper bounds are far above any real model: they catch slips, which would otherwise end as a
    # lack of memory or of time. A tokenizer has fewer than 2**24 ids, a row at most 2**20 tokens.

    vocab_size: int = setting(ge=1, lt=2**24)
    model_dim: int = setting(default=1024, ge=1, le=2**20)
    num_layers: int = setting(default=12, ge=1, le=4096)
    num_heads: int = setting(default=1, ge=1, le=2**16)
    # Of queries and keys together, which share one projection.
    z_dim: int = setting(default=256, ge=1, le=2**20)
    value_dim: int = setting(default=2048, ge=1, le=2**20)
    ffn_hidden_dim: int = setting(default=2560, ge=1, le=2**20)
    # Modes of the moving average in each channel.
    cema_ndim: int = setting(default=16, ge=1, le=4096)
    chunk_size: int = setting(default=2048, ge=1, le=2**20)  # tokens that attention sees at most
    # The last so many tokens in the place of chunks.
    attention_window: int | None = setting(default=None, ge=1, le=2**20)
    norm_num_groups: int = setting(default=32, ge=1, le=2**20)
    norm_eps: float = setting(default=1e-5, gt=0, lt=1)
    norm_affine: bool = True  # scales and biases of the norms that are not over time
    rope_base: float = setting(default=10_000.0, ge=1, le=1e12)
    swiglu: bool = False  # SiLU(x) * y in the place of SiLU(x)
    rescale_nffn: bool = False  # a learned factor for what each FFN adds, smaller in deeper layers
    scale_emb: bool = False  # embeddings times sqrt(model_dim)
    share_emb: bool = False  # the head is the embedding
    # Logits; -1: one for each id of the vocabulary.
    output_size: int = setting(default=-1, ge=-1, lt=2**24)
    # Of embeddings, and of what attention and FFN add.
    dropout: float = setting(default=0.0, ge=0, lt=1)
    attention_dropout: float = setting(default=0.0, ge=0, lt=1)
    attention_dropout_mode: DropoutMode = "post_softmax"
    hidden_dropout: float = setting(default=0.0, ge=0, lt=1)  # of averages, and inside the FFN
    init_mode: InitMode = "he"
    remat: Remat = setting(default="none", mark="schedule")  # what the backward pass recomputes
    attention: Backend = setting(default="auto", mark="schedule")  # which kernel

    def __post_init__(self) -> None:
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
            self.output_size == -1 or (self.output_size >= self.vocab_size and not self.share_emb),
            f"output_size={self.output_size} with vocab_size={self.vocab_size} and "
            f"share_emb={self.share_emb}",
            allowed="-1, or without share_emb a number of logits that has one for every id",
            fix="set output_size=-1",
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
        """Any length that can be counted: nothing in the model ends with a position."""
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


# Shapes that Megalodons have been given, with the weights they have at 32,000 ids. The released 7B
# has FFNs of 11,264; the paper tells of 8,192 with a gate, and of chunks of 4,096.
VOCAB_SIZE = 32_000

MEGA_200M = GrugModelConfig(vocab_size=VOCAB_SIZE)  # 220,627,968

MEGA_1_3B = replace(  # 1,342,832,640
    MEGA_200M,
    num_layers=24,
    model_dim=2048,
    num_heads=2,
    z_dim=512,
    value_dim=4096,
    ffn_hidden_dim=4864,
    norm_num_groups=64,
)

MEGA_1_3B_PG19 = replace(  # 1,327,628,288
    MEGA_1_3B, ffn_hidden_dim=3584, swiglu=True, share_emb=True, scale_emb=True
)

MEGA_7_1B = replace(  # 7,117,381,632
    MEGA_200M,
    num_layers=32,
    model_dim=4096,
    num_heads=4,
    z_dim=1024,
    value_dim=8192,
    ffn_hidden_dim=11_264,
    norm_num_groups=64,
)

MEGA_7_3B = replace(MEGA_7_1B, ffn_hidden_dim=8192, swiglu=True)  # 7,385,817,088

PAPER_7B = replace(MEGA_7_3B, chunk_size=4096, rope_base=100_000.0)  # 7,385,817,088

PRESETS = {
    "mega200m": MEGA_200M,
    "mega1_3b": MEGA_1_3B,
    "mega1_3b_pg19": MEGA_1_3B_PG19,
    "mega7_1b": MEGA_7_1B,
    "mega7_3b": MEGA_7_3B,
    "paper_7b": PAPER_7B,
}
