// One client or group: how it stands, what it has seen, what happened, and what can be done about it.

import { get, post } from "./api.js";
import { allowanceText, budgetForm } from "./budget.js";
import { confirmed } from "./dialog.js";
import { badge, badges, count, make, meter, nameOf, onChange, percent, plural, small, swap, visible, wealthShare, wealthText } from "./dom.js";
import { eventWords, evidence } from "./events.js";
import { tile } from "./live.js";
import { ClassMap } from "./map.js";
import { when } from "./time.js";
import { word } from "./words.js";

const FIRST = 24; // classes shown before one asks for all

export function client({ name, group: isGroup }) {
  const group = isGroup === "1";
  const map = new ClassMap();
  let [chosen, all, now] = [null, false, null];
  const pills = make("span", { class: "pills" });
  const tiles = make("dl", { class: "tiles" });
  const tools = make("div", { class: "buttons" });
  const result = make("p", { class: "result", role: "status" });
  const cover = make("div");
  const keys = make("div");
  const budget = budgetForm((own) =>
    act([["Set the budget of ", nameOf(name), "?"], budgetWords(own), "Set budget"], { name, ...own }, "budget", () => "The budget is set; what was used stays counted."));
  const history = make("div");
  const node = make(
    "div",
    {},
    make("p", { class: "back" }, make("a", { href: "#/clients" }, "← Clients")),
    make("div", { class: "title of-client" }, make("h1", { tabindex: "-1" }, nameOf(name)), pills, tools),
    result,
    tiles,
    make(
      "div",
      { class: "columns" },
      make("div", { class: "stack" }, card(word("coverage", "Coverage by class"), cover), card("What happened", history)),
      make("div", { class: "stack" }, card(word("map"), map.node), !group && card("Budget", budget.node), !group && card("Keys", keys)),
    ),
  );

  const drawTop = onChange((found) => {
    swap(pills, group && word("group", badge("", "◆", "Group")), ...(found.known ? badges(found) : [badge("", "○", "Never seen")]));
    swap(tiles, ...standingTiles(found));
    swap(tools, ...buttons(found));
  });
  const drawCover = onChange(() => swap(cover, coverage()));
  const drawHistory = onChange((events) => swap(history, eventList(events, classNames(now))));
  const drawKeys = onChange((found) => swap(keys, keyList(found)));
  const drawMap = onChange(({ found, text }) => map.show(found, text));

  async function refresh() {
    draw(await get("client", { name, group: group ? 1 : 0 }));
    await refreshMap();
  }

  function draw(found) {
    now = found;
    chosen ??= found.coverage[0]?.label ?? null;
    drawTop({ ...found, events: null, coverage: null, keys: found.keys.length, active: active(found).length });
    drawCover([found.coverage, chosen, all]);
    drawHistory(found.events);
    drawKeys(found.keys);
    budget.draw(found);
  }

  async function refreshMap() {
    if (chosen === null) return drawMap({ found: { points: [], radius: 0, note: "Nothing is recorded yet." }, text: "" });
    const label = chosen;
    const found = await get("records", { name, group: group ? 1 : 0, label });
    if (label === chosen) drawMap({ found, text: now.coverage.find((one) => one.label === label)?.name ?? label });
  }

  function coverage() {
    if (!now.coverage.length) return make("p", { class: "empty" }, "It has seen nothing inside the disc of any class.");
    const widest = Math.max(1.25, ...now.coverage.map((one) => one.share ?? 1));
    const shown = all ? now.coverage : now.coverage.slice(0, FIRST);
    const bars = shown.map((one) => make("li", {}, bar(one, widest)));
    const rest = now.coverage.length - shown.length;
    const more = rest > 0 && make("button", { type: "button" }, `Show ${count(rest)} more`);
    if (more) more.onclick = () => ((all = true), draw(now));
    return make("div", {}, make("ul", { class: "bars" }, ...bars), more, howToRead(now.classes_end));
  }

  function bar(one, widest) {
    const text = `${small(one.used)} of ${small(one.threshold)} · ${percent(one.share)}${one.spent ? " · spent" : ""}`;
    const fill = meter((one.share ?? widest) / widest, one.spent ? "warn tall" : "tall");
    fill.style.setProperty("--mark", 1 / widest);
    fill.append(make("b"));
    const attributes = { type: "button", class: "bar", "aria-pressed": String(one.label === chosen), "data-key": `class ${one.label}` };
    const button = make("button", attributes, make("bdi", { class: "what" }, one.name), make("span", { class: "number" }, text), fill);
    button.onclick = () => {
      chosen = one.label;
      draw(now);
      refreshMap().catch(() => {});
    };
    return button;
  }

  const act = async (question, body, path, done) => {
    if (!(await confirmed(...question))) return;
    result.className = "result";
    result.textContent = "Working …";
    try {
      const found = await post(path, body);
      result.classList.add("good");
      result.textContent = `✓ ${done(found)}`;
      if (path !== "revoke") draw(found);
    } catch (error) {
      result.classList.add("bad");
      result.textContent = `✗ Not done: ${error.message}`;
    }
    refresh().catch(() => {});
  };

  function buttons(found) {
    const title = (verb) => [verb, " ", nameOf(name), "?"];
    const button = (text, key, action, kind = "") => {
      const made = make("button", { type: "button", class: kind, "data-key": key }, text);
      made.onclick = action;
      return made;
    };
    const pardon = button("Pardon", "pardon", () =>
      act([title("Pardon"), "Its alarm and its wealth are cleared, and it is answered again. What it has seen stays counted.", "Pardon"],
        { name, group }, "pardon", () => "Pardoned: alarm and wealth are cleared; what it has seen stays counted."));
    const list = found.allowed
      ? button("Take off the allow-list", "allow", () =>
          act([title("Take off the allow-list:"), "It is judged like everybody else again.", "Take off"],
            { name, allowed: false }, "allow", () => "Taken off the allow-list."))
      : button("Allow-list", "allow", () =>
          act([title("Allow-list"), "It always gets honest answers, whatever it asks and however much, and its groups are not charged for it. Nothing protects the model from it.", "Allow-list"],
            { name, allowed: true }, "allow", () => "On the allow-list: always answered honestly."));
    const keys = active(now).length;
    const revoke = button(keys > 1 ? `Revoke ${keys} keys` : "Revoke key", "revoke", () => revokeAll(keys), "danger");
    if (!found.known) pardon.disabled = true;
    if (!keys) revoke.disabled = true;
    return group ? [pardon] : [pardon, list, revoke];
  }

  const gone = (found) => `Revoked ${plural(found.revoked.length, "key")}: no server takes ${found.revoked.length === 1 ? "it" : "them"} any more after a second.`;
  const revokeAll = (number) =>
    act([["Revoke all keys of ", nameOf(name), "?"], `${number} active ${number === 1 ? "key stops" : "keys stop"} working within a second. This cannot be undone.`, "Revoke", true],
      { name }, "revoke", gone);

  function keyList(found) {
    if (!found.length) return make("p", { class: "empty" }, "It has no key in the key store of this server.");
    const lines = found.map((key) => {
      const button = key.revoked === null && make("button", { type: "button", class: "danger small", "data-key": `key ${key.id}`, "aria-label": `Revoke key ${key.id}` }, "Revoke");
      if (button) button.onclick = () => act([["Revoke key ", make("code", {}, key.id), "?"], "It stops working within a second. This cannot be undone.", "Revoke", true], { id: key.id }, "revoke", gone);
      const about = [key.admin && "admin", ...key.groups.map(visible)].filter(Boolean).join(", ");
      return make(
        "li",
        {},
        make("div", { class: "line" }, make("code", {}, key.id), button || badge("", "✗", "Revoked")),
        make("p", { class: "hint" }, "made ", when(key.created), key.revoked !== null && " · revoked ", key.revoked !== null && when(key.revoked), about && ` · ${about}`),
      );
    });
    return make("ul", { class: "list" }, ...lines);
  }

  return { node, refresh, close: () => map.close() };
}

