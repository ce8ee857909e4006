"use strict";
// Filters, order, colours and the numbers of a segment. It reads attributes and texts of the page and sets texts,
// classes and the address behind "#"; markup is never made from text.
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("js");

  // ---- what there is
  const holder = document.querySelector(".groups");
  const groups = all(".group").map((node, place) => ({
    node, place, step: Number(node.dataset.step), mixed: node.dataset.mixed === "1",
    cards: all(".trace", node).map((card) => ({
      node: card, outcome: card.dataset.outcome, loss: Number(card.dataset.loss) || 0,
      reward: card.dataset.reward === "" ? NaN : Number(card.dataset.reward),
    })),
  }));
  const total = groups.reduce((sum, group) => sum + group.cards.length, 0);
  const textOf = (nodes) => nodes.map((node) => node.textContent).join("").toLowerCase();
  // read at the first search only: a page can hold megabytes
  const promptOf = (group) => (group.text ??= textOf(all(".prompt .part", group.node)));
  const responseOf = (card) => (card.text ??= all(".text", card.node).map((t) => textOf(all(".part", t))).join("\n"));

  // ---- the state: one text a control, kept behind "#" in the address
  const controls = new Map(all(".filters [name]").filter((c) => c.matches("select, input")).map((c) => [c.name, c]));
  const read = (control) => (control.type === "checkbox" ? (control.checked ? "1" : "") : control.value);
  const idle = (control, text) => text === "" || (control.type === "range" && Number(text) === 0);
  const state = () => new Map([...controls].map(([name, control]) => [name, read(control)]));
  const write = (wanted) => {
    for (const [name, control] of controls) {
      const text = wanted.get(name) ?? "";
      if (control.type === "checkbox") control.checked = text === "1";
      else if (control.type === "range") control.value = Number(text) >= 0 ? text || "0" : "0"; // else: its middle
      else control.value = text;
      if (control.matches("select") && control.selectedIndex < 0) control.value = "";
    }
  };
  const remember = () => {
    const kept = new URLSearchParams();
    for (const [name, text] of state()) if (!idle(controls.get(name), text)) kept.set(name, text);
    if (reload && !reload.checked) kept.set("reload", "0");
    if (advantage?.checked) kept.set("colour", "advantage");
    if (root.dataset.theme) kept.set("theme", root.dataset.theme);
    history.replaceState(null, "", `#${kept}`);
  };

  // ---- colours: the style switches them, the address remembers
  const advantage = document.querySelector(".colours [value=advantage]");
  const credit = document.querySelector(".colours [value='']");
  document.querySelector(".colours")?.addEventListener("change", () => remember());

  // ---- a page of a run that goes on loads itself again
  const reload = document.getElementById("reload");
  if (reload) {
    reload.closest("label").hidden = false;
    reload.addEventListener("change", () => remember());
    setInterval(() => { if (reload.checked) location.reload(); }, 1000 * Number(reload.dataset.seconds));
  }

  // ---- filters and order
  const apply = () => {
    const now = state();
    const [outcome, step, query] = ["outcome", "step", "q"].map((name) => now.get(name) ?? "");
    const needle = query.trim().toLowerCase();
    const loss = Number(now.get("loss") ?? 0);
    let shown = 0;
    for (const group of groups) {
      const fits = (step === "" || group.step === Number(step)) && (!now.get("mixed") || group.mixed);
      const inPrompt = needle === "" || (fits && promptOf(group).includes(needle));
      let some = 0;
      for (const card of group.cards) {
        const keep = fits && (outcome === "" || card.outcome === outcome) && (loss === 0 || card.loss >= loss)
          && (inPrompt || responseOf(card).includes(needle));
        card.node.hidden = !keep;
        some += keep ? 1 : 0;
      }
      group.node.hidden = some === 0;
      shown += some;
    }
    const count = document.querySelector(".count");
    if (count) count.textContent = `${shown} of ${total} traces`;
    const least = document.querySelector("[name=least]");
    if (least) least.textContent = String(Number(loss.toPrecision(3)));
    const empty = document.querySelector(".empty");
    if (empty) empty.hidden = shown > 0;
  };
  const keys = {
    step: (group) => group.step,
    reward: (group) => {
      const known = group.cards.map((card) => card.reward).filter((reward) => !Number.isNaN(reward));
      return known.length ? known.reduce((sum, reward) => sum + reward, 0) / known.length : Infinity;
    },
  };
  let order = "";
  const sort = () => {
    const wanted = state().get("sort") ?? "";
    if (wanted === order) return;
    order = wanted;
    const key = keys[wanted] ?? (() => 0);
    const ranked = groups.map((group) => [key(group), group]);
    ranked.sort(([a, one], [b, other]) => (a < b ? -1 : a > b ? 1 : one.place - other.place));
    holder.append(...ranked.map(([, group]) => group.node));
  };
  const refresh = () => { sort(); apply(); };
  let waiting = 0;
  const bar = document.querySelector(".filters");
  if (bar) {
    bar.addEventListener("input", (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => { refresh(); remember(); }, event.target.type === "search" ? 150 : 0);
    });
    bar.querySelector("[name=reset]").addEventListener("click", () => { write(new Map()); refresh(); remember(); });
  }

  // ---- light and dark
  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = isDark() ? "light colours" : "dark colours"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); remember(); });

  // ---- from the address
  const load = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (["dark", "light"].includes(wanted.get("theme"))) root.dataset.theme = wanted.get("theme");
    write(wanted);
    if (advantage && !advantage.disabled) (wanted.get("colour") === "advantage" ? advantage : credit).checked = true;
    if (reload) reload.checked = wanted.get("reload") !== "0";
    nameTheme();
    refresh();
  };
  addEventListener("hashchange", () => { if (location.hash.includes("=")) load(); });
  load();

  // ---- segments: numbers of the one pointed at, and its stretch of the curve
  const rowsOf = (card) => all("ol.segments > li", card);
  const show = (card, row) => {
    const numbers = row && row.querySelector(".numbers");
    card.querySelector(".detail").replaceChildren(...(numbers ? numbers.cloneNode(true).childNodes : []));
    if (numbers && card.querySelector(".why[open]")) answer(card, rowsOf(card).indexOf(row));
    card.dataset.at = numbers ? rowsOf(card).indexOf(row) : "";
  };
  // probabilities of the answers before and after a segment
  const answer = (card, place) => {
    for (const line of all(".why tbody tr", card)) {
      const each = line.querySelector(".each").textContent.split(" ");
      all(".side", line).forEach((cell, i) => { cell.textContent = each[place + i] ?? "–"; });
    }
  };
  document.addEventListener("toggle", (event) => {
    const card = event.target.matches(".why") && event.target.open ? event.target.closest(".trace") : null;
    if (card) answer(card, Number(card.dataset.at));
  }, true);
  const resting = (card) => card.querySelector("li.on") ?? card.querySelector("li.worst") ?? card.querySelector("li");
  const select = (card, place, force = false) => {
    const rows = rowsOf(card);
    const on = force || !rows[place].classList.contains("on");
    rows.forEach((row, i) => {
      row.classList.toggle("on", on && i === place);
      row.querySelector(".credit")?.setAttribute("aria-pressed", String(on && i === place));
    });
    for (const kind of [".area", ".stretch"]) {
      all(kind, card).forEach((part, i) => part.classList.toggle("on", on && i === place));
    }
    show(card, rows[place]);
  };
  const reveal = (card, place) => {
    const list = card.querySelector("ol.segments");
    const row = rowsOf(card)[place];
    list.scrollTop += row.getBoundingClientRect().top - list.getBoundingClientRect().top - 8;
  };
  for (const { cards } of groups) {
    for (const { node } of cards) {
      show(node, resting(node));
      all("button.credit", node).forEach((button, i) => { button.tabIndex = i === 0 ? 0 : -1; });
    }
  }
  document.addEventListener("click", (event) => {
    const card = event.target.closest(".trace");
    if (!card || event.target.closest("summary")) return;
    const row = event.target.closest("ol.segments > li");
    if (event.target.closest(".go")) {
      const place = rowsOf(card).findIndex((each) => each.classList.contains("worst"));
      if (place >= 0) { select(card, place, true); reveal(card, place); }
    } else if (row && row.querySelector(".numbers")) {
      if (String(getSelection()) === "") select(card, rowsOf(card).indexOf(row));
    } else if (event.target.matches(".area")) {
      const place = all(".area", card).indexOf(event.target);
      select(card, place, true);
      reveal(card, place);
    }
  });
  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, (event) => {
      const card = event.target.closest?.(".trace");
      if (!card) return;
      const area = all(".area", card).indexOf(event.target);
      const row = event.target.closest("ol.segments > li") ?? (area >= 0 ? rowsOf(card)[area] : resting(card));
      show(card, row);
    });
  }
  document.addEventListener("keydown", (event) => {
    const button = event.target.closest?.("button.credit");
    if (!button) return;
    const buttons = all("button.credit", button.closest(".trace"));
    const at = buttons.indexOf(button);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    button.tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  });
})();
