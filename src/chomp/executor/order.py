"""The order in which steps can be done: each after those it needs.

Walks with a list of its own instead of by recursion, so that a chain may be thousands of steps
long.
"""

from collections.abc import Callable, Iterable, Iterator

from chomp.errors import LaunchError
from chomp.executor.step import ExecutorStep


def in_order(
    roots: Iterable[ExecutorStep], needs: Callable[[ExecutorStep], Iterable[ExecutorStep]]
) -> Iterator[ExecutorStep]:
    """The roots and all they need, each object once and after what it needs itself.

    `needs` is asked once for each step, before it is given out. Raises `LaunchError` on a cycle.
    """
    done: set[ExecutorStep] = set()
    for root in roots:
        # The steps from a root to where the walk stands, each with the needs not yet looked at.
        way = {} if root in done else {root: iter(needs(root))}
        while way:
            here, rest = next(reversed(way.items()))
            below = next((step for step in rest if step not in done), None)
            if below is None:
                del way[here]
                done.add(here)
                yield here
            elif below in way:
                raise _cycle([*way, below])
            else:
                way[below] = iter(needs(below))


def _cycle(way: list[ExecutorStep]) -> LaunchError:
    names = " -> ".join(step.name for step in way[way.index(way[-1]) :])
    return LaunchError(
        f"steps that wait for each other: {names}",
        allowed="dependencies without a cycle",
        fix="take one of those dependencies out",
    )
