// A chart: a box in the page whose plot is made when it comes near the window, and made again only
// if what it shows has changed by the time it is seen.

const charts = new Map(); // by name, those in the page

const TIME_STEPS = [
  1e-3, 1e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400,
  21600, 43200, 86400, 172800, 432000, 864000, 1728000, 4320000,
];

// Whole numbers: there is no half step.
const COUNT_STEPS = Array.from({ length: 16 }, (_, power) => 10 ** power)
  .flatMap((unit) => [unit, 2 * unit, 5 * unit]);

const nearWindow = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const chart = target.chart;
    chart.isNear = isIntersecting;
    if (isIntersecting) chart.draw();
  }
}, { rootMargin: "250px" });

const widthChanges = new ResizeObserver((entries) => {
  for (const { target } of entries) target.chart.fit();
});

/** Ticks of a logarithmic axis: powers of ten, or round numbers where it spans less than one. */
const logTicks = (min, max, most) => {
  if (max / min < 12) return linearTicks(min, max, most);
  const low = Math.ceil(Math.log10(min) - 1e-9);
  const high = Math.floor(Math.log10(max) + 1e-9);
  const every = Math.max(1, Math.ceil((high - low + 1) / most));
  const factors = (high - low + 1) * 3 <= most + 1 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = low - 1; power <= high; power += 1) {
    if ((power - low) % every) continue;
    for (const factor of factors) {
      const tick = Number(`${factor}e${power}`);
      if (tick >= min && tick <= max) ticks.push(tick);
    }
  }
  return ticks;
};

const linearTicks = (min, max, most) => {
  const raw = (max - min) / most;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((size) => size >= raw);
  const [first, last] = [Math.ceil(min / step), Math.floor(max / step)];
  // Beyond that a count does not rise by adding one.
  if (!Number.isSafeInteger(first) || !Number.isSafeInteger(last)) return [];
  const ticks = [];
  for (let at = first; at <= last; at += 1) ticks.push(Number((at * step).toPrecision(12)));
  return ticks;
};

// Less than what a page's 32-bit numbers can tell apart: the rounding of a mean, and no height.
const FLAT = 1e-9;

