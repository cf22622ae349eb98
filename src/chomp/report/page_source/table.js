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
