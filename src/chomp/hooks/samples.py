"""Samples of what a model writes, for the eye: a held-out text begins, the model goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from chomp.config import Config
from chomp.data import EvalDataset
from chomp.errors import require, require_positive
from chomp.evaluation import generate
from chomp.hooks.clock import Phase
from chomp.hooks.run_folder import SAMPLE_MARK, RunFolder
from chomp.kernels.precision import Precision
from chomp.tokenize import Tokenizer
from chomp.tracking import Tracker


@dataclass(frozen=True, kw_only=True)
class SamplesConfig(Config):
    """Text that is generated at the end of a run, and every `every` steps."""

    every: int | None = None
    max_tokens: int = 100  # 0: no samples at all
    prompt_tokens: int = 16
    temperature: float = 0.7
    top_k: int | None = 40
    top_p: float | None = None  # the likeliest tokens that have this much probability; None: all

    def __post_init__(self) -> None:
        require_positive(self, "every", "prompt_tokens", "top_k")
        require(
            self.max_tokens >= 0 and self.temperature >= 0,
            given=f"samples.max_tokens={self.max_tokens}, samples.temperature={self.temperature}",
            allowed="0 or more of both",
            fix="max_tokens=0 turns samples off, temperature=0 takes the likeliest token",
        )
        require(
            self.every is None or self.max_tokens > 0,
            given=f"samples.every={self.every} with samples.max_tokens=0",
            allowed="a period only where there are samples",
            fix="set samples.every=null, or samples.max_tokens=100",
        )
        require(
            self.top_p is None or 0.0 < self.top_p <= 1.0,
            given=f"samples.top_p={self.top_p}",
            allowed="above 0 and at most 1, or null to draw from all",
            fix="0.95 leaves out the least likely",
        )

    def require_fits(self, max_seq_len: int) -> None:
        """Raise `ConfigError` for samples that are longer than the model's rows."""
        room = max_seq_len - self.prompt_tokens
        require(
            self.max_tokens <= max(room, 0),
            given=f"samples.prompt_tokens={self.prompt_tokens} and samples.max_tokens="
            f"{self.max_tokens} with model.max_seq_len={max_seq_len}",
            allowed="prompts and what follows them within the rows of the model",
            fix=f"set samples.max_tokens={max(room, 0)}, or fewer samples.prompt_tokens",
        )


class Samples:
    """Writes a sample into the run folder when it is due and whenever it is called.

    The averaged weights write, where there are any. Each sample takes the next held-out document;
    all prompts have one length where documents allow, so one program makes them all.
    """

    phase: Phase = "hook"

    def __init__(
        self,
        config: SamplesConfig,
        dataset: EvalDataset,
        tokenizer: Tokenizer,
        tracker: Tracker,
        *,
        folder: RunFolder,
        mesh: Mesh,
        mp: Precision,
    ) -> None:
        self._config, self._dataset, self._tokenizer = config, dataset, tokenizer
        self._tracker, self._folder, self._mesh, self._mp = tracker, folder, mesh, mp
        self._last: int | None = None

    def is_due(self, completed_steps: int) -> bool:
        """Whether the period asks for a sample now."""
        every = self._config.every
        return every is not None and completed_steps % every == 0

    def __call__(self, models: Mapping[str, Any], completed_steps: int) -> None:
        """Write a sample of the model as it is, unless there is one of that step already."""
        if completed_steps == self._last:
            return
        self._last = completed_steps
        weights = models["current"] if models["ema"] is None else models["ema"]
        text = self._text(self._mp.for_compute(weights), completed_steps)
        path = self._folder.write_sample(completed_steps, text)
        self._tracker.log_artifact(path, name=f"sample-step-{completed_steps}", kind="sample")

    def _text(self, model: Any, completed_steps: int) -> str:
        config = self._config
        # By the step and not by a counter, so that a resumed run writes the same samples.
        number = 0 if config.every is None else completed_steps // config.every
        # A real beginning: with boundary loss masked, nobody learns how a document starts.
        prompt = self._dataset.beginning(config.prompt_tokens, number)
        ids = generate(
            model,
            prompt,
            mesh=self._mesh,
            max_tokens=config.max_tokens,
            eos_id=self._tokenizer.eos_id,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
        )
        return f"{self._tokenizer.decode(prompt)}{SAMPLE_MARK}{self._tokenizer.decode(ids)}"
