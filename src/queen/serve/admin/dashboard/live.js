// The first view: what the server does now, and who deserves a look.

import { get } from "./api.js";
import { allowanceText } from "./budget.js";
import { Chart } from "./chart.js";
import { badges, choice, clientLink, count, isOpen, make, meter, onChange, percent, plural, small, span, swap, titled, visible, wealthShare, wealthText } from "./dom.js";
import { eventWords } from "./events.js";
import { when } from "./time.js";
import { word } from "./words.js";

const WINDOWS = [["60", "1 min"], ["300", "5 min"], ["900", "15 min"]];
const VERDICTS = [
  { name: "C fresh", colour: "--fresh", fill: true },
  { name: "D repeat", colour: "--repeat", fill: true, dash: [7, 3] },
  { name: "A outside", colour: "--outside", fill: true, dash: [2, 2] },
  { name: "B spent", colour: "--spent", fill: true, dash: [8, 3, 2, 3] },
];
const FLOW = [
  { name: "Requests", colour: "--accent" },
  { name: "Queries of accused", colour: "--spent", dash: [7, 3] },
  { name: "Refused queries", colour: "--warn", dash: [2, 2] },
  { name: "Errors", colour: "--text", dash: [8, 3, 2, 3] },
];
const LATENCY = [
  { name: "p50", colour: "--accent" },
  { name: "p99", colour: "--outside", dash: [3, 2] },
];

export function live() {
  let seconds = "300";
  const verdicts = new Chart("Verdicts", "queries per second", VERDICTS, { stacked: true, about: "verdicts" });
  const flow = new Chart("Traffic", "per second", FLOW, { about: "traffic" });
  const latency = new Chart("Latency", "milliseconds", LATENCY, { log: true, about: "latency" });
  const tiles = make("dl", { class: "tiles" });
  const advice = make("div");
  let watches = true; // whether there is wealth, by which to rank
  const suspects = make("section", { class: "card" });
  const alarms = make("div");
  const window = choice("Time shown", WINDOWS, seconds, (value) => {
    seconds = value;
    refresh().catch(() => {});
  });
  const node = make(
    "div",
    {},
    titled("Live", window),
    advice,
    tiles,
    make(
      "div",
      { class: "columns wide-left" },
      make("div", { class: "stack" }, verdicts.node, flow.node, latency.node),
      make(
        "div",
        { class: "stack" },
        suspects,
        make("section", { class: "card" }, head(word("notices"), "#/events", "All events"), alarms),
      ),
    ),
  );
  const drawAdvice = onChange((texts) => swap(advice, texts.length > 0 && adviceCard(texts)));
  const drawSuspects = onChange((found) => swap(suspects, suspectsHead(watches), suspectList(...found)));
  const drawAlarms = onChange((found) => swap(alarms, alarmList(found)));

  async function refresh(overview) {
    if (overview) watches = overview.bundle.policy === "sentinel";
    const [series, clients, events] = await Promise.all([
      get("series", { seconds }).then(unknownBefore),
      get("clients", { limit: 5, sort: watches ? "wealth" : "coverage" }),
      get("events", { limit: 200 }),
    ]);
    draw(series);
    if (overview) drawAdvice(overview.server.advice);
    if (overview) swap(tiles, ...tileNodes(series, overview.totals));
    drawSuspects([clients.clients, clients.total]);
    drawAlarms(events.events.filter(isOpen).slice(0, 5));
  }

  function draw(series) {
    const step = { 60: 1, 300: 3, 900: 10 }[seconds];
    const times = thin(series.time, step, (part) => part.at(-1));
    const rates = (names) => names.map((name) => thin(series[name], step, mean));
    const known = series.time.filter((_, i) => series.rows[i] !== null).length;
    const during = `in ${span(known)}`;
    const total = sum(series.rows);
    const shares = ["C", "D", "A", "B"].map((letter) => `${letter} ${percent(total ? sum(series[letter]) / total : 0)}`);
    verdicts.update(times, rates(["C", "D", "A", "B"]), `${count(total)} queries ${during}; ${shares.join(", ")}.`);
    flow.update(
      times,
      rates(["requests", "alarmed", "refused", "errors"]),
      `${count(sum(series.requests))} requests, ${count(sum(series.alarmed))} queries of accused clients, ` +
        `${count(sum(series.refused))} refused queries, ${count(sum(series.errors))} errors ${during}.`,
    );
    const [p50, p99] = [middle(series.p50), worst(series.p99)];
    const speed = p50 === null ? "no requests." : `median ${small(p50)} ms, worst p99 of a second ${small(p99)} ms.`;
    latency.update(times, [thin(series.p50, step, middle), thin(series.p99, step, worst)], speed);
  }

  const close = () => [verdicts, flow, latency].forEach((chart) => chart.close());
  return { node, refresh, close };
}