/** The y range: what is in sight with a little air; always some height. */
const valueRange = (isLog, include) => (plot, low, high) => {
  if (low === null || !Number.isFinite(low)) return isLog ? [0.1, 10] : [0, 1];
  for (const value of include()) {
    if (isLog && value <= 0) continue; // for which a logarithm has no place
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (isLog) {
    const air = Math.max((high / low) ** 0.05, 1.02);
    return [low / air, high * air];
  }
  const isFlat = high - low <= FLAT * Math.max(Math.abs(low), Math.abs(high));
  const air = isFlat ? Math.abs(high) * 0.1 || 0.5 : 0.06 * (high - low);
  // Counts, rates and shares do not fall below zero, and neither does the room below them.
  return [low >= 0 ? Math.max(0, low - air) : low - air, high + air];
};

class Chart {
  /**
   * `spec`: name (unique in the page), title, unit, hint; lines() gives the lines to draw now;
   * marks: functions that draw over them; include(): values the y range must hold; isTall,
   * isPinnable, isLogByDefault; why(): what to say when there are no lines.
   */
  constructor(spec) {
    this.spec = { marks: [], include: () => [], why: () => "no run in sight logged it", ...spec };
    this.ownLog = spec.isLogByDefault ? true : null; // null: as the page has it
    this.lines = [];
    this.plot = null;
    this.isNear = false;
    this.isHovered = false;
    this.isSteered = false;
    this.stale = "lines";
    this.build();
    listenToChart(this);
    nearWindow.observe(this.box);
    widthChanges.observe(this.frame);
    charts.set(spec.name, this);
  }

  build() {
    const { title, unit, hint, name, isTall } = this.spec;
    this.logButton = make("button", {
      type: "button", class: "log", title: "logarithmic or linear",
      onclick: () => { this.ownLog = !this.isLog(); this.refresh("lines"); },
    }, "log");
    this.tip = make("div", { class: "tip", hidden: true, role: "status" });
    this.frame = make("div", { class: "frame" });
    this.frame.chart = this;
    this.note = make("p", { class: "chart-note", hidden: true });
    this.box = make("figure", {
      class: isTall ? "chart tall" : "chart", tabindex: "0", "data-name": name,
      "aria-label": `Chart of ${title}. Left and right arrows read its points.`,
    },
    make("figcaption", { title: hint || null },
      make("b", {}, title), unit && unit !== "-" ? make("span", { class: "unit" }, unit) : null,
      make("span", { class: "gap" }), this.logButton),
    this.frame, this.note);
    this.box.chart = this;
  }

  isLog() {
    return this.ownLog ?? view.isLog;
  }

  /** Take in a change of the view; at once where the chart is in sight. */
  refresh(what) {
    // Lines include all the rest; any of the others is a new drawing of the same lines.
    if (this.stale !== "lines") this.stale = what;
    if (this.isNear) this.draw();
  }

  draw() {
    const { stale } = this;
    if (!stale || !this.frame.clientWidth) return;
    this.stale = null;
    if (stale === "lines" || !this.plot) this.drawLines();
    else if (stale === "range") this.plot.setData(this.plot.data, true);
    else this.restyle();
  }

  drawLines() {
    this.lines = this.spec.lines();
    const canLog = hasPositive(this.lines);
    const isLog = this.isLog() && canLog;
    this.logButton.setAttribute("aria-pressed", String(isLog));
    this.logButton.disabled = !canLog;
    this.sayWhatIsMissing();
    // A plot of the same lines takes new numbers; another set of lines is another plot.
    const shape = this.lines.map((line) => `${line.run.id} ${line.label} ${line.kind}`).join("\n");
    const key = `${view.axis} ${isLog}\n${shape}`;
    const data = joinedLines(this.lines, isLog);
    if (this.plot && key === this.key) {
      this.plot.setData(data, true);
      this.restyle();
      return;
    }
    this.key = key;
    this.clear();
    if (!this.lines.length) {
      this.frame.replaceChildren(make("p", { class: "empty" }, `no data: ${this.spec.why()}`));
      return;
    }
    this.plot = new uPlot(this.options(isLog), data, this.frame);
    this.frame.append(this.tip);
    this.restyle();
    listenToPlot(this);
  }

  clear() {
    this.plot?.destroy();
    this.plot = null;
    this.frame.replaceChildren();
  }

  sayWhatIsMissing() {
    const there = new Set(this.lines.map((line) => line.run));
    const missing = this.spec.ofOneRun ? [] : shownRuns().filter((run) => !there.has(run));
    const names = missing.map((run) => run.name).join(", ");
    this.note.hidden = !missing.length || !this.lines.length;
    this.note.textContent = `no data in ${names}`;
  }

  /** Colours as they are now: of the theme, and of the run that is highlighted. */
  restyle() {
    if (!this.plot) return;
    this.lines.forEach((line, at) => { this.plot.series[at + 1].alpha = alphaOf(line); });
    this.plot.redraw(false, true);
  }

  fit() {
    if (!this.plot) {
      if (this.isNear) this.draw();
      return;
    }
    const width = this.frame.clientWidth;
    if (width && width !== this.plot.width) this.plot.setSize({ width, height: this.height() });
  }

  height() {
    return this.frame.clientHeight || 220;
  }

  /** How many points of a run's line are drawn, on any zoom; for tests. */
  points(runId, kind) {
    const at = this.lines.findIndex((line) =>
      line.run.id === runId && (kind === undefined || line.kind === kind));
    if (at < 0 || !this.plot) return [];
    const values = this.plot.data[at + 1];
    return this.plot.data[0].flatMap((place, i) =>
      values[i] === null || values[i] === undefined ? [] : [[place, values[i]]]);
  }

  options(isLog) {
    return {
      width: this.frame.clientWidth,
      height: this.height(),
      padding: [10, 20, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, auto: true, range: () => [viewRange().min, viewRange().max] },
        y: { distr: isLog ? 3 : 1, range: valueRange(isLog, this.spec.include) },
      },
      axes: [this.placeAxis(), this.valueAxis(isLog)],
      series: [{}, ...this.lines.map((line) => this.lineOptions(line))],
      cursor: this.cursorOptions(),
      hooks: {
        draw: [(plot) => {
          for (const mark of [...this.spec.marks, drawPinned]) mark(plot, this);
        }],
        setCursor: [() => showTip(this)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          const [min, max] = [left, left + width].map((x) => plot.posToVal(x, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          setZoom({ min, max });
        }],
      },
    };
  }

  placeAxis() {
    const { axis } = view;
    return {
      stroke: () => colourOf("--quiet"),
      grid: { show: false },
      ticks: { stroke: () => colourOf("--line"), width: 1, size: 5 },
      border: { show: true, stroke: () => colourOf("--line"), width: 1 },
      font: FONT, size: 30, gap: 4, space: 70,
      ...(axis === "flops" ? {} : { incrs: axis === "seconds" ? TIME_STEPS : COUNT_STEPS }),
      values: (plot, ticks) => ticks.map((tick) =>
        axis === "seconds" ? (tick === 0 ? "0" : duration(tick)) : shortNumber(tick)),
    };
  }

  valueAxis(isLog) {
    const { unit } = this.spec;
    const most = this.spec.isTall ? 7 : 4;
    return {
      stroke: () => colourOf("--quiet"),
      grid: { stroke: () => colourOf("--grid"), width: 1 },
      ticks: { show: false },
      font: FONT, gap: 6,
      splits: (plot, at, min, max) => (isLog ? logTicks : linearTicks)(min, max, most),
      filter: (plot, ticks) => ticks,
      values: (plot, ticks) => ticks.map((tick) => tickWords(tick, unit)),
      size: (plot, words) => 14 + 6.6 * Math.max(3, ...(words ?? []).map((word) => word.length)),
    };
  }

  lineOptions(line) {
    const isFew = line.steps.length <= 60;
    const colour = () => colourOf(line.colour);
    return {
      stroke: colour,
      width: line.width,
      dash: line.dash.map((length) => length * devicePixelRatio),
      alpha: alphaOf(line),
      ...(line.isStepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      points: {
        show: isFew && line.kind !== "smooth", size: 5, width: 0, fill: colour, stroke: colour,
      },
    };
  }

  cursorOptions() {
    return {
      y: false,
      sync: { key: "chomp", setSeries: false, scales: ["x", null], filters: { pub: isMove } },
      drag: { x: true, y: false, dist: 4, setScale: false },
      // Our own double click shows everything again, in all charts.
      bind: { dblclick: () => null },
      points: { size: 7 },
      hover: {
        skip: [undefined, null],
        prox: (plot, at, index, place) => {
          const { places } = this.lines[at - 1] ?? { places: [] };
          const isWithin = place >= places[0] && place <= places[places.length - 1];
          return isWithin ? 1e6 : REACH_PX;
        },
      },
    };
  }
}

const FONT = "12px system-ui, sans-serif";
// A selection belongs to the chart it was made in; only the place of the cursor goes to the others.
const isMove = (kind) => kind === "mousemove" || kind === "mouseleave";

onView((what) => { for (const chart of charts.values()) chart.refresh(what); });

/** A chart of one metric, its title and unit taken from the table of metrics unless given. */
const metricChart = (name, { title = name, isNoisy = false, isStepped = false, ...spec } = {}) =>
  new Chart({
    name, title, unit: unitOf(name), hint: [name, meaningOf(name)].filter(Boolean).join(": "),
    lines: () => metricLines(name, { isNoisy, isStepped }),
    why: () => whyNoLines(name),
    ...spec,
  });

/** Why a metric has no line, in words. */
const whyNoLines = (name) => {
  if (!shownRuns().length) return "every run is switched off in the legend";
  const logging = shownRuns().filter((run) => hasLogged(run, name));
  if (!logging.length) {
    const states = shownRuns().filter((run) => run.state === "empty").map((run) => run.name);
    return states.length === shownRuns().length
      ? `${states.join(", ")} has no rows yet` : `no run in sight has logged ${name}`;
  }
  return `no run in sight tells its ${AXES[view.axis].label}`;
};

const chartGrid = (children) =>
  make("div", { class: "charts" }, children.map((chart) => chart.box));

// The lines of a chart: which points, in which colour, drawn how.
// A line is {run, label, steps, values, kind, colour, dash, width, alpha, isStepped}. Its kind is
// "raw" (as logged), "smooth" (the same smoothed), or "only" (there is no other of its run).

const RAW_ALPHA = 0.38; // beside its smoothed curve
const FEWEST_SMOOTHED = 12; // points; a curve of fewer is read better as it is
const DIMMED = 0.12; // while another run is highlighted

const lineOf = (run, steps, values, style) => ({
  run, label: run.name, steps, values,
  kind: "only", colour: colourNameOf(run), dash: dashOf(run), width: 1.75, alpha: 1,
  isStepped: false,
  ...style,
});

const onAxis = () => shownRuns().filter((run) => hasAxis(run, view.axis));

/** The lines of one metric, of each run in sight; a noisy one is drawn raw and smoothed. */
const metricLines = (name, style = {}) => onAxis().flatMap((run) => {
  const { isNoisy = false, isStepped = false } = style;
  const series = seriesOf(run, name);
  if (!series) return [];
  if (!isNoisy || !view.smoothing || series.count < FEWEST_SMOOTHED) {
    return [lineOf(run, series.steps, series.values, { isStepped, width: isNoisy ? 1.25 : 1.75 })];
  }
  const means = smoothed(series.meanSteps, series.means, view.smoothing);
  return [
    lineOf(run, series.steps, series.values, { kind: "raw", dash: [], width: 1, alpha: RAW_ALPHA }),
    lineOf(run, series.meanSteps, means, { kind: "smooth", width: 2 }),
  ];
});

/** Values as a chart takes them: null is a gap, as is what a logarithm has no place for. */
const drawableValues = (values, isLog) =>
  Array.from(values, (value) => (Number.isFinite(value) && !(isLog && value <= 0) ? value : null));

/** One table of all lines over the places of all of them; a hole is undefined, a gap null. */
const joinedLines = (lines, isLog) => {
  const tables = lines.map((line) => {
    line.places = placesOfSteps(line.run, line.steps, view.axis);
    return [line.places, drawableValues(line.values, isLog)];
  });
  return tables.length ? uPlot.join(tables) : [[]];
};

/** The step of a line's point at a place that is one of its own. */
const stepOfPoint = (line, place) => {
  let low = 0;
  let high = line.places.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.places[middle] < place) low = middle + 1; else high = middle;
  }
  return line.steps[low];
};

const hasPositive = (lines) => lines.some((line) => line.values.some((value) => value > 0));
const alphaOf = (line) =>
  view.highlighted && view.highlighted !== line.run ? line.alpha * DIMMED : line.alpha;
