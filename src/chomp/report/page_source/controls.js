// The bar of controls, the legend, the keys, the theme and printing; then the page is put together.

const SMOOTHEST = 0.2; // of the longest run
const SLIDER_STEPS = 100;
const SCROLL_AIR = 8; // as in the style: pixels between the bar and what was scrolled to

/** Steps of smoothing at a position of the slider: none at 0, then rising by a factor. */
const smoothingAt = (position) => {
  if (position <= 0) return 0;
  const most = Math.max(SMOOTHEST * longestRunSteps(), 2);
  return most ** (position / SLIDER_STEPS);
};

const fillAxes = () => {
  const words = { step: "step", tokens: "tokens", flops: "FLOPs", seconds: "time" };
  const offered = offeredAxes();
  const group = choice("x axis", offered.map((axis) => [axis, words[axis]]), view.axis, setAxis);
  group.id = "axes";
  byId("axes").replaceWith(group);
};
const cycleAxis = () => {
  const inputs = [...document.querySelectorAll("#axes input")];
  if (!inputs.length) return;
  const next = inputs[(inputs.findIndex((input) => input.checked) + 1) % inputs.length];
  next.checked = true;
  setAxis(next.value);
};

const nameSmoothing = () => {
  const steps = view.smoothing;
  byId("smoothing-words").textContent = steps ? `${shortNumber(steps, 2)} steps` : "off";
  byId("smoothing").setAttribute("aria-valuetext", byId("smoothing-words").textContent);
};
const readSmoothing = () => {
  setSmoothing(smoothingAt(Number(byId("smoothing").value)));
  nameSmoothing();
};

const toggleLog = () => {
  setLog(!view.isLog);
  byId("log").setAttribute("aria-pressed", String(view.isLog));
};
const toggleTheme = () => {
  setTheme(isDark() ? "light" : "dark");
  remember(root.dataset.theme);
};
const toggleHelp = () => {
  const dialog = byId("keys");
  if (dialog.open) dialog.close(); else dialog.showModal();
};
const resetView = () => {
  if (view.zoom) setZoom(null);
  else if (view.pinned) pin(null);
};

const fillLegend = () => {
  const legend = byId("legend");
  legend.hidden = runs.length < 2;
  const buttons = runs.map((run) => make("button", {
    type: "button", class: "legend-run", "data-run": run.id, "aria-pressed": "true",
    title: "click: show or hide; shift click: only this run",
    onclick: (event) => { if (event.shiftKey) showOnly(run); else toggleRun(run); },
    onmouseenter: () => highlight(run), onmouseleave: () => highlight(null),
    onfocus: () => highlight(run), onblur: () => highlight(null),
  }, swatch(run), make("span", {}, run.name)));
  legend.append(...buttons);
  onView((what) => {
    if (what !== "lines") return;
    runs.forEach((run, at) => buttons[at].setAttribute("aria-pressed", String(isShown(run))));
  });
};

// --- sections by key ----------------------------------------------------------------------------

// What is scrolled to comes to lie below the bar, which is higher on a narrow screen.
const barHeight = () => byId("controls").offsetHeight;
new ResizeObserver(() => root.style.setProperty("--bar", `${barHeight()}px`))
  .observe(byId("controls"));
const goTo = ({ box }) => {
  box.open = true;
  box.scrollIntoView({ block: "start" });
  box.querySelector("summary").focus({ preventScroll: true });
};
const moveSection = (direction) => {
  const edge = barHeight() + SCROLL_AIR;
  const tops = sections.map(({ box }) => box.getBoundingClientRect().top);
  const at = direction > 0
    ? tops.findIndex((top) => top > edge + 4)
    : tops.findLastIndex((top) => top < edge - 4);
  if (at >= 0) goTo(sections[at]);
  else if (direction < 0) scrollTo({ top: 0 });
};
const fillContents = () => {
  byId("contents").replaceChildren(...sections.map((section) => make("a", {
    href: `#${section.id}`, onclick: () => { section.box.open = true; },
  }, section.title)));
  const last = byId("left-out");
  last.hidden = !leftOut.length;
  last.textContent = `Left out, for want of data: ${leftOut.join("; ")}.`;
};

const listen = () => {
  const actions = {
    j: () => moveSection(1), k: () => moveSection(-1), x: cycleAxis, l: toggleLog, t: toggleTheme,
    s: () => byId("smoothing").focus(), Escape: resetView, "?": toggleHelp,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return; // the browser's own
    const isTyping = event.target.matches("input[type=search], select");
    const action = actions[event.key];
    if (!action || isTyping || (byId("keys").open && event.key !== "?")) return;
    event.preventDefault();
    action();
  });
  const showAll = () => setZoom(null);
  const buttons = { log: toggleLog, theme: toggleTheme, help: toggleHelp, reset: showAll };
  for (const [id, action] of Object.entries(buttons)) byId(id).addEventListener("click", action);
  byId("smoothing").addEventListener("input", readSmoothing);
  onView(() => { byId("reset").hidden = !view.zoom; });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
};

// --- printing -----------------------------------------------------------------------------------

// Paper is light, has no scroll position, and no room to open anything.
let before = null;
const preparePrint = () => {
  if (before) return;
  const closed = [...document.querySelectorAll("details:not([open], .fold)")];
  before = { theme: root.dataset.theme, closed };
  for (const details of closed) details.open = true;
  root.dataset.printing = "";
  setTheme("light");
  for (const chart of charts.values()) {
    chart.isNear = true;
    chart.draw();
    chart.fit();
  }
};
const afterPrint = () => {
  if (!before) return;
  for (const details of before.closed) details.open = false;
  delete root.dataset.printing;
  setTheme(before.theme);
  before = null;
  for (const chart of charts.values()) {
    // Which of them are near the window is asked again.
    nearWindow.unobserve(chart.box);
    nearWindow.observe(chart.box);
    chart.fit();
  }
};
addEventListener("beforeprint", preparePrint);
addEventListener("afterprint", afterPrint);
matchMedia("print").addEventListener("change", (event) => {
  if (event.matches) preparePrint(); else afterPrint();
});

// --- the page -----------------------------------------------------------------------------------

const start = () => {
  const theme = remembered();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  // Two columns of source do not fit on a phone.
  root.dataset.view = innerWidth < 700 ? "unified" : "split";
  fillHead();
  fillAxes();
  fillLegend();
  byId("smoothing").value = 40;
  view.smoothing = smoothingAt(40);
  nameSmoothing();
  addSection("loss", "Loss", fillLoss);
  addSection("evaluation", "Evaluation", fillEval);
  addSection("optimizer", "Optimizer", fillOptimizer);
  addSection("data", "Data", fillData);
  addSection("speed", "Speed", fillSpeed);
  addSection("time", "Where the time went", fillTime);
  addSection("memory", "Memory", fillMemory);
  addSection("samples", "Samples", fillSamples);
  addSection("configuration", "Configuration", fillConfig);
  addSection("template", "Template", fillTemplate);
  addSection("profile", "Profile", fillProfile);
  addSection("environment", "Environment", fillEnvironment);
  addSection("metrics", "All other metrics", fillOthers, { isOpen: false });
  fillContents();
  listen();
  recolour();
  const loss = charts.get(LOSS);
  loss.isNear = true;
  loss.draw();
  window.chompReport = { charts, view, smoothed, placeOfStep, runById };
  root.dataset.ready = String(performance.now());
};
start();
