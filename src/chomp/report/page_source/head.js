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
