"use strict";
// What a reader can do with the page. Without this script it still shows everything.
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const key = (name) => `grug-dir-diff ${location.pathname} ${name}`;

  // A page opened from disk, or by a reader who forbids it, may have no storage: then nothing is
  // remembered, and nothing fails.
  const remembered = (name) => {
    try { return localStorage.getItem(key(name)); } catch { return null; }
  };
  const remember = (name, value) => {
    try { localStorage.setItem(key(name), value); } catch { /* as above */ }
  };

  const setView = (view) => {
    root.dataset.view = view;
    byId("view").textContent = view === "split" ? "Unified" : "Split";
  };
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const nameTheme = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; };

  const changes = [...document.querySelectorAll(".change")];
  const headings = [...document.querySelectorAll(".file")];
  const isInSight = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  const ownFile = (element) => element.closest(".file");
  let here = null;

  const show = (element) => {
    const file = ownFile(element);
    if (file) file.open = true;
    if (here) here.classList.remove("here");
    here = element;
    here.classList.add("here");
    here.scrollIntoView({ block: "start" });
    const at = changes.indexOf(here);
    if (at >= 0) byId("position").textContent = `${at + 1} / ${changes.length}`;
  };
  // From where the reader was sent last, unless it was scrolled away: then from what is in sight.
  const move = (list, step) => {
    if (!list.length) return;
    const from = here && isInSight(here) ? here : null;
    const at = list.indexOf(from && list === headings ? ownFile(from) : from);
    if (at >= 0) {
      const next = list[at + step];
      if (next) show(next);
      return;
    }
    const top = (element) => element.getBoundingClientRect().top;
    const next = step > 0
      ? list.find((element) => top(element) > 90)
      : list.findLast((element) => top(element) < 80);
    show(next ?? (step > 0 ? list[list.length - 1] : list[0]));
  };

  const toggleView = () => {
    const kept = here && isInSight(here) ? here : null;
    setView(root.dataset.view === "split" ? "unified" : "split");
    remember("view", root.dataset.view);
    if (kept) kept.scrollIntoView({ block: "start" });
  };
  const toggleTheme = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember("theme", root.dataset.theme);
    nameTheme();
  };
  const toggleFolds = () => {
    const folds = [...document.querySelectorAll(".fold")];
    const areOpen = folds.length > 0 && folds.every((fold) => fold.open);
    for (const fold of folds) fold.open = !areOpen;
    byId("folds").textContent = areOpen ? "Expand all" : "Fold all";
  };
  const toggleHelp = () => {
    const dialog = byId("keys");
    if (dialog.open) dialog.close(); else dialog.showModal();
  };

  const actions = {
    j: () => move(changes, 1), n: () => move(changes, 1),
    k: () => move(changes, -1), p: () => move(changes, -1),
    J: () => move(headings, 1), K: () => move(headings, -1),
    u: toggleView, e: toggleFolds, t: toggleTheme, "?": toggleHelp,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;  // the browser's own
    const action = actions[event.key];
    if (!action || (byId("keys").open && event.key !== "?")) return;
    event.preventDefault();
    action();
  });
  const buttons = {
    previous: actions.k, next: actions.j, view: toggleView, folds: toggleFolds,
    theme: toggleTheme, help: toggleHelp,
  };
  for (const [id, action] of Object.entries(buttons)) byId(id).addEventListener("click", action);

  // A link to a file that is closed opens it.
  const openTarget = () => {
    const target = byId(decodeURIComponent(location.hash.slice(1)));
    if (target && target.matches(".file")) { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", openTarget);

  const theme = remembered("theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  nameTheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  const view = remembered("view");
  // Two columns of source do not fit on a phone.
  const fitting = innerWidth < 700 ? "unified" : "split";
  setView(view === "split" || view === "unified" ? view : fitting);
  byId("folds").hidden = !document.querySelector(".fold");
  byId("position").textContent = changes.length ? `\u2013 / ${changes.length}` : "no lines";
  openTarget();
})();
