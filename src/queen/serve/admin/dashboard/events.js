// Notices of the ledger, and what operators did.

import { get, post } from "./api.js";
import { confirmed } from "./dialog.js";
import { STATES, badge, choice, clientLink, count, isOpen, make, nameOf, onChange, percent, plural, swap, titled, visible, wealthText } from "./dom.js";
import { when } from "./time.js";
import { wordLine } from "./words.js";

const KINDS = {
  ...STATES,
  alarm: ["bad", "▲", "Accused"],
  pardon: ["good", "✓", "Pardoned"],
  allow: ["good", "✓", "Allow-listed"],
  disallow: ["", "✗", "Off the allow-list"],
  budget: ["", "◆", "New budget"],
  clock: ["", "◆", "Clock accepted"],
  accept: ["warn", "◆", "Loss of data accepted"],
  rebind: ["", "◆", "Ledger taken to a new model"],
};
const OF_LEDGER = ["clock", "accept", "rebind"]; // about no client
const COLUMNS = [["when", "When"], ["what", "What"], ["name", "Who"], ["evidence", "Evidence"], ["seen", "Seen"]];

/** What an event was, as nodes. */
export const eventWords = (event) => [badge(...(KINDS[event.what] ?? ["", "●", event.what])), ...(event.actor ? [" by ", nameOf(event.actor)] : [])];

/** What an event rests on, as nodes: wealth, or what was covered; and how many queries. `nameOfClass` knows labels. */
export function evidence(event, nameOfClass) {
  if (OF_LEDGER.includes(event.what)) return ["–"];
  const asked = plural(event.queries, "query", "queries");
  if (event.what.startsWith("class ")) {
    const [label, share] = event.coverage[0];
    return ["class ", make("bdi", {}, visible(nameOfClass(label))), `: ${percent(share)} of its disc seen, ${asked}`];
  }
  if (event.what.startsWith("budget ")) return [asked];
  return [`wealth ${wealthText(event.wealth)}, ${asked}`];
}

export function events() {
  let everything = "open";
  let [found, total, names] = [[], 0, null];
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
    draw([found, total, value, names]);
  });
  const all = make("button", { type: "button", hidden: true }, "Mark all as seen");
  const says = make("p", { class: "hint" });
  const node = make(
    "div",
    {},
    titled("Events", filter),
    wordLine("notices", "evidence", "accused", "wealth", "coverage", "extra", "group"),
    make("div", { class: "line" }, result, all),
    make("div", { class: "card flush" }, table),
    says,
  );
  const draw = onChange(() => {
    const open = found.filter(isOpen);
    const shown = everything === "all" ? found : open;
    swap(body, ...(shown.length ? shown.map(row) : [nothing()]));
    all.hidden = open.length < 2;
    says.textContent = total > found.length ? `The newest ${count(found.length)} of ${count(total)} events; queen alarms --ledger lists all of them.` : "";
  });
  const nothing = () =>
    make("tr", { role: "row" }, make("td", { role: "cell", colspan: COLUMNS.length, class: "empty" }, everything === "all" ? NEVER : NONE_OPEN));
  all.onclick = async () => {
    const open = found.filter(isOpen);
    const text = "They stay in the list under Everything. Nothing else changes: accused clients stay accused.";
    if (await confirmed([`Mark ${plural(open.length, "open notice")} as seen?`], text, "Mark all")) await mark(open, `${plural(open.length, "notice is", "notices are")} marked as seen.`);
  };

  function row(event) {
    const cell = (name, label, ...children) => make("td", { role: "cell", class: name, "data-label": label }, ...children);
    return make(
      "tr",
      { role: "row" },
      cell("when", "When", when(event.at)),
      cell("what", "What", make("span", {}, ...eventWords(event))),
      make("th", { role: "rowheader", scope: "row", class: "name" }, who(event), event.group && make("small", {}, "group")),
      cell("evidence", "Evidence", ...evidence(event, (label) => names?.[label] ?? String(label))),
      cell(isOpen(event) || event.acknowledged ? "seen" : "seen none", "Seen", seen(event)),
    );
  }

  function seen(event) {
    if (event.acknowledged) return make("span", {}, "by ", nameOf(event.acknowledged));
    if (!isOpen(event)) return "–";
    const button = make("button", { type: "button", class: "small", "data-key": `seen ${event.id}` }, "Mark as seen");
    button.onclick = () => ((button.disabled = true), mark([event], `Event ${event.id} is marked as seen.`));
    return button;
  }

  async function mark(events, done) {
    result.className = "result";
    result.textContent = "Working …";
    try {
      for (const event of events) await post("acknowledge", { event: event.id });
      result.classList.add("good");
      result.textContent = `✓ ${done}`;
    } catch (error) {
      draw(null); // the buttons can be pressed again
      result.classList.add("bad");
      result.textContent = `✗ Not done: ${error.message}`;
    }
    node.querySelector("h1").focus();
    refresh().catch(() => {});
  }

  async function refresh(overview) {
    names = overview ? overview.bundle.class_names : names;
    ({ events: found, total } = await get("events"));
    draw([found, total, everything, names]);
  }

  return { node, refresh, close: () => {} };
}

const NEVER = "Nothing has happened yet: no alarm, no budget that is low or spent, and no operator did anything.";
const NONE_OPEN = "No open notices. Earlier notices, and what operators did, are listed under Everything.";

const who = (event) => (OF_LEDGER.includes(event.what) ? nameOf(event.name) : clientLink(event.name, event.group));
