"""How fast a run goes and how long it still takes, by the wall clock between logged rows.

The wall clock counts what a step's own duration leaves out (loading, evaluation, checkpoints), and
that is what somebody waiting for the run wants to know.
"""

from collections import deque

# Rows over which the pace is measured: enough to even out an evaluation or a checkpoint, few enough
# to follow a change of batch size.
WINDOW_ROWS = 50


class Pace:
    """Seconds per step over the last rows, from the first row on, so compiling never counts."""

    def __init__(self, total_steps: int) -> None:
        self._total_steps = total_steps
        self._marks: deque[tuple[int, float]] = deque(maxlen=WINDOW_ROWS)

    def observe(self, completed_steps: int, now_s: float) -> None:
        """Note that `completed_steps` were done at `now_s`; a step seen before changes nothing."""
        if not self._marks or completed_steps > self._marks[-1][0]:
            self._marks.append((completed_steps, now_s))

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the window, or None until two different steps were seen."""
        if len(self._marks) < 2:
            return None
        (first_step, first_s), (last_step, last_s) = self._marks[0], self._marks[-1]
        return (last_s - first_s) / (last_step - first_step)

    def seconds_left(self, fallback_seconds_per_step: float | None) -> float | None:
        """Time to the last step, by the fallback while there is no pace; None without either."""
        pace = self.seconds_per_step
        seconds_per_step = fallback_seconds_per_step if pace is None else pace
        if seconds_per_step is None or not self._marks:
            return None
        return max(0, self._total_steps - self._marks[-1][0]) * seconds_per_step
