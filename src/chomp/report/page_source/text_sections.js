// Sections of words and tables: samples, configuration, template, environment, profile.

const fillSamples = (body) => {
  const speaking = runs.filter((run) => run.samples.length);
  if (!speaking.length) return "no text was sampled";
  const steps = [...new Set(speaking.flatMap((run) => run.samples.map(({ step }) => step)))]
    .sort((one, other) => one - other);
  const cards = make("div", { class: "samples" });
  const slider = make("input", {
    type: "range", min: 0, max: steps.length - 1, value: steps.length - 1, id: "sample-step",
    "aria-label": "step of the samples",
  });
  const at = make("output", {});
  const fill = () => {
    const step = steps[Number(slider.value)];
    at.textContent = `step ${exactNumber(step)}`;
    slider.setAttribute("aria-valuetext", at.textContent);
    cards.replaceChildren(...speaking.filter(isShown).flatMap((run) => sampleCards(run, step)));
    showContinuations(cards);
  };
  slider.addEventListener("input", fill);
  onView((what) => { if (what === "lines" && runs.length > 1) fill(); });
  fill();
  const line = make("p", { class: "slider" }, slider, at);
  line.hidden = steps.length < 2;
  body.append(line, cards);
  // Where a text stands is known once it is in the page.
  requestAnimationFrame(() => showContinuations(cards));
  return null;
};

/** A long prompt is scrolled past, to where the model takes over. */
const showContinuations = (cards) => {
  for (const text of cards.querySelectorAll("pre")) {
    const written = text.querySelector(".continuation");
    text.scrollTop = written.offsetTop - text.offsetTop - 60;
  }
};

/** What a run wrote at its last sampling up to a step. */
const sampleCards = (run, step) => {
  const earlier = run.samples.filter((sample) => sample.step <= step);
  if (!earlier.length) return [];
  const newest = Math.max(...earlier.map((sample) => sample.step));
  return earlier.filter((sample) => sample.step === newest).map(({ prompt, text }) =>
    make("article", { class: "card" },
      make("h3", {}, runs.length > 1 ? runName(run) : null,
        make("span", { class: "quiet" }, `step ${exactNumber(newest)}`)),
      make("pre", {}, make("span", { class: "prompt", title: "prompt" }, prompt),
        make("span", { class: "continuation" }, text))));
};

// --- configuration ------------------------------------------------------------------------------

const fillConfig = (body) => {
  const told = runs.filter((run) => run.config.length);
  const difference = payload.config_difference;
  if (!told.length && !difference) return "no run has its configuration beside it";
  if (difference) body.append(...differenceTable(difference));
  if (!told.length) return null;
  const table = make("tbody");
  const filter = make("input", {
    type: "search", placeholder: "filter keys and values", "aria-label": "filter the configuration",
    id: "config-filter",
  });
  const found = make("output", { class: "quiet" });
  let chosen = told[0];
  const fill = () => {
    const wanted = filter.value.toLowerCase();
    const rows = chosen.config.filter(([key, value]) =>
      key.toLowerCase().includes(wanted) || String(value).toLowerCase().includes(wanted));
    found.textContent = counted(rows.length, "setting");
    table.replaceChildren(...rows.map(([key, value]) =>
      make("tr", {}, make("th", { scope: "row" }, key), make("td", {}, String(value)))));
  };
  filter.addEventListener("input", fill);
  const choose = (run) => { chosen = run; fill(); };
  const select = told.length > 1 ? runChoice("configuration of run", chosen, choose, told) : null;
  const whole = make("p", { class: "search" }, filter, select, found);
  fill();
  body.append(make("h3", {}, "All settings"), whole,
    make("div", { class: "table-box tall", tabindex: "0" },
      make("table", { class: "settings" }, table)));
  return null;
};

const differenceTable = ({ names, rows: differing }) => {
  const title = make("h3", {}, "Where the configurations differ");
  if (!differing.length) {
    return [title, make("p", { class: "quiet" }, `${names.join(", ")}: all settings are equal.`)];
  }
  const rows = differing.map(({ key, values }) => make("tr", {},
    make("th", { scope: "row" }, key),
    values.map((value) => make("td", { class: value === values[0] ? null : "differs" },
      value ?? make("span", { class: "quiet" }, "not set")))));
  const table = scrollingTable(["setting", ...names], rows, { class: "settings" });
  table.classList.add("tall");
  return [title, table];
};

// --- template -----------------------------------------------------------------------------------

