// The loss: the large chart, its resumes and spikes, and which data a step was trained on.

const LOSS = "train/loss";

const fillLoss = (body) => {
  const others = metricNames().filter((name) => name !== LOSS && groupOf(name) === "loss");
  const chart = metricChart(LOSS, {
    title: "training loss", isNoisy: true, isTall: true, isPinnable: true,
    marks: [drawResumes, drawSpikes], include: () => [],
  });
  body.append(chart.box, pinnedPanel(), ...resumeList(), ...spikeTable());
  claim(LOSS);
  if (others.length) {
    body.append(chartGrid(others.map((name) => metricChart(claim(name), { isNoisy: true }))));
  }
};

/** The command that tells which documents a step of a run was trained on. */
const whereCommand = (run, step) => run.where_command?.replace("{step}", String(step)) ?? null;

/** The pinned point and its command; any step of any run can be asked for by hand too. */
const pinnedPanel = () => {
  const panel = make("div", { class: "pinned", "aria-live": "polite" });
  const fill = () => {
    const { pinned } = view;
    if (!pinned) {
      const hint = "Click a point of the curve (or reach it with the arrow keys and press Enter) "
        + "to see which data that step was trained on.";
      panel.replaceChildren(make("p", { class: "quiet" }, hint));
      return;
    }
    const { run, step, value } = pinned;
    const command = whereCommand(run, step);
    panel.replaceChildren(make("p", {},
      runName(run), ` step ${exactNumber(step)}`,
      value === null ? "" : `, loss ${exactNumber(value)}: `,
      command ? commandLine(command) : "no data to look up was recorded by this run.",
      make("button", { type: "button", class: "copy", onclick: () => pin(null) }, "unpin")));
  };
  onView((what) => { if (what === "marks") fill(); });
  fill();
  return panel;
};

const resumeList = () => {
  const resumes = runs.flatMap((run) => run.resumes.map((resume) => ({ run, ...resume })));
  if (!resumes.length) return [];
  const items = resumes.map(({ run, step, attempt, note }) => make("li", {},
    runs.length > 1 ? `${run.name}: ` : "", `attempt ${attempt} from step ${exactNumber(step)}`,
    note ? ` \u2013 ${note}` : ""));
  const title = `\u25b2 Resumed ${counted(resumes.length, "time")}`;
  return [make("details", { class: "list", open: resumes.length <= 4 },
    make("summary", {}, title), make("ul", {}, items))];
};

/** Zoom to a spike, with a fiftieth of the run on either side. */
const showSpike = (run, spike) => {
  const span = spanOfRuns([run], "step");
  const air = Math.max((span.max - span.min) / 50, 5);
  const [min, max] = [spike.step - air, spike.step + air]
    .map((step) => placeOfStep(run, step, view.axis));
  view.hidden.delete(run);
  setZoom({ min, max });
  pin({ run, step: spike.step, value: spike.value, name: LOSS });
  charts.get(LOSS).box.scrollIntoView({ block: "center" });
};

const spikeTable = () => {
  const spikes = runs.flatMap((run) => run.spikes.map((spike) => ({ run, spike })));
  if (!spikes.length) return [];
  const numbers = ["step", "loss", "usual there"].map(numberHead);
  const head = [...(runs.length > 1 ? ["run"] : []), ...numbers, "which data", ""];
  const rows = spikes.map(({ run, spike }) => row([
    ...(runs.length > 1 ? [runName(run)] : []),
    numberCell(exactNumber(spike.step)),
    numberCell(exactNumber(spike.value), { class: "figure alarm" }),
    numberCell(exactNumber(spike.usual)),
    spike.command ? commandLine(spike.command) : "\u2013",
    make("button", { type: "button", class: "copy", onclick: () => showSpike(run, spike) }, "show"),
  ]));
  return [make("details", { class: "list", open: true },
    make("summary", {}, make("i", { class: "ring" }), counted(spikes.length, "spike")),
    scrollingTable(head, rows, { class: "spikes" }))];
};
