// Notices of the ledger, and what operators did.

import { get, post } from "./api.js";
import { STATES, badge, choice, clientLink, isOpen, make, nameOf, onChange, percent, plural, swap, titled, wealthText, when } from "./dom.js";

const WORDS = {
  ...STATES,
  alarm: ["bad", "▲", "Accused"],
  pardon: ["good", "✓", "Pardoned"],
  allow: ["good", "✓", "Allow-listed"],
  disallow: ["", "✗", "Off the allow-list"],
  budget: ["", "◆", "New budget"],
  clock: ["", "◆", "Clock accepted"],
};
const COLUMNS = [["when", "When"], ["what", "What"], ["name", "Who"], ["evidence", "Evidence"], ["seen", "Seen"]];

/** What an event was, as nodes. */
export const eventWords = (event) => [badge(...(WORDS[event.what] ?? ["", "●", event.what])), ...(event.actor ? [" by ", nameOf(event.actor)] : [])];

/** What an event rests on: wealth, or what was covered; and how many queries. */
export function evidence(event) {
  const asked = plural(event.queries, "query", "queries");
  if (event.what.startsWith("class ")) return `class ${event.coverage[0][0]} covered to ${percent(event.coverage[0][1])}, ${asked}`;
  if (event.what.startsWith("budget ")) return asked;
  return `wealth ${wealthText(event.wealth)}, ${asked}`;
}

export function events() {
  let everything = "open";
  let found = [];
  const body = make("tbody", { role: "rowgroup" });
  const result = make("p", { class: "result", role: "status" });
  const heads = COLUMNS.map(([name, text]) => make("th", { role: "columnheader", scope: "col", class: name }, text));
  const table = make(
    "table",
    { role: "table", class: "log" },
    make("caption", { class: "unseen" }, "Events, newest first"),
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)),
    body,
  );
  const filter = choice("Events shown", [["open", "Open notices"], ["all", "Everything"]], everything, (value) => {
    everything = value;
    draw([found, value]);
  });
  const node = make("div", {}, titled("Events", filter), result, make("div", { class: "card flush" }, table));
  const draw = onChange(() => {
    const shown = everything === "all" ? found : found.filter(isOpen);
    swap(body, ...(shown.length ? shown.map(row) : [nothing()]));
  });
  const nothing = () =>
    make("tr", { role: "row" }, make("td", { role: "cell", colspan: COLUMNS.length, class: "empty" }, everything === "all" ? "Nothing has happened yet." : "No open notices."));

  function row(event) {
    const cell = (name, label, ...children) => make("td", { role: "cell", class: name, "data-label": label }, ...children);
    return make(
      "tr",
      { role: "row" },
      cell("when", "When", when(event.at)),
      cell("what", "What", make("span", {}, ...eventWords(event))),
      make("th", { role: "rowheader", scope: "row", class: "name" }, clientLink(event.name, event.group), event.group && make("small", {}, "group")),
      cell("evidence", "Evidence", make("span", { class: "number" }, evidence(event))),
      cell("seen", "Seen", seen(event)),
    );
  }

  function seen(event) {
    if (event.acknowledged) return make("span", {}, "by ", nameOf(event.acknowledged));
    if (!isOpen(event)) return "–";
    const button = make("button", { type: "button", class: "small", "data-key": `seen ${event.id}` }, "Mark as seen");
    button.onclick = async () => {
      button.disabled = true;
      result.className = "result";
      try {
        await post("acknowledge", { event: event.id });
        result.classList.add("good");
        result.textContent = `✓ Event ${event.id} is marked as seen.`;
      } catch (error) {
        button.disabled = false;
        result.classList.add("bad");
        result.textContent = `✗ Not done: ${error.message}`;
      }
      node.querySelector("h1").focus();
      refresh().catch(() => {});
    };
    return button;
  }

  async function refresh() {
    found = (await get("events")).events;
    draw([found, everything]);
  }

  return { node, refresh, close: () => {} };
}