const fillTemplate = (body) => {
  const told = runs.filter((run) => run.template);
  if (!told.length) return "no run has a copy of its template";
  const box = make("div");
  const show = (run) => box.replaceChildren(...templateParts(run.template));
  if (told.length > 1) {
    const select = runChoice("template of run", told[0], show, told);
    body.append(make("p", { class: "of-run" }, "template of ", select));
  }
  show(told[0]);
  body.append(box);
  return null;
};

const templateParts = ({ name, files, against, html, note }) => {
  const list = files.map(({ path, lines }) => `${path} (${counted(lines, "line")})`).join(", ");
  const parts = [make("p", {}, make("b", {}, name), list ? `: ${list}` : "")];
  if (note) parts.push(make("p", { class: "quiet" }, note));
  if (html) {
    // In a tree of its own, with the style of the diff page and none of this one's.
    const diff = make("div", {
      class: "template-diff", tabindex: "0", "data-view": root.dataset.view,
    });
    const inner = diff.attachShadow({ mode: "open" });
    // Made by chomp.variants, which escapes the source; the page's policy lets nothing in it act.
    inner.innerHTML = html;
    inner.prepend(byId("diff-style").content.cloneNode(true));
    const sides = `Left: ${against}. Right: what the run trained with.`;
    parts.push(make("p", { class: "quiet" }, sides), diff);
  }
  return parts;
};

// --- environment, profile -----------------------------------------------------------------------

const fillEnvironment = (body) => {
  const told = runs.filter((run) => run.environment.length);
  if (!told.length) return "not recorded";
  if (runs.length === 1) {
    body.append(factList(told[0].environment));
    return null;
  }
  const labels = [...new Set(told.flatMap((run) => run.environment.map(([label]) => label)))];
  const rows = labels.map((label) => {
    const values = told.map((run) => Object.fromEntries(run.environment)[label] ?? "\u2013");
    return make("tr", {}, make("th", { scope: "row" }, label), values.map((value) =>
      make("td", { class: value === values[0] ? null : "differs" }, String(value))));
  });
  body.append(scrollingTable(["", ...told.map(runName)], rows, { class: "settings" }));
  return null;
};

const fillProfile = (body) => {
  const traced = runs.filter((run) => run.profile);
  if (!traced.length) return "no trace was summarised: chomp report --profile";
  for (const run of traced) body.append(...profileParts(run));
  return null;
};

const profileParts = (run) => {
  const { steps, device, total_ms: total, busy_ms: busy, operations, gaps, note } = run.profile;
  const traced = steps ? counted(steps, "step") : "A trace that marks no steps";
  const words = `${traced} on ${device}: ${duration(total / 1e3)}, of which the device worked `
    + `${duration(busy / 1e3)} (${shareWords(total ? busy / total : 0)}).`;
  return [
    runs.length > 1 ? make("h3", {}, runName(run)) : null,
    make("p", {}, words), note ? noteBox(note) : null,
    ...shareTable("The device's time", run.profile.categories),
    ...titledTable("Longest operations",
      ["operation", "kind", ...["time", "share", "count"].map(numberHead)],
      operations.map(operationRow)),
    ...titledTable("Longest gaps",
      ["idle after", ...["time", "times"].map(numberHead)], gaps.map(gapRow)),
    ...shareTable("Programs", run.profile.programs ?? []),
    ...shareTable("What the host did in a step", run.profile.phases ?? []),
  ].filter(Boolean);
};

const operationRow = ({ name, category, ms, share, count, place }) => row([
  make("td", { class: "operation", title: place || null }, name), category,
  numberCell(duration(ms / 1e3)), numberCell(shareWords(share)), numberCell(exactNumber(count)),
]);
const gapRow = ({ after, ms, count }) => row([
  make("td", { class: "operation" }, after),
  numberCell(duration(ms / 1e3)), numberCell(exactNumber(count)),
]);

const titledTable = (title, head, rows) =>
  (rows.length ? [make("h3", {}, title), scrollingTable(head, rows, { class: "profile" })] : []);

/** Parts of a time with a bar each, the longest as long as there is room. */
const shareTable = (title, parts) => {
  const most = Math.max(...parts.map(({ share }) => share), 1e-9);
  const rows = parts.map(({ name, ms, share }) => {
    const bar = make("i", { class: "part part-step" });
    bar.style.width = `${(100 * share) / most}%`;
    return row([
      make("th", { scope: "row" }, name),
      make("td", { class: "profile-bar" }, share > 0 ? bar : null),
      numberCell(shareWords(share)), numberCell(duration(ms / 1e3)),
    ]);
  });
  return titledTable(title, ["", "", numberHead("share"), numberHead("time")], rows);
};
