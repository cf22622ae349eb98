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
