// What is served, how it is protected, and what the words of the other views mean.

import { allowanceText } from "./budget.js";
import { count, make, onChange, small, span, swap, titled } from "./dom.js";
import { WORDS, word } from "./words.js";

const VERDICTS = [
  ["A", "outside", "not in the disc of its class"],
  ["B", "spent", "in the disc and new, but the client may see no more of this class"],
  ["C", "fresh", "in the disc and new; its circle is recorded"],
  ["D", "repeat", "in the disc, close to a picture for which the client already got an answer"],
];

export function policy() {
  const facts = make("div", { class: "columns" });
  const node = make("div", { class: "stack" }, titled("Model and policy"), facts, glossary());
  const draw = onChange(({ bundle, server }) => swap(facts, ...cards(bundle, server)));
  const refresh = async (overview) => {
    if (!overview) return;
    const { now, uptime, ...server } = overview.server;
    draw({ bundle: overview.bundle, server: { ...server, up: span(uptime) } });
  };
  return { node, refresh, close: () => {} };
}

function cards(bundle, server) {
  const { sentinel, limits } = bundle;
  const watches = bundle.policy === "sentinel";
  const model = [
    card("Model", [
      ["Name", bundle.model],
      ["Version", bundle.version],
      ...bundle.inputs.map((one) => [`Input ${one.name}`, `${one.datatype} [${one.shape.map((n) => (n < 0 ? "n" : n)).join(", ")}]`]),
      ["Classes", classes(bundle)],
      ["Device", bundle.device],
      [word("identity"), make("code", {}, bundle.identity)],
    ]),
    card("Limits of one client", limitRows(limits, watches)),
    bundle.price.length > 0 && prose("What a copy costs", bundle.price),
    card("Server", [
      ["State", server.ready ? "ready" : "not ready"],
      ["Version", server.version],
      ["Ledger", server.ledger],
      ["Running for", server.up],
    ]),
    bundle.warnings.length > 0 && prose("Warnings of the fit", bundle.warnings),
  ];
  const policy = [
    card("Policy", [
      ["Policy", bundle.policy],
      ["Mode", mode(bundle)],
      [word("accused", "Accused clients get"), watches ? accused(sentinel) : null],
      [word("spent", "Clients without budget get"), watches ? answer(sentinel.on_spent) : null],
      ["Decimals of answers", watches ? (sentinel.digits ?? "all") : null],
      [word("bar", "Accused at"), watches ? bar(sentinel) : null],
      [word("alpha"), watches ? `${sentinel.alpha}: at most ${small(1e4 * sentinel.alpha)} of 10,000 honest clients are ever accused wrongly, on average` : null],
      [word("scores"), watches ? `${sentinel.scores.join(", ")}; margin ${sentinel.margin}` : null],
      ["Certificate", watches ? sentences(bundle.statement) : null],
    ]),
    card(word("verdicts"), VERDICTS.map(([letter, name, text]) => [`${letter} ${name}`, [text, make("br"), make("small", {}, answered(bundle.answers[letter]))]])),
    card(word("group", "Groups"), Object.entries(sentinel.groups).map(([kind, group]) => [
      kind,
      `${allowanceText(group.extra_answers)} extra answers, threshold ${allowanceText(group.threshold)}; its alarm ${group.enforce_alarm ? "has consequences" : "is only reported"}`,
    ]), "No groups are set up: every client is judged by itself."),
  ];
  return [make("div", { class: "stack" }, ...model), make("div", { class: "stack" }, ...policy)];
}

/** What a verdict is answered with, while there is budget and after. */
function answered([open, spent]) {
  const [first, then] = [ACTIONS[open] ?? open, ACTIONS[spent] ?? spent];
  return open === spent ? `Gets ${first}.` : `Gets ${first}; without budget, ${then}.`;
}

const ACTIONS = {
  honest: "the honest answer",
  move: "an answer moved towards another class",
  reverse: "a reversed answer",
  decoy: "a decoy",
  label: "the label alone",
  refuse: "no answer",
};

function card(title, rows, empty) {
  const known = rows.filter(([, value]) => value !== null);
  const facts = known.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, ...[value].flat())));
  return make("section", { class: "card" }, make("h2", {}, title), known.length ? make("dl", { class: "facts" }, ...facts) : make("p", { class: "empty" }, empty));
}

/** A text with each sentence in a paragraph of its own. */
const sentences = (text) => text.split(/(?<=\.) (?=[A-Z])/).map((one) => make("p", {}, one));

/** A card of sentences. */
function prose(title, texts) {
  return make("section", { class: "card" }, make("h2", {}, title), make("ul", { class: "plain" }, ...texts.map((text) => make("li", {}, text))));
}

/** What accuses, and why it is so high. */
function bar({ bar, calibration }) {
  const before = calibration - 1;
  const why = before ? `${before} earlier ${before === 1 ? "calibration has" : "calibrations have"} raised it; each further one raises it again` : "this is the first calibration of the ledger; each further one raises it";
  return [`wealth ${small(bar)}`, make("br"), make("small", {}, why)];
}

/** All words, for those who would rather read them in one place. */
const glossary = () =>
  make(
    "section",
    { class: "card" },
    make("h2", {}, "What the words mean"),
    make("dl", { class: "facts" }, ...Object.values(WORDS).map(([name, ...texts]) => make("div", {}, make("dt", {}, name), make("dd", {}, ...texts.map((text) => make("p", {}, text)))))),
  );

function limitRows(limits, watches) {
  const radius = Array.isArray(limits.radius)
    ? `${small(Math.min(...limits.radius))} to ${small(Math.max(...limits.radius))}, by class`
    : small(limits.radius);
  return [
    [word("radius"), radius],
    [word("threshold"), allowanceText(limits.threshold)],
    [word("extra"), watches ? allowanceText(limits.extra_answers) : null],
  ];
}

function classes(bundle) {
  const names = bundle.class_names;
  if (!names) return count(bundle.classes);
  const shown = names.slice(0, 12).join(", ");
  return `${count(bundle.classes)}: ${shown}${names.length > 12 ? ", …" : ""}`;
}

function mode(bundle) {
  if (bundle.policy === "none") return "unprotected: everybody gets the model's own answers";
  return bundle.observe ? "observing: judges and records, but always answers honestly. The answers named below begin when it no longer observes" : "enforcing";
}

const ANSWERS = {
  decoy: "a decoy: numbers that say nothing about the query",
  reverse: "reversed answers",
  "label-only": "the label alone",
  refuse: "no answer",
  observe: "the same answers as others: alarms are only reported",
};
const answer = (name) => ANSWERS[name] ?? name;

/** What accused clients get, and for how long. */
function accused({ on_alarm, after_alarm }) {
  const ends = after_alarm !== null && !["refuse", "observe"].includes(on_alarm);
  return answer(on_alarm) + (ends ? `; after ${count(after_alarm)} queries, no answer` : "");
}
