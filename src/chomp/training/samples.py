"""Samples of what a model writes, for the eye: a piece of a text, and how the model goes on."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh

from chomp.config import Config, setting
from chomp.errors import require
from chomp.evaluation import generate
from chomp.kernels.precision import Precision
from chomp.tokenize import Tokenizer
from chomp.tracking import Tracker
from chomp.tracking.run_files import SAMPLE_MARK
from chomp.training.run_folder import RunFolder

_logger = logging.getLogger(__name__)

# Seed 004: a model that works in chunks is seen to go on after the first one. Any other writes as
# much as one with chunks of 128.
_TOKENS_AFTER_CHUNK = 16
_DEFAULT_CHUNK = 128


class SampleLengths(NamedTuple):
    """How long samples are, in tokens; `max_tokens=0`: there are none."""

    prompt_tokens: int
    max_tokens: int


@runtime_checkable
class Texts(Protocol):
    """Where prompts come from: `chomp.data.EvalDataset` or `chomp.data.TrainedTexts`."""

    def prompt(self, num_tokens: int, number: int, *, is_tail: bool) -> list[int]:
        """The first or last tokens of document `number`, or as many as there are."""
        ...


@dataclass(frozen=True, kw_only=True)
class SamplesConfig(Config):
    """Text that is generated at the end of a run, and every `every` steps."""

    # Seed 004's train.generate_every uses 0 for none.
    every: int | None = setting(
        default=None, ge=1, lt=2**31, also=("train.generate_every",), zero_is_null=True
    )
    # 0: no samples at all; None: the model's `chunk_size` and 16 more, or 144.
    max_tokens: int | None = setting(
        default=None, ge=0, le=2**20, also=("train.generate_max_tokens",)
    )
    # None: half of train.seq_len.
    prompt_tokens: int | None = setting(
        default=None, ge=1, le=2**20, also=("train.generate_input_len",)
    )
    temperature: float = setting(
        default=1.0, ge=0, le=100, also=("train.generate_temperature",)
    )  # 0: the likeliest token
    # So many of the likeliest tokens; None: all.
    top_k: int | None = setting(default=None, ge=1, lt=2**24, also=("train.generate_top_k",))
    # The likeliest tokens that have this much probability; None: all.
    top_p: float | None = setting(default=None, gt=0, le=1, also=("train.generate_top_p",))

    def __post_init__(self) -> None:
        require(
            self.every is None or self.max_tokens != 0,
            f"samples.every={self.every} with samples.max_tokens=0",
            allowed="a period only where there are samples",
            fix="set samples.every=null, or samples.max_tokens=null",
        )

    def lengths_for(self, model: Any, *, seq_len: int) -> SampleLengths:
        """The lengths for a template's model config and rows of `seq_len` in training.

        A null is cut to what the other length leaves of `model.max_seq_len`, down to one token.
        Raises `ConfigError` for lengths that were asked for and do not fit.
        """
        prompt, max_tokens = self.prompt_tokens, self.max_tokens
        require(
            prompt is None or prompt <= seq_len,
            f"samples.prompt_tokens={prompt} (train.generate_input_len) with "
            f"train.seq_len={seq_len}",
            allowed=f"1 to {seq_len} tokens, or null for half of that",
            fix=f"set samples.prompt_tokens={seq_len}, or less",
        )
        if prompt is None:
            prompt = max(1, min(seq_len // 2, model.max_seq_len - (max_tokens or 1)))
        if max_tokens is None:
            chunk_size = getattr(model, "chunk_size", None) or _DEFAULT_CHUNK
            max_tokens = max(1, min(chunk_size + _TOKENS_AFTER_CHUNK, model.max_seq_len - prompt))
        room = max(model.max_seq_len - prompt, 0)
        require(
            max_tokens <= room,
            f"samples.prompt_tokens={prompt} and samples.max_tokens={max_tokens} with "
            f"model.max_seq_len={model.max_seq_len}",
            allowed="prompts and their continuations within the rows of the model",
            fix=f"set samples.max_tokens={room}, or fewer samples.prompt_tokens",
        )
        return SampleLengths(prompt, max_tokens)


def prompt_texts(held_out: Sequence[Any], trained: Texts) -> Texts:
    """The first of the held-out datasets that has a document, or `trained` with a warning."""
    for dataset in held_out:
        if dataset.num_rows > 0:
            texts: Texts = dataset
            return texts
    _logger.warning(
        "no document is held out, so samples go on from TRAINING documents: what is written well "
        "may have been memorised (samples.max_tokens=0: no samples)"
    )
    return trained


def prompt_of_step(texts: Texts, step: int, *, num_tokens: int, every: int | None) -> list[int]:
    """The prompt of a step's sample: the next document's head or tail, chosen by a hash.

    The step alone decides, so that a resumed run writes the same samples.
    """
    number = 0 if every is None else step // every
    # Not the parity of steps, which the period would make the same for all samples.
    is_tail = hashlib.sha256(f"sample of step {step}".encode()).digest()[0] % 2 == 1
    return texts.prompt(num_tokens, number, is_tail=is_tail)


class Samples:
    """Writes samples into the run folder, by the averaged weights where there are any.

    Each sample continues the next document of `texts`. All prompts have one length where documents
    allow: another length costs another compile. A sample that fails is a warning, and the run goes
    on without it. Not with several processes: those that did not fail would wait for ever.
    """

    def __init__(
        self,
        config: SamplesConfig,
        lengths: SampleLengths,
        texts: Texts,
        tokenizer: Tokenizer,
        tracker: Tracker,
        *,
        folder: RunFolder,
        mesh: Mesh,
        mp: Precision,
    ) -> None:
        """`lengths` are what `config` resolves to."""
        self._config, self._lengths, self._texts = config, lengths, texts
        self._tokenizer, self._tracker, self._folder = tokenizer, tracker, folder
        self._mesh, self._mp = mesh, mp
        self._failures = 0

    def write(self, weights: Any, completed_steps: int) -> None:
        """Write a sample by these weights, and show it."""
        try:
            text = self._generate(self._mp.for_compute(weights), completed_steps)
            path = self._folder.write_sample(completed_steps, text)
            # The console prints it, and services keep it.
            self._tracker.log_artifact(path, name=f"sample-step-{completed_steps}", kind="sample")
        except Exception as error:
            if jax.process_count() > 1:
                raise
            self._failures += 1
            _logger.warning(
                "no sample of step %d (the run goes on without it; %d so far): %s: %s. Fix what it "
                "says, ask for less (samples.max_tokens, samples.prompt_tokens), or turn samples "
                "off: samples.max_tokens=0",
                completed_steps,
                self._failures,
                type(error).__name__,
                error,
                exc_info=self._failures == 1,  # the next ones will most often be the same
            )

    def _generate(self, model: Any, completed_steps: int) -> str:
        config = self._config
        prompt = prompt_of_step(
            self._texts,
            completed_steps,
            num_tokens=self._lengths.prompt_tokens,
            every=config.every,
        )
        ids = generate(
            model,
            prompt,
            mesh=self._mesh,
            max_tokens=self._lengths.max_tokens,
            eos_id=self._tokenizer.eos_id,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
        )
        return f"{self._tokenizer.decode(prompt)}{SAMPLE_MARK}{self._tokenizer.decode(ids)}"
