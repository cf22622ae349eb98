"""The peer of a training step: a compiled PyTorch decoder of the same shape and math.

    python -m benchmarks.peers.torch_decoder SPEC

SDPA attention, fused AdamW, clipping; on a GPU bfloat16 autocast over float32 weights, on a CPU
float32 throughout. Needs PyTorch and the standard library alone; SPEC and what is served are those
of `benchmarks.training_step`.
"""

import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.step_process import serve

WARMUP_STEPS = 4


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on the two halves of each head."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); queries, keys and values in one product."""

    def __init__(self, width: int, heads: int, mlp_width: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = _linear(width, 3 * width), _linear(width, width)
        self.up, self.down = _linear(width, mlp_width), _linear(mlp_width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The residual stream after this layer."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotated(q, cos, sin).to(v.dtype), rotated(k, cos, sin).to(v.dtype)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(self.mlp_norm(x))).square())


class Decoder(nn.Module):
    """Token ids and targets to the mean loss."""

    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        width, heads, vocab = size["hidden_dim"], size["num_heads"], size["vocab_size"]
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, size["intermediate_dim"]) for _ in range(size["num_layers"])
        )
        self.norm, self.head = nn.RMSNorm(width), _linear(width, vocab)
        head_dim = width // heads
        frequencies = 1.0 / 10_000 ** (torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(size["seq_len"]), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy over all positions, from float32 logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Stepper:
    """The model, its optimizer, and one batch of random tokens."""

    def __init__(self, size: dict[str, int], device: str) -> None:
        self._device = device
        self._model = Decoder(size).to(device)
        self._compiled = torch.compile(self._model)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=3e-4, weight_decay=0.1, fused=True
        )
        shape = (size["batch_size"], size["seq_len"] + 1)
        self._tokens = torch.randint(0, size["vocab_size"], shape, device=device)
        self.loss = float("nan")

    def take(self, way: str, steps: int) -> None:
        """That many steps, done when this returns; `causal` is the only way."""
        assert way == "causal"
        for _ in range(steps):
            with self._autocast():
                loss = self._compiled(self._tokens[:, :-1], self._tokens[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.loss = loss.item()

    def _autocast(self) -> AbstractContextManager[Any]:
        is_on_gpu = self._device == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if is_on_gpu else nullcontext()


def main(spec: dict[str, Any]) -> None:
    """Take the first steps, say what they took, then serve."""
    device = "cpu" if spec["platform"] == "cpu" else "cuda"
    if device == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    else:
        torch.set_float32_matmul_precision("high")
    stepper = Stepper(spec["size"], device)
    begin = time.perf_counter()
    stepper.take("causal", 1)
    report = {
        "first_step_s": time.perf_counter() - begin,
        "from_start_s": time.time() - spec["started"],
    }
    stepper.take("causal", WARMUP_STEPS)
    report["loss"] = stepper.loss
    report["peak_bytes"] = torch.cuda.max_memory_allocated() if device == "cuda" else None
    report["version"] = torch.__version__
    serve(report, stepper.take)


def _linear(width_in: int, width_out: int) -> nn.Linear:
    return nn.Linear(width_in, width_out, bias=False)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
