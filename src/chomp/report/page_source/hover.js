// What a chart tells about the point under the pointer, or under the arrow keys.

const REACH_PX = 24; // beyond the end of a run's curve, where it still answers

/** The points nearest to the cursor: one for each line that has one. */
const pointsAtCursor = (chart) => {
  const { plot, lines } = chart;
  return lines.flatMap((line, at) => {
    const index = plot.cursor.idxs?.[at + 1];
    const value = index === null || index === undefined ? null : plot.data[at + 1][index];
    if (value === null || value === undefined) return [];
    const place = plot.data[0][index];
    return [{ line, value, place, step: stepOfPoint(line, place) }];
  });
};

/** A row for each label of each run: what was logged, and what the smoothed curve says. */
const rowsAtCursor = (points) => {
  const rows = new Map();
  for (const point of points) {
    const { run, label } = point.line;
    const key = `${run.id} ${label}`;
    if (!rows.has(key)) rows.set(key, { run, label, smooth: null, logged: null });
    rows.get(key)[point.line.kind === "smooth" ? "smooth" : "logged"] = point;
  }
  // From top to bottom, as the curves lie.
  const height = (entry) => (entry.smooth ?? entry.logged).value;
  return [...rows.values()].sort((one, other) => height(other) - height(one));
};

const rowElement = (entry, unit, headStep) => {
  const { logged, smooth } = entry;
  const point = logged ?? smooth;
  const mark = make("i", { class: "dot" });
  mark.style.background = `var(${point.line.colour})`;
  const isElsewhere = point.step !== headStep;
  return make("tr", {},
    make("td", {}, mark, entry.label),
    make("td", { class: "figure" }, valueWords(point.value, unit)),
    make("td", { class: "figure quiet" },
      logged && smooth ? `~ ${shortNumber(smooth.value, 5)}` : "",
      isElsewhere ? ` at ${exactNumber(point.step)}` : ""));
};

const resumesNear = (plot, left) => resumesInSight()
  .filter(({ place }) => Math.abs(plot.valToPos(place, "x") - left) < 8)
  .map(({ run, attempt, step, note }) =>
    make("p", {}, `${run.name}: attempt ${attempt} began at step ${exactNumber(step)}. ${note}`));

/** Fill and place the chart's tip, or hide it where there is nothing to say. */
const showTip = (chart) => {
  const { plot, tip } = chart;
  const { left, top } = plot.cursor;
  const points = left >= 0 && (chart.isHovered || chart.isSteered) ? pointsAtCursor(chart) : [];
  tip.hidden = !points.length;
  if (!points.length) return;
  const distance = (point) => Math.abs(plot.valToPos(point.place, "x") - left);
  const nearest = points.reduce((best, point) =>
    (distance(point) < distance(best) ? point : best));
  const words = [`step ${exactNumber(nearest.step)}`];
  if (view.axis !== "step") words.unshift(placeWords(nearest.place, view.axis));
  tip.replaceChildren(
    make("b", {}, words.join(" \u00b7 ")),
    make("table", {}, rowsAtCursor(points).map((entry) =>
      rowElement(entry, chart.spec.unit, nearest.step))),
    ...resumesNear(plot, left));
  const isRight = left > plot.over.clientWidth / 2;
  const edge = plot.over.offsetLeft;
  tip.style.left = isRight ? "auto" : `${edge + left + 14}px`;
  tip.style.right = isRight ? `${plot.root.clientWidth - edge - left + 14}px` : "auto";
  tip.style.top = `${Math.max(4, Math.min(top, plot.over.clientHeight - tip.offsetHeight))}px`;
};

/** The logged point nearest to the cursor in both directions. */
const nearestLogged = (chart) => {
  const { plot } = chart;
  const { left, top } = plot.cursor;
  const distance = (point) => Math.hypot(
    plot.valToPos(point.place, "x") - left, plot.valToPos(point.value, "y") - top);
  return pointsAtCursor(chart)
    .filter((point) => point.line.kind !== "smooth")
    .sort((one, other) => distance(one) - distance(other))[0] ?? null;
};

const pinAtCursor = (chart) => {
  const point = nearestLogged(chart);
  if (!point) return;
  const { line, step, value } = point;
  pin({ run: line.run, step, value, name: chart.spec.name });
};

/** Left and right move from place to place of the first curve, as a pointer would. */
const steer = (chart, direction) => {
  const { plot } = chart;
  const guide = chart.lines[0];
  const { min, max } = plot.scales.x;
  const places = guide.places.filter((place) => place >= min && place <= max);
  if (!places.length) return;
  const here = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : min;
  const width = (max - min) * 1e-6;
  const next = direction > 0
    ? places.find((place) => place > here + width) ?? places[places.length - 1]
    : places.findLast((place) => place < here - width) ?? places[0];
  const index = plot.data[0].indexOf(next);
  chart.isSteered = true;
  const value = plot.data[1][index];
  const top = value === null || value === undefined ? 10 : plot.valToPos(value, "y");
  plot.setCursor({ left: plot.valToPos(next, "x"), top }, true, true);
};

/** Pointer, keys and touch of one chart. */
const listenToChart = (chart) => {
  const { box } = chart;
  box.addEventListener("keydown", (event) => {
    if (!chart.plot || event.target !== box) return;
    const action = {
      ArrowRight: () => steer(chart, 1),
      ArrowLeft: () => steer(chart, -1),
      Enter: () => { if (chart.spec.isPinnable) pinAtCursor(chart); },
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  box.addEventListener("blur", () => {
    if (!chart.isSteered) return;
    chart.isSteered = false;
    chart.plot?.setCursor({ left: -10, top: -10 }, true, true);
  });
};

const listenToPlot = (chart) => {
  const { over } = chart.plot;
  over.addEventListener("mouseenter", () => { chart.isHovered = true; });
  over.addEventListener("mouseleave", () => { chart.isHovered = false; chart.tip.hidden = true; });
  // uPlot stops the click that ends a drag, so this one is a point that was meant.
  over.addEventListener("click", () => { if (chart.spec.isPinnable) pinAtCursor(chart); });
  over.addEventListener("dblclick", () => setZoom(null));
};
