// The table of runs: a row each, sorted by whatever column the reader asks for.

const order = { key: null, isRising: true };

const sortedRuns = () => {
  if (order.key === null) return runs;
  const direction = order.isRising ? 1 : -1;
  if (order.key === "name") {
    return runs.toSorted((one, other) =>
      direction * one.name.localeCompare(other.name, "en", { numeric: true }));
  }
  const value = (run) => run.numbers[order.key];
  return runs.toSorted((one, other) => {
    const [a, b] = [value(one), value(other)]
      .map((number) => (Number.isFinite(number) ? number : null));
    // A run without the number is last either way.
    if (a === null || b === null) return (a === null) - (b === null);
    return direction * (a - b);
  });
};

/** The runs whose number is the best of a column; none where all are equal or nothing is better. */
const bestRuns = ({ key, better }) => {
  const known = runs.filter((run) => Number.isFinite(run.numbers[key]));
  if (!better || known.length < 2) return new Set();
  const numbers = known.map((run) => run.numbers[key]);
  const best = better === "lower" ? Math.min(...numbers) : Math.max(...numbers);
  const holders = known.filter((run) => run.numbers[key] === best);
  return new Set(holders.length < known.length ? holders : []);
};

const headCell = (key, label, better, sortBy) => {
  const isOrder = order.key === key;
  const sorting = isOrder ? (order.isRising ? "ascending" : "descending") : "none";
  const arrow = isOrder ? (order.isRising ? "\u25b2" : "\u25bc") : "";
  return make("th", { scope: "col", "aria-sort": sorting, "data-key": key },
    make("button", {
      type: "button", class: "sort", onclick: () => sortBy(key),
      title: better ? `sort; ${better} is better` : "sort",
    }, label, make("span", { class: "arrow", "aria-hidden": "true" }, arrow)));
};

const runRow = (run, best) => {
  const name = make("th", { scope: "row" }, runName(run), badge(run.state));
  const cells = payload.columns.map((column) => {
    const isBest = best.get(column.key).has(run);
    const words = columnWords(run, column.key);
    return numberCell(words, isBest ? { class: "figure best", title: "best" } : {});
  });
  return make("tr", {
    "data-run": run.id, class: isShown(run) ? null : "switched-off",
    onmouseenter: () => highlight(run), onmouseleave: () => highlight(null),
  }, name, cells);
};

const runTable = () => {
  const best = new Map(payload.columns.map((column) => [column.key, bestRuns(column)]));
  const box = make("div", { class: "table-box", tabindex: "0", id: "run-table" });
  const sortBy = (key) => {
    // The first click shows the best on top: the highest only where higher is better.
    const { better } = payload.columns.find((column) => column.key === key) ?? {};
    order.isRising = order.key === key ? !order.isRising : better !== "higher";
    order.key = key;
    fill();
    box.querySelector(`th[data-key="${CSS.escape(key)}"] button`).focus({ preventScroll: true });
  };
  const fill = () => {
    const heads = payload.columns.map(({ key, label, better }) =>
      headCell(key, label, better, sortBy));
    const scrolled = box.scrollLeft;
    box.replaceChildren(make("table", { class: "runs" },
      make("thead", {}, make("tr", {}, headCell("name", "run", null, sortBy), heads)),
      make("tbody", {}, sortedRuns().map((run) => runRow(run, best)))));
    box.scrollLeft = scrolled;
  };
  fill();
  onView((what) => { if (what === "lines") fill(); });
  return box;
};

// The head of the page: which runs, how they stand, what is wrong with them, and their table.

const fillHead = () => {
  const [first] = runs;
  const title = runs.length === 1 ? first.name : counted(runs.length, "run");
  byId("title").textContent = title;
  if (runs.length === 1) byId("title").after(badge(first.state));
  byId("made").textContent = `made ${payload.made_at} by chomp ${payload.chomp_version}`;
  const notes = payload.notes.map((note) => noteBox(note));
  byId("notes").replaceChildren(...notes, ...runs.flatMap(problemBoxes));
  if (runs.length === 1) byId("runs").replaceChildren(...oneRun(first));
  else byId("runs").replaceChildren(runTable(), runCards());
};

/** What is wrong with a run, how it ended first. */
const problemBoxes = (run) => {
  const isEndedBadly = run.outcome && !["finished", "piece finished"].includes(run.outcome);
  const problems = [...(isEndedBadly ? [`ended with ${run.outcome}`] : []), ...run.problems];
  return problems.map((problem) =>
    noteBox(runs.length > 1 ? `${run.name}: ${problem}` : problem, "problem"));
};

/** The numbers of the only run as tiles, and its facts below. */
const oneRun = (run) => {
  const tiles = payload.columns
    .filter(({ key }) => Number.isFinite(run.numbers[key]))
    .map(({ key, label }) => make("li", {},
      make("b", {}, columnWords(run, key)), make("span", {}, label)));
  return [...(tiles.length ? [make("ul", { class: "tiles" }, tiles)] : []), factList(run.facts)];
};

/** A card of facts for each of several runs, folded where they are many. */
const runCards = () => make("details", { class: "cards-fold", open: runs.length <= 2 },
  make("summary", {}, "Facts about each run"),
  make("div", { class: "cards" }, runs.map((run) => make("article", { class: "card" },
    make("h3", {}, runName(run), badge(run.state)), factList(run.facts)))));

/** The largest number of a column decides how all of them are written. */
const largestOf = kept((key) =>
  Math.max(0, ...runs.map((run) => Math.abs(run.numbers[key])).filter(Number.isFinite)));

const columnWords = (run, key) => {
  const value = run.numbers[key];
  if (!Number.isFinite(value)) return "\u2013";
  const largest = largestOf(key);
  if (largest >= 1e5 || (largest < 1e-3 && largest > 0)) return shortNumber(value);
  const isWhole = runs.every((other) => Number.isInteger(other.numbers[key] ?? 0));
  const decimals = isWhole ? 0 : Math.max(0, 4 - Math.floor(Math.log10(Math.max(largest, 1))));
  return signed(value.toLocaleString("en-US", {
    minimumFractionDigits: decimals, maximumFractionDigits: decimals,
  }));
};
