"use strict";
// Sorting, and light or dark. Without this script the page still shows everything.
(() => {
  const root = document.documentElement;
  const table = document.getElementById("ledger");
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];

  // Numbers before words, and what has no value last, whichever way the rest is sorted.
  const before = (left, right, way) => {
    if (left === "" || right === "") return (left === "") - (right === "");
    const numbers = [Number(left), Number(right)];
    if (numbers.every((number) => !Number.isNaN(number))) return way * (numbers[0] - numbers[1]);
    return way * left.localeCompare(right);
  };
  const sortBy = (heading) => {
    const at = headings.indexOf(heading);
    const way = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of headings) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    const rows = [...body.rows];
    const key = (row) => row.cells[at].dataset.sort;
    rows.sort((left, right) => before(key(left), key(right), way));
    body.append(...rows);
  };
  for (const heading of headings) {
    heading.querySelector("button").addEventListener("click", () => sortBy(heading));
  }

  const button = document.getElementById("theme");
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const nameTheme = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  const toggleTheme = () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); };
  button.addEventListener("click", toggleTheme);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "t" || event.ctrlKey || event.metaKey || event.altKey) return;
    toggleTheme();
  });
  nameTheme();
})();
