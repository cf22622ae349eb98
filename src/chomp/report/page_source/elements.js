// Elements of the page. Text only ever enters as text: a run's name, its samples and its settings
// are shown, whatever is in them, and never read as HTML.

/** An element; an attribute `onclick` and the like is a listener, a string child is text. */
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  const isThere = (child) => child !== null && child !== undefined;
  element.append(...children.flat(Infinity).filter(isThere));
  return element;
};

const byId = (id) => document.getElementById(id);

/** Copies a text; where the browser forbids it, selects the text so that the reader can. */
const copyButton = (text, source) => {
  const button = make("button", { type: "button", class: "copy", title: `copy: ${text}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  return button;
};

/** A command with a button that copies it. */
const commandLine = (command) => {
  const code = make("code", {}, command);
  return make("span", { class: "command" }, code, copyButton(command, code));
};

/** A short piece of a run's line, in its colour and its dashes. */
const swatch = (run) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({ class: "swatch", width: 22, height: 10 })) {
    svg.setAttribute(name, value);
  }
  svg.setAttribute("aria-hidden", "true");
  const ends = { x1: 1, x2: 21, y1: 5, y2: 5, "stroke-dasharray": dashOf(run).join(" ") };
  for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
  line.style.stroke = `var(${colourNameOf(run)})`;
  svg.append(line);
  return svg;
};

const runName = (run) =>
  make("span", { class: "run-name" }, swatch(run), make("span", {}, run.name));
const badge = (state) => make("span", { class: `badge ${state}` }, state);
const noteBox = (text, kind = "note") => make("p", { class: `box ${kind}` }, text);

/** Label and value pairs, as a list of two columns. */
const factList = (facts) => make("dl", { class: "facts" }, facts.map(([label, value]) =>
  [make("dt", {}, String(label)), make("dd", {}, String(value))]));

const isCell = (part) => part instanceof Node && /^T[HD]$/.test(part.tagName);

/** A table in a box of its own that scrolls, so that the page never does sideways. */
const scrollingTable = (head, rows, attributes = {}) => make(
  "div", { class: "table-box", tabindex: "0" },
  make("table", attributes,
    make("thead", {}, make("tr", {}, head.map((cell) =>
      (isCell(cell) ? cell : make("th", { scope: "col" }, cell))))),
    make("tbody", {}, rows)),
);

const row = (cells) =>
  make("tr", {}, cells.map((cell) => (isCell(cell) ? cell : make("td", {}, cell))));
const numberHead = (words) => make("th", { scope: "col", class: "figure" }, words);
const numberCell = (words, attributes = {}) =>
  make("td", { class: "figure", ...attributes }, words);

/** A choice of one of several, as a row of buttons; `choose` is told of a change. */
const choice = (label, options, chosen, choose) => {
  const group = make("fieldset", { class: "choice" }, make("legend", {}, label));
  for (const [value, words] of options) {
    const input = make("input", {
      type: "radio", name: label, value, checked: value === chosen, onchange: () => choose(value),
    });
    group.append(make("label", {}, input, make("span", {}, words)));
  }
  return group;
};

const runChoice = (label, chosen, choose, offered = runs) => {
  const select = make("select", { "aria-label": label }, offered.map((run) =>
    make("option", { value: run.id, selected: run === chosen }, run.name)));
  select.addEventListener("change", () => choose(runById.get(select.value)));
  return select;
};

/** The sections of the page in their order; one whose body stays empty is left out and named. */
const sections = [];
const leftOut = [];

const addSection = (id, title, fill, { isOpen = true } = {}) => {
  const body = make("div", { class: "section-body" });
  const why = fill(body);
  if (!body.hasChildNodes()) {
    leftOut.push(why ? `${title} (${why})` : title);
    return;
  }
  const heading = make("summary", {}, make("h2", {}, title));
  const box = make("details", { class: "section", id, open: isOpen }, heading, body);
  byId("sections").append(box);
  sections.push({ id, title, box });
};
