"""Spikes of a loss: planted ones are found, noise and falling losses are not."""

import numpy as np
import pytest

from chomp.report.curves import MAX_SPIKES, spikes


def falling_loss(rows, *, noise=0.05, seed=0):
    steps = np.arange(rows)
    draw = np.random.default_rng(seed)
    return steps * 10, 2.5 + 8 * np.exp(-steps / 40) + draw.normal(scale=noise, size=rows)


@pytest.mark.parametrize("rows", [20, 300, 20_000])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
def test_a_loss_that_only_falls_has_none(rows, noise):
    steps, values = falling_loss(rows, noise=noise)
    assert spikes(steps, values) == []


@pytest.mark.parametrize("place", [250, 1000, 1999])
def test_a_single_row_far_out_is_found_with_what_is_usual(place):
    steps, values = falling_loss(2000)
    values[place] += 1.5
    (spike,) = spikes(steps, values)
    assert spike.step == steps[place]
    assert spike.value == values[place]
    assert spike.usual == pytest.approx(values[place] - 1.5, abs=1.6)


def test_a_jump_and_its_way_back_are_one_spike():
    steps, values = falling_loss(3000)
    values[1500:1520] += np.linspace(3, 0, 20)
    (spike,) = spikes(steps, values)
    assert spike.step == pytest.approx(steps[1500], abs=20)


def test_of_many_the_highest_are_told_by_step():
    steps, values = falling_loss(20_000)
    places = np.arange(200, 20_000, 200)
    values[places] += np.linspace(1, 9, places.size)
    found = spikes(steps, values)
    assert len(found) == MAX_SPIKES
    assert [spike.step for spike in found] == steps[places[-MAX_SPIKES:]].tolist()


def test_gaps_are_no_spikes_and_hide_none():
    steps, values = falling_loss(2000)
    values[700:720] = np.nan
    values[900] += 2.0
    assert [spike.step for spike in spikes(steps, values)] == [9000]


NOISES = {
    "normal": lambda draw, size: draw.normal(size=size),
    "laplace": lambda draw, size: draw.laplace(size=size) / 2**0.5,
    "gumbel": lambda draw, size: draw.gumbel(size=size) / 1.2825,
    "t5": lambda draw, size: draw.standard_t(5, size=size) / (5 / 3) ** 0.5,
    "t3": lambda draw, size: draw.standard_t(3, size=size) / 3**0.5,
}


# The seed decides every number; the bounds are the table's at 200 runs, with room.
@pytest.mark.parametrize(
    ("noise", "most_with_one", "least_found"),
    [("normal", 2, 198), ("laplace", 6, 175), ("gumbel", 12, 190), ("t5", 24, 160), ("t3", 65, 70)],
)
def test_what_a_run_does_all_the_time_is_no_spike(noise, most_with_one, least_found):
    draw = np.random.default_rng(11)
    runs = 3.0 + 0.1 * NOISES[noise](draw, (200, 2000))
    assert sum(bool(spikes(np.arange(2000), values)) for values in runs) <= most_with_one
    runs[:, 1234] = 3.0 + 12 * 0.1
    told = [[spike.step for spike in spikes(np.arange(2000), values)] for values in runs]
    assert sum(1234 in each for each in told) >= least_found


def test_two_rows_on_end_are_a_spike_where_one_alone_is_the_runs_habit():
    draw = np.random.default_rng(3)
    values = 3.0 + 0.1 * NOISES["t5"](draw, 2000)
    values[1500] = 3.7
    assert spikes(np.arange(2000), values) == []
    values[1501] = 3.75
    assert [spike.step for spike in spikes(np.arange(2000), values)] == [1501]


def test_one_batch_that_was_easy_hides_no_spike():
    steps, values = falling_loss(2000)
    values[[400, 1500]] += -2.4, 0.5
    assert [spike.step for spike in spikes(steps, values)] == [15000]


@pytest.mark.parametrize("rows", [100, 200, 2000])
def test_runs_of_nothing_but_noise_hardly_ever_have_one(rows):
    draw = np.random.default_rng(7)
    runs = 3.0 + draw.normal(scale=0.15, size=(300, rows))
    assert sum(bool(spikes(np.arange(rows), values)) for values in runs) <= 6
