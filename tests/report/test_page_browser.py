"""The run page in a real browser: curves, hover, legend, table, keys, and no network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chomp.report.page import render
from tests.chromium_pipe import MISSING, ChromiumPage, browser
from tests.report import page_payload as made

pytestmark = pytest.mark.skipif(browser() is None, reason=MISSING)

STEPS = np.arange(0, made.LAST_STEP + 1, 2)
LOSS = "chompReport.charts.get('train/loss')"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
# After what the page does on its own time: observers, and drawing in a microtask.
SETTLED = (
    "new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(d))))"
)


def opened(chromium: ChromiumPage, folder: Path, payload: dict[str, Any]) -> str:
    """Write the page of a payload, open it, and give its address."""
    path = folder / "index.html"
    path.write_text(render(payload), encoding="utf-8")
    chromium.open(path.as_uri())
    return path.as_uri()


def settle(page: ChromiumPage) -> None:
    page.send("Runtime.evaluate", expression=SETTLED, awaitPromise=True)


def move(
    page: ChromiumPage, chart: str, place: float, value: float, *, buttons: int = 0
) -> dict[str, float]:
    """Put the pointer on a place and a value of a chart; gives where that is in the window."""
    at = f"(() => {{ const plot = {chart}.plot; const box = plot.over.getBoundingClientRect();"
    at += f"return [box.left + plot.valToPos({place}, 'x'), box.top + plot.valToPos({value}, 'y')];"
    x, y = page.value(at + " })()")
    for offset in (2, 0):
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x + offset, y=y, buttons=buttons)
    return {"x": x, "y": y}


def click(page: ChromiumPage, at: dict[str, float]) -> None:
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)


def drag(page: ChromiumPage, chart: str, start: float, end: float) -> None:
    """Drag from one place of a chart to another."""
    left = {"button": "left", "clickCount": 1}
    at = move(page, chart, start, 4)
    page.send("Input.dispatchMouseEvent", type="mousePressed", **left, **at)
    at = move(page, chart, end, 4, buttons=1)
    page.send("Input.dispatchMouseEvent", type="mouseReleased", **left, **at)


def points(page: ChromiumPage, name: str, run: str, kind: str) -> list[list[float]]:
    return page.value(f"chompReport.charts.get('{name}').points('{run}', '{kind}')")


def names_in_table(page: ChromiumPage) -> list[str]:
    rows = "[...document.querySelectorAll('#run-table tbody .run-name')]"
    return page.value(f"{rows}.map((name) => name.textContent)")


@pytest.fixture
def page(chromium: ChromiumPage) -> Iterator[ChromiumPage]:
    """A browser with a wide window; at the end nothing went wrong and only the page was read."""
    chromium.look()
    chromium.errors.clear()
    chromium.requests.clear()
    yield chromium
    assert chromium.errors == []
    assert all(request.startswith("file://") for request in chromium.requests)
    assert len(set(chromium.requests)) <= 1


@pytest.fixture
def two_runs(page: ChromiumPage, tmp_path: Path) -> ChromiumPage:
    opened(page, tmp_path, made.payload(made.run(0), made.run(1)))
    settle(page)
    return page


def test_every_point_of_a_curve_is_drawn_and_so_is_the_spike_with_its_mark(two_runs):
    drawn = points(two_runs, "train/loss", "run-0", "raw")
    assert len(drawn) == len(STEPS)
    np.testing.assert_allclose(drawn, np.stack([STEPS, made.loss_curve(0, STEPS)], 1), rtol=1e-6)
    assert [made.SPIKE_STEP, made.SPIKE_LOSS] in drawn
    assert two_runs.value(f"{LOSS}.spikesDrawn") == 1
    assert two_runs.value(f"{LOSS}.plot.scales.y.max") > made.SPIKE_LOSS
    command = two_runs.value("document.querySelector('.spikes code').textContent")
    assert command == f"chomp data where outputs/run-a --step {made.SPIKE_STEP}"


def test_the_page_is_ready_before_charts_out_of_sight_are_drawn(two_runs):
    assert float(two_runs.value("document.documentElement.dataset.ready")) > 0
    undrawn = "[...chompReport.charts.values()].filter((chart) => !chart.plot).length"
    assert two_runs.value(undrawn) > 5
    two_runs.value("document.getElementById('speed').scrollIntoView()")
    settle(two_runs)
    settle(two_runs)
    assert len(points(two_runs, "throughput/mfu", "run-1", "raw")) == len(STEPS)


def test_hover_tells_step_value_and_unit_of_each_run_in_sight(two_runs):
    two_runs.value(f"{LOSS}.box.scrollIntoView({{block: 'center'}})")
    move(two_runs, LOSS, 500, 4)
    tip = two_runs.value(f"{LOSS}.tip.innerText")
    assert "step 500" in tip
    for index, name in enumerate(["run-a", "run-b"]):
        value = made.loss_curve(index, STEPS)[250]
        assert name in tip
        assert f"{value:.6g} nats/token" in tip
    two_runs.value("document.querySelector('.legend-run[data-run=run-1]').click()")
    settle(two_runs)
    move(two_runs, LOSS, 502, 4)
    assert "run-b" not in two_runs.value(f"{LOSS}.tip.innerText")


def test_hover_near_a_resume_tells_of_it(two_runs):
    two_runs.value(f"{LOSS}.box.scrollIntoView({{block: 'center'}})")
    move(two_runs, LOSS, 400, 4)
    assert "attempt 2 began at step 400. the machine" in two_runs.value(f"{LOSS}.tip.innerText")


def test_a_clicked_point_shows_the_command_for_its_step_and_keys_do_the_same(two_runs):
    two_runs.value(f"{LOSS}.box.scrollIntoView({{block: 'center'}})")
    pinned = "document.querySelector('.pinned code')?.textContent"
    click(two_runs, move(two_runs, LOSS, made.SPIKE_STEP, made.SPIKE_LOSS))
    assert two_runs.value(pinned) == "chomp data where outputs/run-a --step 612"
    key = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: '%s'}))"
    two_runs.value(f"{LOSS}.plot.setCursor({{left: -10, top: -10}}), {LOSS}.box.focus()")
    for name in ["ArrowRight", "ArrowRight", "ArrowLeft", "Enter"]:
        two_runs.value(key % name)
    step = two_runs.value("chompReport.view.pinned.step")
    assert step == 2  # from the beginning: to 2, to 4, and one back
    assert two_runs.value(pinned).endswith("--step 2")


def test_the_table_sorts_by_a_column_with_pointer_and_keys(two_runs):
    def sorting(key: str) -> str:
        return two_runs.value(f"document.querySelector('th[data-key=\"{key}\"]').ariaSort")

    best = "[...document.querySelectorAll('#run-table .best')].map((cell) => cell.textContent)"
    assert "3.0000" in two_runs.value(best)
    assert names_in_table(two_runs) == ["run-a", "run-b"]
    button = "document.querySelector('th[data-key=\"eval/loss\"] button')"
    two_runs.value(f"{button}.click()")
    assert names_in_table(two_runs) == ["run-a", "run-b"]
    assert sorting("eval/loss") == "ascending"
    assert two_runs.value(f"document.activeElement === {button}")
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    two_runs.send("Input.dispatchKeyEvent", type="keyDown", **enter)
    two_runs.send("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    assert names_in_table(two_runs) == ["run-b", "run-a"]
    assert sorting("eval/loss") == "descending"
    assert sorting("train/loss") == "none"
    # Higher is better here, so the highest comes first.
    two_runs.value("document.querySelector('th[data-key$=\"tokens_per_second\"] button').click()")
    assert names_in_table(two_runs) == ["run-a", "run-b"]


def test_a_run_without_a_number_is_sorted_last_either_way(page, tmp_path):
    lacking = made.run(0)
    lacking["numbers"]["eval/loss"] = None
    opened(page, tmp_path, made.payload(lacking, made.run(1), made.run(2)))
    for expected in [["run-b", "run-c", "run-a"], ["run-c", "run-b", "run-a"]]:
        page.value("document.querySelector('th[data-key=\"eval/loss\"] button').click()")
        assert names_in_table(page) == expected


def test_the_legend_takes_a_run_out_of_every_chart_and_brings_it_back(two_runs):
    drawn = "[...chompReport.charts.values()].filter((c) => c.plot && !c.spec.ofOneRun).map("
    drawn += "(c) => [...new Set(c.lines.map((line) => line.run.id))].join(' '))"
    button = "document.querySelector('.legend-run[data-run=run-0]')"
    scroll = "document.getElementById('optimizer').scrollIntoView()"
    two_runs.value(scroll)
    settle(two_runs)
    settle(two_runs)
    assert len(two_runs.value(drawn)) > 3
    two_runs.value(f"{button}.click()")
    # Charts out of sight follow when they are seen.
    two_runs.value("scrollTo(0, 0)")
    settle(two_runs)
    two_runs.value(scroll)
    settle(two_runs)
    assert two_runs.value(f"{button}.ariaPressed") == "false"
    assert set(two_runs.value(drawn)) == {"run-1"}
    two_runs.value(f"{button}.click()")
    settle(two_runs)
    assert "run-0 run-1" in two_runs.value(drawn)


def test_a_spike_in_the_list_is_zoomed_to_and_pinned(two_runs):
    button = "[...document.querySelectorAll('.spikes button')].find((b) => b.textContent == 'show')"
    two_runs.value(f"{button}.click()")
    settle(two_runs)
    left, right = two_runs.value(f"[{LOSS}.plot.scales.x.min, {LOSS}.plot.scales.x.max]")
    assert made.SPIKE_STEP - 25 < left < made.SPIKE_STEP < right < made.SPIKE_STEP + 25
    assert two_runs.value("chompReport.view.pinned.step") == made.SPIKE_STEP
    assert two_runs.value("document.getElementById('reset').hidden") is False
    two_runs.value("document.getElementById('reset').click()")
    settle(two_runs)
    assert two_runs.value(f"{LOSS}.plot.scales.x.max") == made.LAST_STEP


def test_a_run_under_the_pointer_in_the_legend_stands_out(two_runs):
    alphas = f"{LOSS}.lines.map((line, i) => [line.run.id, {LOSS}.plot.series[i + 1].alpha])"
    two_runs.value(
        "document.querySelector('.legend-run[data-run=run-1]').dispatchEvent("
        "new MouseEvent('mouseenter'))"
    )
    found = two_runs.value(alphas)
    assert max(alpha for run, alpha in found if run == "run-0") < 0.2
    assert max(alpha for run, alpha in found if run == "run-1") == 1


def test_the_x_axis_moves_every_point_to_where_its_step_lies(two_runs):
    expected = {
        "tokens": STEPS * made.TOKENS_PER_STEP,
        "flops": STEPS * made.FLOPS_PER_STEP,
        "seconds": made.SECONDS_PER_STEP * np.where(STEPS < 500, STEPS, 2 * STEPS - 500),
    }
    for axis, places in expected.items():
        two_runs.value(f"document.querySelector('#axes input[value={axis}]').click()")
        settle(two_runs)
        drawn = [place for place, _ in points(two_runs, "train/loss", "run-0", "raw")]
        np.testing.assert_allclose(drawn, places, rtol=1e-6, atol=1e-6, err_msg=axis)


def test_the_key_x_goes_through_the_axes_and_a_zoom_keeps_its_steps(two_runs):
    two_runs.value("document.activeElement.blur()")
    seen = []
    for _ in range(4):
        two_runs.press("x")
        seen.append(two_runs.value("chompReport.view.axis"))
    assert seen == ["tokens", "flops", "seconds", "step"]
    two_runs.value(f"{LOSS}.box.scrollIntoView({{block: 'center'}})")
    drag(two_runs, LOSS, 200, 600)
    settle(two_runs)
    left, right = two_runs.value(f"[{LOSS}.plot.scales.x.min, {LOSS}.plot.scales.x.max]")
    assert (left, right) == (pytest.approx(200, abs=5), pytest.approx(600, abs=5))
    assert two_runs.value("chompReport.view.pinned") is None  # a drag is no click
    two_runs.press("x")
    settle(two_runs)
    zoomed = two_runs.value(f"[{LOSS}.plot.scales.x.min, {LOSS}.plot.scales.x.max]")
    np.testing.assert_allclose(zoomed, np.array([left, right]) * made.TOKENS_PER_STEP, rtol=1e-6)
    escape = {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27}
    two_runs.send("Input.dispatchKeyEvent", type="keyDown", **escape)
    settle(two_runs)
    whole = made.LAST_STEP * made.TOKENS_PER_STEP
    assert two_runs.value(f"{LOSS}.plot.scales.x.max") == pytest.approx(whole)


def test_the_smoothed_curve_is_the_mean_weighted_by_distance_in_steps(two_runs):
    random = np.random.default_rng(0)
    steps = np.sort(random.choice(1000, 40, replace=False))
    values = random.normal(size=40)
    weights = np.exp(-np.abs(steps[:, None] - steps[None, :]) / 25.0)
    expected = (weights @ values) / weights.sum(1)
    found = two_runs.value(f"chompReport.smoothed({steps.tolist()}, {values.tolist()}, 25)")
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_slider_smooths_more_and_at_zero_draws_the_raw_curve_alone(two_runs):
    def roughness(position: int) -> float:
        slider = "document.getElementById('smoothing')"
        two_runs.value(f"{slider}.value = {position}, {slider}.dispatchEvent(new Event('input'))")
        settle(two_runs)
        curve = np.array(points(two_runs, "train/loss", "run-1", "smooth"))
        return float(np.abs(np.diff(curve[20:, 1], n=2)).sum()) if len(curve) else 0.0

    assert roughness(90) < roughness(60) < roughness(10)
    assert roughness(0) == 0.0
    assert len(points(two_runs, "train/loss", "run-1", "only")) == len(STEPS)
    assert two_runs.value("document.getElementById('smoothing-words').textContent") == "off"


def test_l_makes_the_loss_logarithmic_and_the_gradient_norm_is_so_from_the_start(two_runs):
    is_log = "(name) => chompReport.charts.get(name).plot.scales.y.distr === 3"
    two_runs.value("document.getElementById('optimizer').scrollIntoView()")
    settle(two_runs)
    settle(two_runs)
    assert two_runs.value(f"({is_log})('grad/norm/total')") is True
    assert two_runs.value(f"({is_log})('train/loss')") is False
    two_runs.press("l")
    two_runs.value("scrollTo(0, 0)")
    settle(two_runs)
    settle(two_runs)
    assert two_runs.value(f"({is_log})('train/loss')") is True


def test_the_tree_of_tags_folds_and_switches_to_bits_per_byte(two_runs):
    tags = "[...document.querySelectorAll('.tags tbody th')].map((cell) => cell.title)"
    assert two_runs.value(tags) == ["all", "code", "code/python", "web"]
    two_runs.value("document.querySelector('.tags .fold-tag[aria-expanded]').click()")
    assert two_runs.value(tags) == ["all", "code", "web"]
    two_runs.value("document.querySelector('#evaluation input[value=bpb]').click()")
    two_runs.value("document.getElementById('evaluation').scrollIntoView()")
    settle(two_runs)
    settle(two_runs)
    (_, first), *_ = points(two_runs, "eval web", "run-0", "only")
    assert first == pytest.approx((3 + 0.2 * 3 + 5) / 3, rel=1e-5)


def test_samples_follow_their_slider_and_tell_the_prompt_apart(two_runs):
    told = "[...document.querySelectorAll('.samples pre')].map((text) => text.textContent)"
    assert two_runs.value(told)[0].endswith("by the river, where")
    slider = "document.getElementById('sample-step')"
    two_runs.value(f"{slider}.value = 1, {slider}.dispatchEvent(new Event('input'))")
    assert two_runs.value(told) == ["Once upon a time the the of the"] * 2
    assert two_runs.value("document.querySelector('.prompt').textContent") == "Once upon a time"


def test_settings_are_filtered_and_the_differing_ones_come_first(two_runs):
    keys = "[...document.querySelectorAll('#configuration .settings')].map((table) => "
    keys += "[...table.querySelectorAll('tbody th')].map((cell) => cell.textContent))"
    difference, whole = two_runs.value(keys)
    assert difference == ["optim.lr"]
    assert whole == ["model.model_dim", "optim.lr", "train.seed"]
    box = "document.getElementById('config-filter')"
    two_runs.value(f"{box}.value = 'DIM', {box}.dispatchEvent(new Event('input'))")
    assert two_runs.value(keys)[1] == ["model.model_dim"]


def test_other_metrics_stand_under_their_prefix_and_are_searched_by_name(two_runs):
    two_runs.value("document.getElementById('metrics').open = true")
    shown = "[...document.querySelectorAll('#metrics .chart')].filter((c) => !c.hidden).map("
    shown += "(c) => c.dataset.name)"
    headings = "[...document.querySelectorAll('#metrics h3')].filter((h) => h.offsetParent).map("
    headings += "(h) => h.textContent)"
    assert two_runs.value(shown) == ["params/norm/total", "train/router/entropy"]
    assert two_runs.value(headings) == ["params", "train"]
    box = "document.getElementById('metric-search')"
    two_runs.value(f"{box}.value = 'router', {box}.dispatchEvent(new Event('input'))")
    assert two_runs.value(shown) == ["train/router/entropy"]
    assert two_runs.value(headings) == ["train"]


def test_the_template_is_shown_in_the_colours_of_the_diff_page(two_runs):
    inner = "document.querySelector('.template-diff').shadowRoot"
    assert "doubled" in two_runs.value(f"{inner}.querySelector('.add').textContent")
    colour = f"getComputedStyle({inner}.querySelector('.add')).backgroundColor"
    red, green, _ = channels(two_runs.value(colour))
    assert green > red


def channels(colour: str) -> list[int]:
    return [int(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]


def test_the_system_decides_on_dark_until_the_reader_does(two_runs):
    two_runs.value("localStorage.clear(), delete document.documentElement.dataset.theme")
    light = two_runs.value(BACKGROUND)
    two_runs.look(scheme="dark")
    assert sum(channels(two_runs.value(BACKGROUND))) < 150 < 600 < sum(channels(light))
    two_runs.press("t")
    assert two_runs.value(BACKGROUND) == light
    two_runs.value("localStorage.clear()")


def test_keys_go_from_section_to_section_and_help_opens(two_runs):
    top = "[...document.querySelectorAll('.section')].map((s) => s.getBoundingClientRect().top)"
    sections = []
    for key in "jjk":
        two_runs.press(key)
        settle(two_runs)
        bar = two_runs.value("document.getElementById('controls').getBoundingClientRect().bottom")
        distances = [abs(edge - bar) for edge in two_runs.value(top)]
        sections.append(int(np.argmin(distances)))
        assert min(distances) < 40
    assert sections == [0, 1, 0]
    two_runs.press("?")
    assert two_runs.value("document.getElementById('keys').open") is True
    two_runs.press("?")
    assert two_runs.value("document.getElementById('keys').open") is False


def test_a_narrow_phone_scrolls_nothing_sideways_but_tables(page, tmp_path):
    page.look(width=360, height=740)
    name = "a_name_without_any_place_to_break_it_" * 3
    runs = [made.run(0, name=name, profile=made.profile()), *map(made.run, range(1, 8))]
    opened(page, tmp_path, made.payload(*runs))
    page.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    settle(page)
    assert page.value("document.documentElement.scrollWidth") <= 360
    assert page.value("document.body.scrollWidth") <= 360


def test_paper_is_light_has_every_section_open_and_every_chart_drawn(two_runs):
    undrawn = "[...chompReport.charts.values()].filter((chart) => !chart.plot).length"
    two_runs.look(scheme="dark")
    assert two_runs.value(undrawn) > 0
    two_runs.send("Emulation.setEmulatedMedia", media="print")
    settle(two_runs)
    assert two_runs.value("document.querySelectorAll('details:not([open])').length") == 0
    assert two_runs.value(undrawn) == 0
    assert sum(channels(two_runs.value(BACKGROUND))) > 600
    assert two_runs.value("document.querySelector('.controls').checkVisibility()") is False
    widths = "[...chompReport.charts.values()].map((chart) => chart.plot.width)"
    assert max(two_runs.value(widths)) <= 700
    two_runs.send("Emulation.setEmulatedMedia", media="screen")
    settle(two_runs)
    assert two_runs.value("document.getElementById('metrics').open") is False
    assert two_runs.value("document.querySelector('.controls').checkVisibility()") is True


def test_paper_has_every_run_and_every_number_of_them_since_it_does_not_scroll(page, tmp_path):
    runs = [made.run(index, name=f"a-name-of-some-length ({index})") for index in range(6)]
    opened(page, tmp_path, made.payload(*runs))
    page.send("Emulation.setEmulatedMedia", media="print")
    settle(page)
    lists = "[...document.querySelectorAll('.runs, #legend')].map((each) => each.scrollWidth)"
    assert max(page.value(lists)) <= 700
    page.send("Emulation.setEmulatedMedia", media="screen")


def test_a_phone_has_a_number_beside_a_long_name(page, tmp_path):
    page.look(width=390, height=800)
    runs = [
        made.run(0, name="a-name-that-is-longer-than-a-phone-is-wide-and-has-no-blank"),
        made.run(1),
    ]
    opened(page, tmp_path, made.payload(*runs))
    settle(page)
    place = "document.querySelector('.runs tbody td').getBoundingClientRect()"
    assert page.value(f"{place}.right") <= 390
    assert page.value(f"{place}.height") < 200  # and the name does not stand on end


def test_printing_to_a_file_draws_every_chart_first(two_runs):
    assert two_runs.send("Page.printToPDF")["data"].startswith("JVBERi0")  # %PDF-
    undrawn = "[...chompReport.charts.values()].filter((chart) => !chart.plot).length"
    assert two_runs.value(undrawn) == 0


def test_text_that_tries_to_break_out_is_shown_and_does_nothing(page, tmp_path):
    evil = made.EVIL
    run = made.run(
        0,
        name=evil,
        problems=[evil],
        outcome=evil,
        state="failed",
        facts=[[evil, evil]],
        samples=[{"step": 0, "prompt": evil, "text": evil}],
        config=[[evil, evil]],
        environment=[[evil, evil]],
        resumes=[{"step": 10, "attempt": 2, "note": evil}],
        where_command=evil,
        template=None,
    )
    run["series"][evil] = run["series"]["train/router/entropy"]
    run["eval_tags"][0]["tag"] = evil
    run["mixture"]["components"] = [evil]
    run["mixture"]["stages"] = [{"first_step": 0, "weights": {evil: 1.0}, "epochs": {evil: 2.5}}]
    run["waterfall"][0]["label"] = evil
    second = made.run(1)
    difference = {"names": [evil, "run-b"], "rows": [{"key": evil, "values": [evil, None]}]}
    opened(page, tmp_path, made.payload(run, second, notes=[evil], config_difference=difference))
    page.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.value(f"{LOSS}.box.scrollIntoView({{block: 'center'}})")
    settle(page)
    move(page, LOSS, 10, 6)
    assert evil in page.value(f"{LOSS}.tip.textContent")
    assert page.value("document.images.length") == 0
    assert page.value("document.querySelectorAll('script').length") == 3
    assert page.value("document.title").startswith("2 runs: </script>")
    assert page.value("document.querySelector('.samples .prompt').textContent") == evil


def test_runs_without_rows_say_so_and_sections_without_data_are_named_at_the_end(page, tmp_path):
    empty = made.run(
        0,
        state="empty",
        outcome=None,
        problems=["no metrics.jsonl yet: the run has not logged a step"],
        axes={"step": "", "tokens": None, "flops": None, "seconds": None},
        series={},
        eval_tags=[],
        mixture=None,
        waterfall=[],
        spikes=[],
        resumes=[],
        samples=[],
        template=None,
        environment=[],
    )
    empty["numbers"] = {}
    opened(page, tmp_path, made.payload(empty))
    settle(page)
    boxes = page.value("[...document.querySelectorAll('.box')].map((box) => box.textContent)")
    assert boxes == ["no metrics.jsonl yet: the run has not logged a step"]
    assert page.value(f"{LOSS}.frame.textContent") == "no data: run-a has no rows yet"
    last = page.value("document.getElementById('left-out').textContent")
    assert "Evaluation (no evaluation was logged)" in last
    assert "Samples (no text was sampled)" in last
    assert page.value("[...document.querySelectorAll('.section')].map((s) => s.id)") == [
        "loss",
        "configuration",
    ]


def test_a_gap_in_the_numbers_is_a_gap_and_one_point_is_a_point(page, tmp_path):
    run = made.run(0, spikes=[])
    values = made.loss_curve(0, STEPS)
    values[100:103] = np.nan
    run["series"]["train/loss"] = made.series("loss", STEPS, values)
    run["series"]["eval/web/loss"] = made.series("eval", [500], [3.5])
    opened(page, tmp_path, made.payload(run))
    settle(page)
    assert len(points(page, "train/loss", "run-0", "raw")) == len(STEPS) - 3
    assert page.value(f"{LOSS}.plot.data[1].filter((value) => value === null).length") == 3
    page.value("document.querySelector('[data-name=\"eval web\"]').scrollIntoView()")
    settle(page)
    settle(page)
    assert points(page, "eval web", "run-0", "only") == [[500, 3.5]]


def test_a_profile_is_summarised_in_words_bars_and_tables(page, tmp_path):
    opened(page, tmp_path, made.payload(made.run(0, profile=made.profile())))
    text = page.value("document.getElementById('profile').innerText")
    for part in [
        "3 steps on NVIDIA H200",
        "worked 95 ms (95 %)",
        "dot.1",
        "fusion.3",
        "waiting for data",
    ]:
        assert part in text
