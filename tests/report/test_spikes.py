"""Spikes of a loss: planted ones are found, noise and falling losses are not."""

import numpy as np
import pytest

from chomp.report.spikes import MAX_SPIKES, spikes


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


@pytest.mark.parametrize("rows", [100, 200, 2000])
def test_runs_of_nothing_but_noise_hardly_ever_have_one(rows):
    draw = np.random.default_rng(7)
    runs = 3.0 + draw.normal(scale=0.15, size=(300, rows))
    assert sum(bool(spikes(np.arange(rows), values)) for values in runs) <= 6
