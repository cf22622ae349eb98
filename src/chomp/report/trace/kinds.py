"""The categories that a trace's time is told in, and which of them an operation belongs to.

Everything in the scope `attention` or `loss` is attention or loss, products included: chomp's
kernels name their scopes (`jax.named_scope`), and a model's own code can do the same. Operations
without a program are sorted by the name of their kernel.
"""

import re
from typing import Literal, get_args

from chomp.report.trace.program import Instruction

Category = Literal["matmul", "attention", "loss", "element-wise", "collectives", "copies", "other"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
# Operations that only hold others. They count where nothing inside of them runs.
CONTAINERS = ("while", "call", "conditional")

_SCOPES: tuple[Category, ...] = ("attention", "loss")
# Not of a jitted function that happens to be called so: that may be the whole program.
_SCOPE = {name: re.compile(rf"(?:^|/|(?<!jit)\(){name}(?:[/)]|$)") for name in _SCOPES}
_COLLECTIVE = re.compile(
    r"all-reduce|all-gather|all-to-all|reduce-scatter|collective-|^send|^recv|ncclDev|nccl_"
)
_HOST_COPY = re.compile(r"^Mem(?:cpy|set)")  # what CUDA calls its own
# cuDNN's are several kernels: what it calls a fusion prepares and finishes the one in the middle.
_ATTENTION = re.compile(r"fmha|sdpa|flash|splash_mha|cudnn::fusion", re.IGNORECASE)
_PRODUCT = re.compile(
    r"gemm|cublas|cutlass|nvjet|xmma|matmul|\bdot\b|^dot|convolution|ragged-dot", re.IGNORECASE
)
_COPY_OPCODE = re.compile(
    r"bitcast|concatenate|copy|copy-done|copy-start|dynamic-slice|dynamic-update-slice|pad|reshape"
    r"|reverse|slice|transpose"
)
_COPY_NAME = re.compile(r"copy|memcpy|memset|transpose|bitcast", re.IGNORECASE)
_OTHER_OPCODE = re.compile(
    r"after-all|cholesky|custom-call|fft|infeed|outfeed|rng|rng-bit-generator|sort|triangular-solve"
)


def category_of(name: str, instruction: Instruction | None, scope: str = "") -> Category:
    """What the operation that ran under `name` spends its time on.

    `scope` counts where the instruction has none; an unknown operation is `other`.
    """
    scope = instruction.scope if instruction and instruction.scope else scope
    opcode = instruction.opcode if instruction else ""
    if _COLLECTIVE.search(opcode) or _COLLECTIVE.search(name):
        # One device by itself hands its numbers on: a program for many that ran on one.
        return "copies" if instruction and instruction.is_alone else "collectives"
    if _HOST_COPY.match(name):
        return "copies"
    if opcode in CONTAINERS:
        return "other"
    for category in _SCOPES:
        if _SCOPE[category].search(scope):
            return category
    words = " ".join([name, *(instruction.targets if instruction else ())])
    if _ATTENTION.search(words):
        return "attention"
    if _is_product(words, instruction):
        return "matmul"
    return _plain_category(name, instruction)


def _is_product(words: str, instruction: Instruction | None) -> bool:
    opcodes = instruction.opcodes if instruction else frozenset()
    return bool(opcodes & {"dot", "convolution", "ragged-dot"} or _PRODUCT.search(words))


def _plain_category(name: str, instruction: Instruction | None) -> Category:
    if instruction is None:
        if _COPY_NAME.match(name):
            return "copies"
        return "element-wise" if "fusion" in name or name.startswith("wrapped_") else "other"
    if _OTHER_OPCODE.fullmatch(instruction.opcode):
        return "other"
    computing = instruction.opcodes - {"fusion", "parameter", "tuple", "constant"}
    is_copy = all(_COPY_OPCODE.fullmatch(opcode) for opcode in computing)
    return "copies" if computing and is_copy else "element-wise"
