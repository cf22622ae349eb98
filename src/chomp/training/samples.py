"""Samples of what a model writes, for the eye: a piece of a text, and how the model goes on."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
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
from chomp.training.clock import Phase
from chomp.training.run_folder import RunFolder

_logger = logging.getLogger(__name__)

# Seed 004's defaults: a model that works in chunks is seen to go on after the first one; any other
# writes as much as one with chunks of 128.
_TOKENS_AFTER_CHUNK = 16
_USUAL_CHUNK = 128


class SampleLengths(NamedTuple):
    """How long samples are, in tokens; `max_tokens=0`: there are none."""

    prompt_tokens: int
    max_tokens: int


@runtime_checkable
class Texts(Protocol):
    """Where prompts come from; `chomp.data.TrainedTexts` is one."""

    def prompt(self, num_tokens: int, number: int, *, is_tail: bool) -> list[int]:
        """The first or last tokens of document `number`, or as many as there are."""
        ...


@runtime_checkable
class HeldOutTexts(Texts, Protocol):
    """Texts that nobody trains on, if there are any; `chomp.data.EvalDataset` is one."""

    @property
    def num_rows(self) -> int:
        """0 if nothing is held out."""
        ...


@dataclass(frozen=True, kw_only=True)
class SamplesConfig(Config):
    """Text that is generated at the end of a run, and every `every` steps."""

    # In the first chomp a period of 0 is none, so 0 under its name is null here.
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

    def resolved(
        self, *, seq_len: int, max_seq_len: int, chunk_size: int | None = None
    ) -> SampleLengths:
        """The lengths with numbers for nulls, for rows of `seq_len` in training.

        A null is cut to what the other length leaves of `max_seq_len`, down to one token. Raises
        `ConfigError` for lengths that were asked for and do not fit, and for prompts longer than
        the rows of training.
        """
        prompt, following = self.prompt_tokens, self.max_tokens
        require(
            prompt is None or prompt <= seq_len,
            f"samples.prompt_tokens={prompt} (train.generate_input_len) with "
            f"train.seq_len={seq_len}",
            allowed=f"1 to {seq_len} tokens, or null for half of that",
            fix=f"set samples.prompt_tokens={seq_len}, or less",
        )
        if prompt is None:
            # Where what follows is left open too, half a row for the prompt leaves it the other.
            prompt = max(1, min(seq_len // 2, max_seq_len - (following or 1)))
        if following is None:
            usual = (chunk_size or _USUAL_CHUNK) + _TOKENS_AFTER_CHUNK
            following = max(1, min(usual, max_seq_len - prompt))
        room = max(max_seq_len - prompt, 0)
        require(
            following <= room,
            f"samples.prompt_tokens={prompt} and samples.max_tokens={following} with "
            f"model.max_seq_len={max_seq_len}",
            allowed="prompts and what follows them within the rows of the model",
            fix=f"set samples.max_tokens={room}, or fewer samples.prompt_tokens",
        )
        return SampleLengths(prompt, following)

    def resolved_for(self, model: Any, *, seq_len: int) -> SampleLengths:
        """The lengths for a template's model config, which may have a `chunk_size`."""
        chunk_size = getattr(model, "chunk_size", None)
        return self.resolved(seq_len=seq_len, max_seq_len=model.max_seq_len, chunk_size=chunk_size)


def prompt_of_step(texts: Texts, step: int, *, num_tokens: int, every: int | None) -> list[int]:
    """What the sample of a step goes on from: the next document's head or tail, by lot.

    The step alone decides both, so that a resumed run writes the same samples, and runs of other
    seeds can be read side by side.
    """
    number = 0 if every is None else step // every
    # Not the parity of steps, which the period would make the same for all samples.
    is_tail = hashlib.sha256(f"sample of step {step}".encode()).digest()[0] % 2 == 1
    return texts.prompt(num_tokens, number, is_tail=is_tail)


class Samples:
    """Writes a sample into the run folder when it is due and whenever it is called.

    The averaged weights write, where there are any. Each sample takes the next held-out document of
    the first dataset that has any, or the next of `trained` where none has, with a warning. All
    prompts have one length where documents allow: another costs another program.

    A sample that fails is a warning, and the run goes on without it. Not with several processes:
    those that did not fail would wait for ever.
    """

    phase: Phase = "hook"

    def __init__(
        self,
        config: SamplesConfig,
        lengths: SampleLengths,
        datasets: Sequence[HeldOutTexts],
        trained: Texts,
        tokenizer: Tokenizer,
        tracker: Tracker,
        *,
        folder: RunFolder,
        mesh: Mesh,
        mp: Precision,
    ) -> None:
        """`lengths` are what `config` resolves to."""
        self._config, self._lengths, self._tokenizer = config, lengths, tokenizer
        self._tracker, self._folder, self._mesh, self._mp = tracker, folder, mesh, mp
        held_out = next((dataset for dataset in datasets if dataset.num_rows > 0), None)
        if held_out is None:
            _logger.warning(
                "no document is held out, so samples go on from TRAINING documents: what is "
                "written well may have been learnt by heart (samples.max_tokens=0: no samples)"
            )
        self._texts: Texts = trained if held_out is None else held_out
        self._last: int | None = None
        self._failures = 0

    def is_due(self, completed_steps: int) -> bool:
        """Whether the period asks for a sample now."""
        every = self._config.every
        return every is not None and completed_steps % every == 0

    def __call__(self, models: Mapping[str, Any], completed_steps: int) -> None:
        """Write a sample of the model as it is, unless there is one of that step already."""
        if completed_steps == self._last:
            return
        self._last = completed_steps
        try:
            self._write(models, completed_steps)
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
                # Where it happened, once: the next ones will most often be the same.
                exc_info=self._failures == 1,
            )

    def _write(self, models: Mapping[str, Any], completed_steps: int) -> None:
        weights = models["current"] if models["ema"] is None else models["ema"]
        num_tokens, every = self._lengths.prompt_tokens, self._config.every
        prompt = prompt_of_step(self._texts, completed_steps, num_tokens=num_tokens, every=every)
        text = self._continued(self._mp.for_compute(weights), prompt)
        path = self._folder.write_sample(completed_steps, text)
        # The console shows it, and services keep it.
        self._tracker.log_artifact(path, name=f"sample-step-{completed_steps}", kind="sample")

    def _continued(self, model: Any, prompt: list[int]) -> str:
        config = self._config
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
