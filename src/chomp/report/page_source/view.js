// What the reader chose to see: the axis, the zoom, smoothing, which runs. One state for all
// charts; whoever draws listens to it.

const root = document.documentElement;
const COLOURS = 7;
const DASHES = [[], [9, 4], [2, 3], [9, 3, 2, 3], [5, 4]];

// Neither count divides the other, so that the first 35 runs differ in colour or in dashes.
const colourNameOf = (run) => `--run-${runs.indexOf(run) % COLOURS}`;
const dashOf = (run) => DASHES[runs.indexOf(run) % DASHES.length];

const view = {
  axis: "step",
  zoom: null, // {min, max} on the axis; null: all
  smoothing: 0, // steps; 0: the curves as they are
  isLog: false,
  hidden: new Set(),
  highlighted: null,
  pinned: null, // {run, step, value, name}
};

const listeners = [];
/** `listener(what)` after each change; what: "lines", "range", "strokes" or "marks". */
const onView = (listener) => { listeners.push(listener); };
const changed = (what) => { for (const listener of listeners) listener(what); };

const isShown = (run) => !view.hidden.has(run);
const shownRuns = () => runs.filter(isShown);
const viewRange = () => view.zoom
  ?? spanOfRuns(shownRuns(), view.axis)
  ?? spanOfRuns(runs, view.axis)
  ?? { min: 0, max: 1 };

const setAxis = (axis) => {
  // The same steps stay in sight, as the first run that has both axes tells them.
  const guide = shownRuns().find((run) => hasAxis(run, axis) && hasAxis(run, view.axis));
  if (view.zoom && guide) {
    const [min, max] = [view.zoom.min, view.zoom.max]
      .map((place) => placeOfStep(guide, stepAtPlace(guide, place, view.axis), axis));
    view.zoom = { min, max };
  } else {
    view.zoom = null;
  }
  view.axis = axis;
  changed("lines");
};
const offeredAxes = () =>
  Object.keys(AXES).filter((axis) => runs.some((run) => hasAxis(run, axis)));
const setZoom = (zoom) => { view.zoom = zoom; changed("range"); };
const setSmoothing = (steps) => { view.smoothing = steps; changed("lines"); };
const setLog = (isLog) => { view.isLog = isLog; changed("lines"); };
const toggleRun = (run) => {
  if (!view.hidden.delete(run)) view.hidden.add(run);
  changed("lines");
};
/** Only this run; all of them again if it was the only one. */
const showOnly = (run) => {
  const isAlone = isShown(run) && shownRuns().length === 1;
  view.hidden = new Set(isAlone ? [] : runs.filter((other) => other !== run));
  changed("lines");
};
const highlight = (run) => {
  if (view.highlighted === run) return;
  view.highlighted = run;
  changed("strokes");
};
const pin = (pinned) => { view.pinned = pinned; changed("marks"); };

// A canvas knows no CSS variables: a probe in the page says what they are in the current theme.
const probe = make("span", { hidden: true });
let knownColours = new Map();
const colourOf = (name) => {
  if (!knownColours.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    knownColours.set(name, getComputedStyle(probe).color);
  }
  return knownColours.get(name);
};

// A page opened from disk, or by a reader who forbids it, may have no storage: then nothing is
// remembered, and nothing fails.
const remembered = () => {
  try { return localStorage.getItem("chomp report theme"); } catch { return null; }
};
const remember = (theme) => {
  try { localStorage.setItem("chomp report theme", theme); } catch { /* as above */ }
};
const isDark = () => root.dataset.theme
  ? root.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const setTheme = (theme) => {
  if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  recolour();
};
const recolour = () => {
  knownColours = new Map();
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  changed("strokes");
};
