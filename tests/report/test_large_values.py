"""Numbers that no chart has room for: the page is strict JSON, opens, and says what it left out."""

import base64
import json

import numpy as np
import pytest

from chomp.report.curves import LARGEST, pack_values
from chomp.report.page import page_payload, render
from chomp.report.record import read_record
from chomp.report.run_payload import run_payload
from tests.chromium_pipe import MISSING, ChromiumPage, browser
from tests.report.recorded_run import RecordedRun
from tests.report.test_page_browser import LOSS, points, settle

CHARTS = "[...chompReport.charts.values()]"


def page_of(record: str) -> str:
    return render(page_payload([run_payload(read_record(record))]))


def all_scaled(folder, factor):
    """A run of which every number but steps and times is multiplied."""
    path = folder / "metrics.jsonl"
    RecordedRun(folder, log_every=1).attempt(0, 60).evaluation(59, loss=1.0).written()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = ("step", "global_step", "attempt", "time")
    rows = [
        {k: v * factor if type(v) in (int, float) and k not in kept else v for k, v in row.items()}
        for row in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_arrays_of_a_page_are_finite_or_gaps():
    values = np.array([1.0, np.nan, 1e39, -1e300, np.inf, -np.inf])
    found = np.frombuffer(base64.b64decode(pack_values(values)), "<f4")
    assert np.array_equal(
        found, np.array([1, np.nan, LARGEST, -LARGEST, LARGEST, -LARGEST], "<f4"), equal_nan=True
    )


@pytest.mark.parametrize("factor", [1e39, 1e300, -1e300, 1e303])
def test_a_run_of_nothing_but_huge_numbers_is_a_strict_page(tmp_path, factor):
    payload = run_payload(read_record(all_scaled(tmp_path, factor)))
    json.dumps(payload, allow_nan=False)
    (said,) = [text for text in payload["problems"] if "drawn as" in text]
    assert f"train/loss at 60 logged steps ({5 * factor:g} at step 0)" in said
    assert "more metrics" in said


@pytest.mark.parametrize("height", [1e39, 1e300])
def test_a_spike_beyond_all_charts_is_marked_where_it_is_drawn(tmp_path, height):
    run = RecordedRun(tmp_path, log_every=1)
    run.attempt(0, 60, loss=lambda step: height if step == 40 else 5.0)
    payload = run_payload(read_record(run.written()))
    (spike,) = payload["spikes"]
    assert (spike["step"], spike["value"]) == (40, LARGEST)
    assert payload["problems"] == [
        f"larger than the 3.4e+38 that it is drawn as: "
        f"train/loss at 1 logged step ({height:g} at step 40)"
    ]


def test_a_time_of_no_calendar_and_a_number_of_too_many_digits_are_none(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "attempt": 1, "time": 1e9 + step, "train/loss": 1} for step in range(4)]
    lines[1]["time"], lines[2]["train/loss"] = 1e300, 10**400
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = read_record(str(tmp_path))
    assert record.attempts[0].last_time == 1e9 + 3
    assert np.isnan(record.series("train/loss").values).tolist() == [False, False, True, False]
    assert page_of(str(tmp_path))


needs_browser = pytest.mark.skipif(browser() is None, reason=MISSING)


def drawn_everywhere(page: ChromiumPage, folder, html: str) -> None:
    """Open a page, and draw every chart of it on every axis, straight and logarithmic.

    In the end it is as it was opened: by steps, straight.
    """
    page.look()
    page.errors.clear()
    (folder / "index.html").write_text(html)
    page.open((folder / "index.html").as_uri())
    page.value("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    axes = page.value("[...document.querySelectorAll('#axes input')].map((i) => i.value)")
    for axis in reversed(axes):
        page.value(f"document.querySelector('#axes input[value={axis}]').click()")
        for _ in range(2):
            settle(page)
            page.value(f"{CHARTS}.forEach((chart) => chart.draw())")
            page.value("document.getElementById('log').click()")
    assert page.value(f"{CHARTS}.filter((chart) => !chart.plot && chart.spec.lines().length)") == []
    assert page.errors == []


@needs_browser
@pytest.mark.parametrize("factor", [1e39, 1e300, -1e300])
def test_charts_of_huge_numbers_are_drawn(chromium, tmp_path, factor):
    drawn_everywhere(chromium, tmp_path, page_of(all_scaled(tmp_path, factor)))


@needs_browser
@pytest.mark.parametrize("height", [1e39, 1e300])
def test_one_huge_loss_among_constants_is_drawn_with_its_mark(chromium, tmp_path, height):
    run = RecordedRun(tmp_path, log_every=1)
    run.attempt(0, 60, loss=lambda step: height if step == 40 else 5.0)
    drawn_everywhere(chromium, tmp_path, page_of(run.written()))
    assert chromium.value(f"{LOSS}.spikesDrawn") == 1
    assert [40, pytest.approx(LARGEST)] in points(chromium, "train/loss", "run-0", "raw")


@needs_browser
def test_a_constant_whose_mean_is_off_by_rounding_is_a_level_line(chromium, tmp_path):
    run = RecordedRun(tmp_path, log_every=1).attempt(
        0, 60, loss=lambda step: None if step == 9 else 0.1
    )
    drawn_everywhere(chromium, tmp_path, page_of(run.written()))
    low, high = chromium.value(f"[{LOSS}.plot.scales.y.min, {LOSS}.plot.scales.y.max]")
    assert low == pytest.approx(0.09)
    assert high == pytest.approx(0.11)


@needs_browser
def test_the_smoothed_curve_of_a_run_without_noise_is_that_of_all_its_rows(chromium, tmp_path):
    losses = 5 - 0.001 * np.arange(2000)
    losses[1000] += 4
    run = RecordedRun(tmp_path, log_every=1).attempt(0, 2000, loss=lambda step: losses[step])
    drawn_everywhere(chromium, tmp_path, page_of(run.written()))
    assert len(points(chromium, "train/loss", "run-0", "raw")) == 2000
    width = chromium.value("chompReport.view.smoothing")
    steps = np.arange(2000)
    for step, value in points(chromium, "train/loss", "run-0", "smooth")[::100]:
        weights = np.exp(-np.abs(steps - step) / width)
        assert value == pytest.approx((losses * weights).sum() / weights.sum(), rel=1e-6)
