"""Speed of a run from the loop's clock and the model's analytic operations."""

from chomp.data import TrainLoader
from chomp.hooks.clock import LoopClock
from chomp.tracking import names


class Throughput:
    """Throughput metrics of the steps between two logged rows."""

    def __init__(
        self, clock: LoopClock, loader: TrainLoader, *, start_step: int, flops_per_token: float
    ) -> None:
        self._clock = clock
        self._batches = loader.batches
        self._seq_len = loader.dataset.seq_len
        # Forward plus twice that for the backward pass.
        self._flops_per_example = 3.0 * self._seq_len * flops_per_token
        self._last_step = start_step - 1

    def summary(self) -> dict[str, float]:
        """Constants of the run."""
        return {
            names.FLOPS_PER_TOKEN_ANALYTIC: self._flops_per_example / (3 * self._seq_len),
            names.FLOPS_PER_EXAMPLE_ANALYTIC: self._flops_per_example,
            names.FLOPS_PER_EXAMPLE: self._flops_per_example,
        }

    def metrics(self, step: int, trained_tokens: int) -> dict[str, float]:
        """Metrics of the steps since the last call; `step` is the 0-based one just completed."""
        seconds = self._clock.read()
        steps = step - self._last_step
        duration = max(seconds["step"] / steps, 1e-9)
        total_examples = self._batches.examples_before(step + 1)
        examples = total_examples - self._batches.examples_before(self._last_step + 1)
        examples_per_second = examples / steps / duration
        self._last_step = step
        metrics = {
            names.DURATION: duration,
            names.EXAMPLES_PER_SECOND: examples_per_second,
            names.TOKENS_PER_SECOND: examples_per_second * self._seq_len,
            names.TOTAL_TOKENS: float(total_examples * self._seq_len),
            names.GFLOPS_PER_SECOND: examples_per_second * self._flops_per_example / 1e9,
            names.TOTAL_GFLOPS: total_examples * self._flops_per_example / 1e9,
            names.LOADING_TIME: seconds["loading"],
            names.HOOK_TIME: seconds["hook"],
            names.CHECKPOINT_TIME: seconds["checkpoint"],
            names.COMPILE_TIME: seconds["compile"],
            names.TOKENS_PER_SEC: trained_tokens / duration / steps,
        }
        if seconds["compile"]:
            metrics[names.FIRST_STEP_COMPILE_TIME_S] = seconds["compile"]
        return metrics
