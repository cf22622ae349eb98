// Sections drawn from a run's metrics: optimizer, data, speed, time, memory, and all that is left.

// Metrics that a section has shown, which the last section does not show again.
const claimed = new Set();
const claim = (name) => { claimed.add(name); return name; };
const groupOf = (name) => runs.find((run) => run.series[name])?.series[name].group ?? "other";

/** Charts of those of the given metrics that a run has logged: [[name, spec], ...]. */
const chartsOf = (wanted) => wanted.filter(([name]) => isLogged(name))
  .map(([name, spec]) => metricChart(claim(name), { marks: [drawResumes], ...spec }));

const fillOptimizer = (body) => {
  const found = chartsOf([
    ["optim/learning_rate", { title: "learning rate" }],
    ["grad/norm/total", { title: "gradient norm", isNoisy: true, isLogByDefault: true }],
    ["train/skipped_steps", { title: "skipped steps", isStepped: true, include: () => [0, 1] }],
  ]);
  if (!found.length) return "neither learning rate nor gradient norm was logged";
  body.append(chartGrid(found));
  return null;
};

// --- data ---------------------------------------------------------------------------------------

const componentColour = (components, component) =>
  `--run-${components.indexOf(component) % COLOURS}`;
const componentDash = (components, component) =>
  DASHES[components.indexOf(component) % DASHES.length];

/** A line for each component of a run's mixture. */
const componentLines = (run, seriesOfComponent) => {
  if (!isShown(run) || !hasAxis(run, view.axis)) return [];
  const { components } = run.mixture;
  return components.flatMap((component) => {
    const series = seriesOfComponent(component);
    return series ? [lineOf(run, series.steps, series.values, {
      label: component, isStepped: series.isStepped,
      colour: componentColour(components, component), dash: componentDash(components, component),
    })] : [];
  });
};

/** A component's weight as its stages set it, to the last step. */
const weightSeries = (run, component) => {
  const knots = unpackedAxes(run).step;
  const last = knots[knots.length - 1];
  const steps = run.mixture.stages.map((stage) => stage.first_step);
  const values = run.mixture.stages.map((stage) => stage.weights[component] ?? 0);
  if (steps[steps.length - 1] < last) {
    steps.push(last);
    values.push(values[values.length - 1]);
  }
  return { steps, values, isStepped: true };
};

const mixtureCharts = (run) => [
  new Chart({
    name: `mixture weights ${run.id}`, title: "mixture weights", unit: "fraction", ofOneRun: true,
    lines: () => componentLines(run, (component) => weightSeries(run, component)),
    marks: [drawStages(run)], include: () => [0],
    why: () => `${run.name} is switched off, or does not tell its ${AXES[view.axis].label}`,
  }),
  new Chart({
    name: `mixture epochs ${run.id}`, title: "epochs read", unit: "epochs", ofOneRun: true,
    lines: () => componentLines(run, (component) => seriesOf(run, `mixture/epoch/${component}`)),
    marks: [drawStages(run)],
    why: () => `${run.name} logged no mixture/epoch/\u2026`,
  }),
];

const stageTable = (run) => {
  const { stages, components, note } = run.mixture;
  const read = components.filter((name) => stages.some((stage) => name in stage.epochs));
  const head = ["stage", numberHead("from step"),
    ...components.map((component) => numberHead(componentName(components, component))),
    ...read.map((component) => numberHead(componentName(components, component, ", epochs read")))];
  const rows = stages.map((stage, at) => row([
    String(at), numberCell(exactNumber(stage.first_step)),
    ...components.map((component) => numberCell(shareWords(stage.weights[component] ?? 0))),
    ...read.map((component) => numberCell(shortNumber(stage.epochs[component], 3))),
  ]));
  const table = scrollingTable(head, rows);
  return note ? make("div", {}, noteBox(note), table) : table;
};

const componentName = (components, component, more = "") => {
  const dot = make("i", { class: "dot" });
  dot.style.background = `var(${componentColour(components, component)})`;
  return make("span", {}, dot, component + more);
};

const fillData = (body) => {
  const mixed = runs.filter((run) => run.mixture?.components.length);
  for (const name of metricNames()) if (/^mixture\/(weight|epoch|stage)/.test(name)) claim(name);
  if (mixed.length) {
    const box = make("div");
    const made = kept((run) => [stageTable(run), chartGrid(mixtureCharts(run))]);
    const show = (run) => box.replaceChildren(...made(run));
    if (mixed.length > 1) {
      const select = runChoice("mixture of run", mixed[0], show, mixed);
      body.append(make("p", { class: "of-run" }, "mixture of ", select));
    }
    show(mixed[0]);
    body.append(box);
  }
  const found = chartsOf([
    ["packing_utilization", { title: "packing", isNoisy: true }],
    ["tokens_seen", { title: "tokens trained on" }],
  ]);
  if (found.length) body.append(chartGrid(found));
  return "no mixture was recorded";
};

// --- speed, memory ------------------------------------------------------------------------------

/** The measured ceiling of each run in sight, in percent of the theoretical peak. */
const measuredCeilings = () => shownRuns().flatMap((run) => {
  const { theoretical_flops: peak, measured_flops: measured } = run.ceiling ?? {};
  if (!peak || !measured) return [];
  const value = (100 * measured) / peak;
  return [{ value, words: `measured ceiling ${plain(value, 3)} %`, colour: colourNameOf(run) }];
});

