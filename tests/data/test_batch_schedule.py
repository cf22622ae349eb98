"""The batch-size schedule against a walk over the steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import BatchSchedule
from chomp.errors import ConfigError

Sizes = list[tuple[int, int]]

schedules = st.builds(
    lambda starts, sizes: list(zip([0, *sorted(starts)], sizes, strict=False)),
    st.sets(st.integers(1, 25), min_size=4, max_size=4),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)


def walked(sizes: Sizes, grad_accum: int, steps: int) -> list[int]:
    """For each example of the first steps, in order: its step."""
    steps_of_examples: list[int] = []
    size = 0
    for step in range(steps):
        size = dict(sizes).get(step, size)
        steps_of_examples += [step] * size * grad_accum
    return steps_of_examples


@settings(deadline=None)
@given(schedules, st.integers(1, 4))
def test_every_step_takes_the_examples_that_a_walk_gives_it(sizes: Sizes, grad_accum: int):
    schedule, expected = BatchSchedule(sizes, grad_accum), walked(sizes, grad_accum, 40)
    assert [schedule.step_of(example) for example in range(len(expected))] == expected
    for step in range(40):
        assert schedule.examples(step) == expected.count(step)
        assert schedule.batch_size(step) * grad_accum == expected.count(step)
        assert schedule.examples_before(step) == expected.index(step)
    assert schedule.distinct_sizes == tuple(sorted({size for _, size in sizes}))


@settings(deadline=None)
@given(schedules, st.integers(1, 64), st.integers(0, 10**12))
def test_far_into_a_run_steps_and_examples_still_agree(sizes: Sizes, grad_accum: int, step: int):
    schedule = BatchSchedule(sizes, grad_accum)
    first, after = schedule.examples_before(step), schedule.examples_before(step + 1)
    assert after - first == schedule.examples(step)
    assert schedule.step_of(first) == schedule.step_of(after - 1) == step
    assert schedule.step_of(after) == step + 1


def test_one_size_is_a_schedule_without_changes():
    schedule = BatchSchedule(32, grad_accum=3)
    assert schedule.examples_before(10**12) == 96 * 10**12
    assert schedule.step_of(96 * 10**12 - 1) == 10**12 - 1
    assert schedule.distinct_sizes == (32,)
    assert schedule.batch_size(7) == 32


@pytest.mark.parametrize(
    ("sizes", "allowed"),
    [
        (0, "sizes of at least 1 row"),
        (-4, "sizes of at least 1 row"),
        (10**30, "sizes of at least 1 row"),
        ([(0, 8), (5, 0)], "sizes of at least 1 row"),
        ([], "one size, or [start step, size] pairs"),
        ([(1, 8)], "one size, or [start step, size] pairs"),
        ([(0, 8), (5, 4), (5, 2)], "one size, or [start step, size] pairs"),
        ([(0, 8), (5, 4), (3, 2)], "one size, or [start step, size] pairs"),
        ([(0, 8), (2**31, 4)], "one size, or [start step, size] pairs"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(sizes, allowed: str):
    with pytest.raises(ConfigError) as caught:
        BatchSchedule(sizes)
    assert caught.value.given == f"train.batch_size={sizes}"
    assert caught.value.allowed.startswith(allowed)
