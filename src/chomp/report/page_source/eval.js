// Evaluation: the tree of tags with their last numbers, and a chart for each tag in sight.

const EVAL_METRICS = { loss: "loss", bpb: "bits per byte", macro_loss: "macro loss" };
const evalView = { metric: "loss", closed: new Set() };

const entryOf = (run, tag) => run.eval_tags.find((entry) => entry.tag === tag) ?? null;

/** All tags as [{tag, depth, children}], parents before children. */
const evalTree = () => {
  const parents = new Map();
  for (const { tag, parent } of runs.flatMap((run) => run.eval_tags)) {
    if (!parents.has(tag)) parents.set(tag, parent ?? null);
    if (parent && !parents.has(parent)) parents.set(parent, null);
  }
  const below = (parent, depth) => [...parents]
    .filter(([, above]) => above === parent)
    .flatMap(([tag]) => {
      const inner = below(tag, depth + 1);
      return [{ tag, parent, depth, isParent: inner.length > 0 }, ...inner];
    });
  return below(null, 0);
};

const isTagInSight = (tree, { parent }) => {
  for (let above = parent; above !== null;) {
    if (evalView.closed.has(above)) return false;
    above = tree.find(({ tag }) => tag === above)?.parent ?? null;
  }
  return true;
};

const withError = (last, metric) => {
  if (!Number.isFinite(last?.[metric])) return "\u2013";
  const error = last[`${metric}_stderr`];
  if (!(error > 0)) return last[metric].toFixed(4);
  // As many decimals as the first two digits of the error have.
  const decimals = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(error))));
  return `${last[metric].toFixed(decimals)} \u00b1 ${error.toFixed(decimals)}`;
};

const tagLabel = (node, refill) => {
  const name = node.tag.split("/").pop();
  const isClosed = evalView.closed.has(node.tag);
  const mark = node.isParent ? make("button", {
    type: "button", class: "fold-tag", "aria-expanded": String(!isClosed),
    "aria-label": `tags below ${node.tag}`,
    onclick: () => {
      if (!evalView.closed.delete(node.tag)) evalView.closed.add(node.tag);
      refill();
    },
  }, isClosed ? "\u25b8" : "\u25be") : make("span", { class: "fold-tag" });
  const label = make("th", { scope: "row", title: node.tag }, mark, node.depth ? name : node.tag);
  label.style.paddingLeft = `${6 + 20 * node.depth}px`;
  return label;
};

/** The numbers of a tag: of one run all metrics, of several the chosen one for each. */
const tagCells = (tag, metrics) => {
  if (runs.length === 1) {
    const last = entryOf(runs[0], tag)?.last;
    return [...metrics.map((metric) => numberCell(withError(last, metric))),
      numberCell(last?.tokens ? shortNumber(last.tokens) : "\u2013")];
  }
  const values = shownRuns().map((run) => entryOf(run, tag)?.last?.[evalView.metric]);
  const known = values.filter(Number.isFinite);
  const best = known.length > 1 ? Math.min(...known) : null;
  return shownRuns().map((run, at) => numberCell(
    withError(entryOf(run, tag)?.last, evalView.metric),
    values[at] === best ? { class: "figure best", title: "best" } : {}));
};

const tagLines = (tag, metric) => onAxis().flatMap((run) => {
  const name = entryOf(run, tag)?.series?.[metric];
  const series = name ? seriesOf(run, name) : null;
  return series ? [lineOf(run, series.steps, series.values, {})] : [];
});

const tagChart = kept((tag) => new Chart({
  name: `eval ${tag}`, title: tag, unit: null, hint: `evaluation of ${tag}`,
  lines: () => tagLines(tag, evalView.metric),
  marks: [drawResumes],
  why: () => `no run in sight has ${EVAL_METRICS[evalView.metric]} of ${tag}`,
}));

const fillEval = (body) => {
  const tree = evalTree();
  for (const { series } of runs.flatMap((run) => run.eval_tags)) {
    for (const name of Object.values(series)) claim(name);
  }
  if (!tree.length) return "no evaluation was logged";
  const metrics = Object.keys(EVAL_METRICS).filter((metric) =>
    runs.some((run) => run.eval_tags.some((entry) => entry.series?.[metric])));
  if (tree.length > 12) for (const node of tree) if (node.isParent) evalView.closed.add(node.tag);
  const table = make("div", { class: "table-box", tabindex: "0" });
  const grid = make("div", { class: "charts" });
  const fill = () => {
    const inSight = tree.filter((node) => isTagInSight(tree, node));
    const heads = runs.length === 1
      ? [...metrics.map((metric) => EVAL_METRICS[metric]), "tokens"] : shownRuns().map(runName);
    table.replaceChildren(make("table", { class: "tags" },
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "tag"),
        heads.map(numberHead))),
      make("tbody", {}, inSight.map((node) =>
        make("tr", {}, tagLabel(node, fill), tagCells(node.tag, metrics))))));
    const charted = inSight.filter(({ tag }) => runs.some((run) => entryOf(run, tag)));
    grid.replaceChildren(...charted.map(({ tag }) => tagChart(tag).box));
  };
  const choose = (metric) => {
    evalView.metric = metric;
    fill();
    for (const { tag } of tree) charts.get(`eval ${tag}`)?.refresh("lines");
  };
  if (metrics.length > 1) {
    const options = metrics.map((metric) => [metric, EVAL_METRICS[metric]]);
    body.append(choice("evaluate by", options, "loss", choose));
  }
  body.append(table, grid);
  fill();
  onView((what) => { if (what === "lines" && runs.length > 1) fill(); });
  return null;
};