/** One line where the runs share a ceiling, which those of one device nearly do. */
const distinctCeilings = () => {
  const found = measuredCeilings();
  const first = found[0]?.value;
  const areAlike = found.every(({ value }) => Math.abs(value - first) < 0.02 * first);
  return found.length > 1 && areAlike ? [{ ...found[0], colour: "--quiet" }] : found;
};

const wholeCeiling = () => [{ value: 100, words: "measured ceiling", colour: "--quiet" }];

const fillSpeed = (body) => {
  const found = chartsOf([
    ["throughput/tokens_per_second", { title: "positions per second", isNoisy: true }],
    ["throughput/mfu", {
      title: "MFU", isNoisy: true, marks: [drawResumes, drawCeilings(distinctCeilings)],
      include: () => distinctCeilings().map(({ value }) => value),
    }],
    ["throughput/mfu_of_measured", {
      title: "MFU of the measured ceiling", isNoisy: true, include: () => [100],
      marks: [drawResumes, drawCeilings(wholeCeiling)],
    }],
    ["throughput/duration", { title: "time per step", isNoisy: true }],
    ["throughput/tokens_per_second_wall", {
      title: "tokens per second, all time counted", isNoisy: true,
    }],
    ["throughput/loading_time", { title: "waited for data", isNoisy: true }],
  ]);
  if (!found.length) return "no throughput was logged";
  body.append(chartGrid(found));
  return null;
};

const fillMemory = (body) => {
  const names = metricNames().filter((name) => groupOf(name) === "memory" && isLogged(name));
  if (!names.length) return "the device did not tell it";
  body.append(chartGrid(chartsOf(names.map((name) => [name, {}]))));
  return null;
};

// --- time ---------------------------------------------------------------------------------------

const totalSeconds = (run) => run.waterfall.reduce((sum, { seconds }) => sum + seconds, 0);

const partClass = (label) => `part-${label.replaceAll(" ", "-")}`;

/** A run's time as one bar, as long as its share of the longest. */
const timeBar = (run, longest) => {
  const total = totalSeconds(run);
  const parts = run.waterfall.filter(({ seconds }) => seconds > 0).map(({ label, seconds }) => {
    const title = `${label}: ${duration(seconds)}, ${shareWords(seconds / total)}`;
    const part = make("i", { class: `part ${partClass(label)}`, title });
    part.style.flexGrow = seconds;
    return part;
  });
  const bar = make("div", { class: "bar" }, parts);
  bar.style.width = `${(100 * total) / longest}%`;
  const name = make("div", { class: "waterfall-name" },
    runs.length > 1 ? runName(run) : "", duration(total));
  return make("div", { class: "waterfall" }, name, bar);
};

const timeCells = (run, label) => {
  const seconds = run.waterfall.find((part) => part.label === label)?.seconds ?? 0;
  const share = shareWords(seconds / totalSeconds(run));
  return [numberCell(duration(seconds)), numberCell(share, { class: "figure quiet" })];
};

const fillTime = (body) => {
  const timed = runs.filter((run) => totalSeconds(run) > 0);
  if (!timed.length) return "no times were logged";
  const longest = Math.max(...timed.map(totalSeconds));
  const labels = [...new Set(timed.flatMap((run) => run.waterfall.map(({ label }) => label)))];
  const rows = labels.map((label) => row([
    make("th", { scope: "row" }, make("i", { class: `dot ${partClass(label)}` }), label),
    ...timed.flatMap((run) => timeCells(run, label)),
  ]));
  const heads = timed.map((run) => make("th", { scope: "col", class: "figure", colspan: "2" },
    runs.length > 1 ? runName(run) : "time and share"));
  body.append(...timed.map((run) => timeBar(run, longest)), scrollingTable(["", ...heads], rows));
  return null;
};

// --- everything else ----------------------------------------------------------------------------

/** What a metric's name begins with; one without a slash stands with others of its kind. */
const prefixOf = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "other");

/** All metrics that no other section shows, a template's own among them, by their prefix. */
const fillOthers = (body) => {
  const names = metricNames().filter((name) => !claimed.has(name) && isLogged(name));
  if (!names.length) return null;
  const charts = names.map((name) => ({ name, box: metricChart(name, { isNoisy: true }).box }));
  const groups = [...new Set(names.map(prefixOf))].sort().map((prefix) => {
    const members = charts.filter(({ name }) => prefixOf(name) === prefix);
    const box = make("section", {}, make("h3", {}, prefix), chartGrid(members));
    return { box, members };
  });
  const found = make("output", { class: "quiet" }, counted(names.length, "metric"));
  const search = make("input", {
    type: "search", id: "metric-search", placeholder: "search names and meanings",
    "aria-label": "search metrics",
    oninput: () => {
      const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      charts.forEach(({ name, box }) => {
        const text = `${name} ${meaningOf(name)}`.toLowerCase();
        box.hidden = !wanted.every((word) => text.includes(word));
        count += !box.hidden;
      });
      groups.forEach(({ box, members }) => {
        box.hidden = members.every((chart) => chart.box.hidden);
      });
      found.textContent = counted(count, "metric");
    },
  });
  body.append(make("p", { class: "search" }, search, found), ...groups.map(({ box }) => box));
  return null;
};
