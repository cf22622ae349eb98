"""The forecast against a run that is walked through and counted."""

import io
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import MAX_EPOCHS, BatchSchedule, Forecast, Mixture, forecast, forecast_table
from chomp.storage.printable import PlainConsole

Stages = list[tuple[int, dict[str, float]]]

weights = st.dictionaries(
    st.sampled_from("abc"), st.integers(0, 30).map(lambda n: n / 10), min_size=1
).filter(lambda given: any(given.values()))
stage_lists = st.builds(
    lambda starts, given: list(zip([0, *sorted(starts)], given, strict=False)),
    st.sets(st.integers(1, 80), min_size=3, max_size=3),
    st.lists(weights, min_size=1, max_size=4),
)
schedules = st.builds(
    lambda starts, sizes: list(zip([0, *sorted(starts)], sizes, strict=False)),
    st.sets(st.integers(1, 15), min_size=2, max_size=2),
    st.lists(st.integers(1, 8), min_size=1, max_size=3),
)


def walked(stages: Stages, sizes: list[tuple[int, int]], grad_accum: int, total_steps: int):
    """Step, stage and component of every example of a run, one after the other."""
    credit: dict[str, Fraction] = {}
    run: list[tuple[int, int, str]] = []
    size, stage = 0, -1
    for step in range(total_steps):
        size = dict(sizes).get(step, size)
        for _ in range(size * grad_accum):
            if len(run) in dict(stages):
                stage += 1
                given = {name: Fraction(str(w)) for name, w in stages[stage][1].items() if w}
                shares = {name: weight / sum(given.values()) for name, weight in given.items()}
                due = {n: (Fraction(1, 2) - credit.get(n, 0)) / shares[n] for n in sorted(shares)}
            name = min(due, key=lambda n: (due[n], n))
            due[name] += 1 / shares[name]
            for other, share in shares.items():
                credit[other] = credit.get(other, Fraction(0)) + share - (other == name)
            run.append((step, stage, name))
    return run


@settings(deadline=None)
@given(
    stage_lists,
    schedules,
    st.integers(1, 3),
    st.lists(st.integers(1, 30), min_size=3, max_size=3),
    st.integers(0, 20),
)
def test_the_forecast_is_what_a_walk_through_the_run_counts(
    stages, sizes, grad_accum, row_counts, total_steps
):
    rows = dict(zip("abc", row_counts, strict=True))
    run = walked(stages, sizes, grad_accum, total_steps)
    found = forecast(
        Mixture(stages), BatchSchedule(sizes, grad_accum), rows, seq_len=7, total_steps=total_steps
    )
    assert (found.total_examples, found.total_tokens) == (len(run), 7 * len(run))
    assert [stage.number for stage in found.stages] == sorted({stage for _, stage, _ in run})
    for stage in found.stages:
        steps = [step for step, number, _ in run if number == stage.number]
        assert (stage.start_step, stage.stop_step) == (steps[0], steps[-1] + 1)
        wanted = stages[stage.number][1]
        for part in stage.components:
            mine = [number for _, number, name in run if name == part.name]
            assert part.examples == mine.count(stage.number)
            assert part.tokens == 7 * part.examples
            assert part.rows == rows[part.name]
            assert part.examples_so_far == sum(number <= stage.number for number in mine)
            assert part.weight == pytest.approx(
                wanted.get(part.name, 0.0) / sum(wanted.values()), rel=1e-12
            )
    read = {name: sum(n == name for _, _, n in run) for name in rows}
    much = [name for name in sorted(rows) if read[name] > MAX_EPOCHS * rows[name]]
    assert [warning.split("'")[1] for warning in found.warnings()] == much


def example_forecast() -> Forecast:
    stages = [(0, {"web": 0.9, "[math]": 0.1}), (1000, {"web": 0.5, "[math]": 0.5})]
    return forecast(
        Mixture(stages),
        BatchSchedule([(0, 10), (50, 20)]),
        {"web": 1000, "[math]": 100},
        seq_len=2048,
        total_steps=150,
    )


def test_only_components_above_four_epochs_are_warned_about():
    (warning,) = example_forecast().warnings()
    assert warning == (
        "component '[math]' is read 8.5 times in 150 steps (850 examples from 100 rows). After 4 "
        "epochs repeated text teaches little. Fix: lower the weight of '[math]', give it more "
        "documents, or train for less."
    )


def test_exactly_four_epochs_are_no_reason_to_warn():
    schedule, mixture = BatchSchedule(4), Mixture({"a": 1.0})
    assert forecast(mixture, schedule, {"a": 10}, seq_len=8, total_steps=10).warnings() == []
    assert len(forecast(mixture, schedule, {"a": 10}, seq_len=8, total_steps=11).warnings()) == 1


def test_a_forecast_far_ahead_is_exact():
    found = forecast(
        Mixture({"a": 0.7, "b": 0.3}),
        BatchSchedule(10),
        {"a": 10**9, "b": 10**9},
        seq_len=2048,
        total_steps=10**12,
    )
    assert [part.examples for part in found.stages[0].components] == [7 * 10**12, 3 * 10**12]
    assert found.total_tokens == 2048 * 10**13


def test_the_table_has_a_line_for_each_component_of_each_stage():
    out = io.StringIO()
    PlainConsole(file=out, width=120, color_system=None).print(forecast_table(example_forecast()))
    text = out.getvalue()
    assert "150 steps, 2,500 examples, 5,120,000 tokens" in text
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    assert [line for line in cells if line and line[2]] == [
        ["0", "0 to 74", "[math]", "0.1", "100", "204,800", "1.00", "1.00"],
        ["", "", "web", "0.9", "900", "1,843,200", "0.90", "0.90"],
        ["1", "75 to 149", "[math]", "0.5", "750", "1,536,000", "7.50", "8.50"],
        ["", "", "web", "0.5", "750", "1,536,000", "0.75", "1.65"],
    ]