const card = (title, content) => make("section", { class: "card" }, make("h2", {}, title), content);

const active = (client) => client.keys.filter((key) => key.revoked === null);

const howToRead = (classesEnd) => {
  const line = classesEnd ? "The line in each bar is the threshold. Beyond it the class is spent." : "No class is ever spent here: answers are counted.";
  return make("p", { class: "hint" }, `${line} Choose a class to see its map.`);
};

function standingTiles(client) {
  const { most, bar } = client;
  const standing = bar ? ["accused at ", word("bar", small(bar))] : "only the sentinel has evidence";
  const wealth = tile(word("wealth"), bar ? wealthText(client.wealth) : "–", standing, client.alarmed);
  if (bar) wealth.lastChild.append(meter(wealthShare(client.wealth, bar), client.alarmed ? "bad" : ""));
  const ends = most && client.classes_end;
  const ofWhat = ends ? `of what it may see of class ${most.name}` : most ? "no class is ever spent" : "nothing recorded";
  const share = tile(word("coverage", "Most covered"), ends ? percent(most.share) : "–", ofWhat, most?.spent);
  if (ends) share.lastChild.append(meter(most.share ?? 1, most.spent ? "warn" : ""));
  const own = client.budget ? "own budget" : "usual budget";
  return [
    wealth,
    share,
    tile(word("queries"), count(client.queries), client.after_alarm ? `${count(client.after_alarm)} since the alarm` : "judged"),
    bar
      ? tile(word("extra"), count(client.extra_used), `of ${allowanceText(client.extra_allowance)}, ${own}`, client.budget_state.includes("budget spent"))
      : tile(word("extra"), "–", "this policy has no budget"),
  ];
}

/** What giving a client this budget means. */
function budgetWords({ extra_answers, threshold }) {
  if (extra_answers === null && threshold === null) return "It has the usual budget again.";
  const parts = [
    extra_answers === null ? "the usual extra answers" : `${allowanceText(extra_answers)} extra answers`,
    threshold === null ? "the usual threshold" : `a threshold of ${allowanceText(threshold)}`,
  ];
  return `It has ${parts.join(" and ")} from now on.`;
}

/** What calls a label by its name, as far as this client's classes tell. */
const classNames = (found) => (label) => found.coverage.find((one) => one.label === label)?.name ?? String(label);

function eventList(events, nameOfClass) {
  if (!events.length) return make("p", { class: "empty" }, "Nothing happened: no alarm, and no operator did anything.");
  const lines = events.map((event) =>
    make("li", {}, make("div", { class: "line" }, make("span", {}, ...eventWords(event)), when(event.at)), make("p", { class: "hint" }, ...eventDetails(event, nameOfClass))),
  );
  return make("ol", { class: "list" }, ...lines);
}

function eventDetails(event, nameOfClass) {
  const parts = evidence(event, nameOfClass);
  if (event.group && event.client) parts.push(" · raised by ", nameOf(event.client));
  if (event.acknowledged) parts.push(" · seen by ", nameOf(event.acknowledged));
  return parts;
}
