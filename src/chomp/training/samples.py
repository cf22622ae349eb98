"""Samples of what a model writes, for the eye: a piece of a text, and how the model goes on."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Any

import jax

from chomp.config import Config, setting
from chomp.data import TrainedTexts
from chomp.errors import require
from chomp.evaluation import generate
from chomp.tracking.run_files import SAMPLE_MARK

log = logging.getLogger(__name__)

# Seed 004: a model that works in chunks is seen to go on after the first one. Any other writes as
# much as one with chunks of 128.
_TOKENS_AFTER_CHUNK = 16
_DEFAULT_CHUNK = 128


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

    def lengths_for(self, model: Any, *, seq_len: int) -> tuple[int, int]:
        """Tokens of a prompt and of what follows, for a model config and rows of `seq_len`.

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
        room = max(model.max_seq_len - prompt, 0)
        if max_tokens is None:
            chunk_size = getattr(model, "chunk_size", None) or _DEFAULT_CHUNK
            max_tokens = max(1, min(chunk_size + _TOKENS_AFTER_CHUNK, room))
        require(
            max_tokens <= room,
            f"samples.prompt_tokens={prompt} and samples.max_tokens={max_tokens} with "
            f"model.max_seq_len={model.max_seq_len}",
            allowed="prompts and their continuations within the rows of the model",
            fix=f"set samples.max_tokens={room}, or fewer samples.prompt_tokens",
        )
        return prompt, max_tokens


def prompt_of_step(texts: Any, step: int, *, num_tokens: int, every: int | None) -> list[int]:
    """The prompt of a step's sample: the next document's head or tail, chosen by a hash.

    `texts` is a dataset of `chomp.data` with documents. The step alone decides, so that a resumed
    run writes the same samples.
    """
    number = 0 if every is None else step // every
    # Not the parity of steps, which the period would make the same for all samples.
    is_tail = hashlib.sha256(f"sample of step {step}".encode()).digest()[0] % 2 == 1
    prompt: list[int] = texts.prompt(num_tokens, number, is_tail=is_tail)
    return prompt


class Samples:
    """Writes samples into the run folder, as `config.samples` of a run says.

    Each continues the next held-out document of the first component that has any; a training
    document if none has, with a warning. All prompts have one length where documents allow: another
    length costs another compile. A sample that fails is a warning, and the run goes on without it.
    Not with several processes: those that did not fail would wait for ever.
    """

    def __init__(self, run: Any) -> None:
        self._run, config, self._failures = run, run.config, 0
        self._lengths = config.samples.lengths_for(config.model, seq_len=config.trainer.seq_len)
        held_out = [dataset for dataset in run.eval_datasets if dataset.num_rows > 0]
        self._texts = held_out[0] if held_out else TrainedTexts(config.data, run.tokenizer)
        if not held_out:
            log.warning(
                "no document is held out, so samples go on from TRAINING documents: what is "
                "written well may have been memorised (samples.max_tokens=0: no samples)"
            )

    def write(self, weights: Any, completed_steps: int) -> None:
        """Write a sample by these weights, and show it."""
        run = self._run
        try:
            text = self._generate(run.mp.for_compute(weights), completed_steps)
            path = run.folder.write_sample(completed_steps, text)
            # The console prints it, and services keep it.
            run.tracker.log_artifact(path, name=f"sample-step-{completed_steps}", kind="sample")
        except Exception as error:
            if jax.process_count() > 1:
                raise
            self._failures += 1
            log.warning(
                "no sample of step %d (the run goes on without it; %d so far): %s: %s. Fix what it "
                "says, ask for less (samples.max_tokens, samples.prompt_tokens), or turn samples "
                "off: samples.max_tokens=0",
                *(completed_steps, self._failures, type(error).__name__, error),
                exc_info=self._failures == 1,  # the next ones will most often be the same
            )

    def _generate(self, model: Any, completed_steps: int) -> str:
        run, config, (num_tokens, max_tokens) = self._run, self._run.config.samples, self._lengths
        prompt = prompt_of_step(
            self._texts, completed_steps, num_tokens=num_tokens, every=config.every
        )
        ids = generate(
            model,
            prompt,
            mesh=run.mesh,
            max_tokens=max_tokens,
            eos_id=run.tokenizer.eos_id,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
        )
        return f"{run.tokenizer.decode(prompt)}{SAMPLE_MARK}{run.tokenizer.decode(ids)}"