function tileNodes(series, totals) {
  const recent = (name, n) => series[name].slice(-n);
  const perSecond = (name) => small(mean(recent(name, 10)) ?? 0);
  const [p50, p99] = [middle(recent("p50", 60)), worst(recent("p99", 60))];
  return [
    tile(word("requests"), perSecond("requests"), "per second"),
    tile(word("queries"), perSecond("rows"), "per second"),
    tile(word("latency", "Latency p50"), p50 === null ? "–" : small(p50), p99 === null ? "no requests in this minute" : `ms · p99 up to ${small(p99)}`),
    totals.clients === null
      ? tile("Clients", "…", "being counted")
      : tile("Clients", count(totals.clients), totals.groups ? ["and ", word("group", plural(totals.groups, "group"))] : "on record"),
    tile(word("accused"), known(totals.alarmed), totals.alarmed ? "clients and groups" : "nobody", totals.alarmed > 0),
    tile(word("spent"), known(totals.spent), totals.spent ? "clients and groups" : "nobody", totals.spent > 0),
    tile(word("notices"), known(totals.unacknowledged), totals.unacknowledged ? "not seen yet" : "all seen", totals.unacknowledged > 0),
  ];
}

export const tile = (name, value, unit, bad = false) =>
  make("div", { class: bad ? "tile bad" : "tile" }, make("dt", {}, name), make("dd", {}, make("b", {}, value), " ", make("span", {}, ...[unit].flat())));

const adviceCard = (texts) =>
  make("section", { class: "card advice" }, make("h2", {}, "Advice"), make("ul", { class: "plain" }, ...texts.map((text) => make("li", {}, visible(text)))));

const head = (title, address, text) =>
  make("div", { class: "head" }, make("h2", {}, title), make("a", { href: address }, text));

const suspectsHead = (watches) =>
  head(watches ? word("wealth", "Highest wealth") : word("coverage", "Most covered"), "#/clients", "All clients");

function suspectList(clients, total) {
  if (!clients.length) return make("p", { class: "empty" }, total === null ? "The ledger is being read." : "Nobody has asked yet. Clients appear here with their first query.");
  const lines = clients.map((client) =>
    make(
      "li",
      {},
      make("div", { class: "line" }, clientLink(client.name, client.group), make("span", { class: "pills" }, ...badges(client))),
      client.bar && meter(wealthShare(client.wealth, client.bar), client.alarmed ? "bad" : ""),
      make("p", { class: "hint" }, standsAt(client)),
    ),
  );
  return make("ol", { class: "list" }, ...lines);
}

function standsAt(client) {
  const parts = [];
  if (client.bar) parts.push(`wealth ${wealthText(client.wealth)}, bar ${small(client.bar)}`);
  if (client.most && client.classes_end) parts.push(`${percent(client.most.share)} of class ${client.most.name}`);
  else if (client.bar) parts.push(`${count(client.extra_used)} of ${allowanceText(client.extra_allowance)} extra answers`);
  return parts.join(" · ") || plural(client.queries, "query", "queries");
}

function alarmList(events) {
  if (!events.length) return make("p", { class: "empty" }, "No open notices.");
  const lines = events.map((event) =>
    make(
      "li",
      {},
      make("div", { class: "line" }, clientLink(event.name, event.group), make("span", { class: "pills" }, ...eventWords(event))),
      make("p", { class: "hint" }, when(event.at), ` · ${event.group ? "group, " : ""}after ${plural(event.queries, "query", "queries")}`),
    ),
  );
  return make("ol", { class: "list" }, ...lines);
}

const known = (n) => (n === null ? "…" : count(n));
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0); // null counts as 0
const sorted = (numbers) => numbers.filter((n) => n !== null).sort((a, b) => a - b);
const middle = (numbers) => sorted(numbers).at(sorted(numbers).length >> 1) ?? null;
const worst = (numbers) => sorted(numbers).at(-1) ?? null;

/** The mean of what is known; null where nothing is. */
function mean(numbers) {
  const found = numbers.filter((n) => n !== null);
  return found.length ? sum(found) / found.length : null;
}

/** The series with null where the server did not count yet: it was down then, which is not the same as idle. */
function unknownBefore({ since, time, ...columns }) {
  const cut = (column) => column.map((n, i) => (time[i] < since ? null : n));
  return { time, ...Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, cut(column)])) };
}

/** Every `step` numbers become one; parts end with the newest number. */
function thin(numbers, step, fold) {
  const parts = [];
  for (let end = numbers.length; end >= step; end -= step) parts.unshift(fold(numbers.slice(end - step, end)));
  return parts;
}
