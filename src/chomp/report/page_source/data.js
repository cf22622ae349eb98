// The payload, and what is worked out from it: arrays, axes, smoothed curves. Nothing is drawn.
// An array is unpacked when it is first needed, since most of a page's curves are never looked at.

const payload = JSON.parse(document.getElementById("payload").textContent);
const runs = payload.runs;
const runById = new Map(runs.map((run) => [run.id, run]));

const AXES = {
  step: { label: "steps" },
  tokens: { label: "tokens processed" },
  flops: { label: "FLOPs" },
  seconds: { label: "time trained" },
};

const ARRAY_TYPES = { i32: Int32Array, f32: Float32Array, f64: Float64Array };

/** The numbers of a packed array: base64 of little-endian bytes, its type given or named in it. */
const unpacked = (packed, type) => {
  if (packed === null || packed === undefined) return null;
  if (typeof packed !== "string") [[type, packed]] = Object.entries(packed);
  const text = atob(packed);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new ARRAY_TYPES[type](bytes.buffer);
};

/** `make(key)` on first asking, the same answer afterwards. */
const kept = (make) => {
  const known = new Map();
  return (key) => {
    if (!known.has(key)) known.set(key, make(key));
    return known.get(key);
  };
};

const unpackedSeries = kept((series) => {
  const steps = unpacked(series.step, "i32");
  const values = unpacked(series.value, "f32");
  return {
    steps,
    values,
    // Nothing was left out of a short series, so it is its own mean.
    meanSteps: unpacked(series.mean_step, "i32") ?? steps,
    means: unpacked(series.mean, "f32") ?? values,
    count: series.count,
  };
});

const hasLogged = (run, name) => (run.series[name]?.count ?? 0) > 0;
const isLogged = (name) => runs.some((run) => hasLogged(run, name));

/** The series of a metric in a run, or null where the run never logged it. */
const seriesOf = (run, name) => (hasLogged(run, name) ? unpackedSeries(run.series[name]) : null);

const unpackedAxes = kept((run) => ({
  step: unpacked(run.axes.step, "i32"),
  tokens: unpacked(run.axes.tokens, "f32"),
  flops: unpacked(run.axes.flops, "f32"),
  seconds: unpacked(run.axes.seconds, "f32"),
}));

const hasAxis = (run, axis) => {
  const knots = unpackedAxes(run)[axis];
  return knots !== null && knots.length > 0;
};

/** `from[i]` to `to[i]` by straight lines; beyond the ends the nearest of them goes on. */
const interpolated = (from, to, value) => {
  const last = from.length - 1;
  if (last === 0) return to[0];
  let low = 0;
  let high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= value) low = middle; else high = middle;
  }
  const width = from[high] - from[low];
  return width ? to[low] + ((value - from[low]) / width) * (to[high] - to[low]) : to[low];
};

/** Where a step of a run lies on an axis. */
const placeOfStep = (run, step, axis) => {
  const axes = unpackedAxes(run);
  return axis === "step" ? step : interpolated(axes.step, axes[axis], step);
};

const stepAtPlace = (run, place, axis) => {
  const axes = unpackedAxes(run);
  return axis === "step" ? place : interpolated(axes[axis], axes.step, place);
};

/** The places of ascending steps, strictly rising: two points of a curve never fall together. */
const placesOfSteps = (run, steps, axis) => {
  const places = new Array(steps.length);
  for (let i = 0; i < steps.length; i += 1) {
    const place = placeOfStep(run, steps[i], axis);
    const before = places[i - 1];
    // The smallest rise that a sum in double precision does not lose.
    places[i] = i && place <= before ? before + Math.abs(before) * 1e-14 + 1e-12 : place;
  }
  return places;
};

/** First and last place of the given runs on an axis; null where none of them has it. */
const spanOfRuns = (shown, axis) => {
  let first = Infinity;
  let last = -Infinity;
  for (const run of shown) {
    if (!hasAxis(run, axis)) continue;
    const knots = unpackedAxes(run)[axis];
    first = Math.min(first, knots[0]);
    last = Math.max(last, knots[knots.length - 1]);
  }
  if (first > last) return null;
  if (first === last) {
    const air = Math.max(0.5, 1e-6 * Math.abs(first)); // beside a large number a half is nothing
    return { min: first - air, max: last + air };
  }
  // A record that begins near the beginning is shown from zero.
  return { min: first > 0 && first < 0.5 * last ? 0 : first, max: last };
};

const longestRunSteps = () => {
  const span = spanOfRuns(runs, "step");
  return span ? Math.max(span.max, 1) : 1;
};

/**
 * A curve smoothed over about `width` steps: the mean of all values, each weighted by
 * exp(-distance in steps / width). It looks both ways, so that a drop stays where it was, and
 * counts steps and not points, so that it does not depend on how the curve was thinned.
 */
const smoothed = (steps, values, width) => {
  const count = values.length;
  const sums = new Float64Array(count);
  const weights = new Float64Array(count);
  const sweep = (start, direction) => {
    let sum = 0;
    let weight = 0;
    for (let i = start; i >= 0 && i < count; i += direction) {
      const before = i - direction;
      if (before >= 0 && before < count) {
        const decay = Math.exp(-Math.abs(steps[i] - steps[before]) / width);
        sum *= decay;
        weight *= decay;
      }
      // What came before; the point itself is added once, below.
      sums[i] += sum;
      weights[i] += weight;
      if (Number.isFinite(values[i])) {
        sum += values[i];
        weight += 1;
      }
    }
  };
  sweep(0, 1);
  sweep(count - 1, -1);
  return Array.from(values, (value, i) =>
    Number.isFinite(value) ? (sums[i] + value) / (weights[i] + 1) : null);
};

/** All metric names of all runs, in the order of their first appearance. */
const metricNames = () => [...new Set(runs.flatMap((run) => Object.keys(run.series)))];
const unitOf = (name) => payload.metrics[name]?.unit ?? null;
const meaningOf = (name) => payload.metrics[name]?.meaning ?? "";
