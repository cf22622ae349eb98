"""How many rows a step takes, and which examples: a batch size that may change at given steps.

Exact at any step, in time that grows only with the number of changes. The last size lasts for ever.
"""

import bisect
from collections.abc import Sequence
from itertools import pairwise

from chomp.errors import require


class BatchSchedule:
    """Examples of every step: `grad_accum` micro-batches of `batch_size(step)` rows.

    `sizes` is one size, or pairs of the step at which a size starts and that size.
    """

    def __init__(self, sizes: int | Sequence[tuple[int, int]], grad_accum: int = 1) -> None:
        pairs = [(0, sizes)] if isinstance(sizes, int) else list(sizes)
        self._starts = [start for start, _ in pairs]
        self._sizes = [size for _, size in pairs]
        self.grad_accum = grad_accum
        self._check()
        # Examples before each start, so that no question walks over the steps.
        self._before = [0]
        for (start, stop), size in zip(pairwise(self._starts), self._sizes, strict=False):
            self._before.append(self._before[-1] + (stop - start) * size * grad_accum)

    @property
    def distinct_sizes(self) -> tuple[int, ...]:
        """Every size that occurs, from small to large: one compiled step each."""
        return tuple(sorted(set(self._sizes)))

    def batch_size(self, step: int) -> int:
        """Rows of one micro-batch of a step."""
        return self._sizes[bisect.bisect_right(self._starts, step) - 1]

    def examples(self, step: int) -> int:
        """Examples that a step takes, over all its micro-batches."""
        return self.batch_size(step) * self.grad_accum

    def examples_before(self, step: int) -> int:
        """Examples that the steps before this one take: the number of its first example."""
        segment = bisect.bisect_right(self._starts, step) - 1
        since = step - self._starts[segment]
        return self._before[segment] + since * self._sizes[segment] * self.grad_accum

    def step_of(self, example: int) -> int:
        """The step that takes an example."""
        segment = bisect.bisect_right(self._before, example) - 1
        since = example - self._before[segment]
        return self._starts[segment] + since // (self._sizes[segment] * self.grad_accum)

    def _check(self) -> None:
        given = f"train.batch_size={list(zip(self._starts, self._sizes, strict=True))}"
        if len(self._starts) == 1 and self._starts[0] == 0:
            given = f"train.batch_size={self._sizes[0]}"
        require(
            self._starts[:1] == [0] and all(a < b for a, b in pairwise([*self._starts, 2**31])),
            given,
            allowed="one size, or [start step, size] pairs: the first at 0, each after the last "
            "and below 2147483648",
            fix="start train.batch_size at step 0 and list its changes in their order",
        )
        require(
            all(0 < size < 2**31 for size in self._sizes),
            given,
            allowed="sizes of at least 1 row and below 2147483648",
            fix="set train.batch_size to the rows of one micro-batch, over all hosts",
        )
        require(
            self.grad_accum > 0,
            f"train.grad_accum={self.grad_accum}",
            allowed="at least 1 micro-batch a step",
            fix="set train.grad_accum=1 for no accumulation",
        )
