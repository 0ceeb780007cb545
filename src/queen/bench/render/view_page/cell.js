// One cell: what the page knows of it at once, and the rest from its file.

const PHASES = {
  victim: "training the victim",
  fit: "setting the defense up",
  utility: "benign clients",
  ask: "asking",
  recover: "recovering clean answers",
  train: "training the thief",
  other: "other",
};
const SHARES = {
  A: "verdict A, not in the disc of its class",
  B: "verdict B, in the disc and new, but the class is spent",
  C: "verdict C, in the disc and new",
  D: "verdict D, in the disc and close to an earlier query",
  alarmed: "sent by an accused client",
  honest: "answered honestly",
  refused: "refused",
};
const DISTANCES = { l1: "mean L1 from the clean answer", l2: "mean L2", kl: "mean KL, nats" };

/** Show a cell; its file is read meanwhile. */
async function showCell(cell, main) {
  const body = make("div", { class: "sections" }, ...cellBody(cell, null, "Reading the cell's file …"));
  main.replaceChildren(cellHead(cell), body);
  const [full, problem] = await readCell(cell);
  if (body.isConnected) body.replaceChildren(...cellBody(cell, full, problem)); // unless another one is shown by now
}

/** The cell's file, or why it could not be read. */
async function readCell(cell) {
  if (location.protocol === "file:") {
    const why = "A browser does not let a page read the files beside it if the page itself was opened as a file. Run ";
    const then = ` in ${servedFolder()}, and open the page at the address that it prints, to see the curve and all figures.`;
    return [null, [why, code("python -m http.server --bind 127.0.0.1"), then]];
  }
  try {
    const answer = await fetch(DATA.folder + encoded(cell.path), { cache: "no-cache" });
    if (!answer.ok) throw new Error(`the server says ${answer.status}`);
    const full = await answer.json();
    if ((full.hash ?? null) === cell.hash && full.thief.accuracy === cell.accuracy) return [full, null];
    return [full, "The file has changed since this page was made: make the page again with queen bench view."];
  } catch (error) {
    return [null, `The file ${cell.path} could not be read (${error.message}): serve ${servedFolder()} with this page and all results in it.`];
  }
}

const servedFolder = () => (DATA.folder ? "the folder that holds both this page and the results" : "the folder of this page");

function cellHead(cell) {
  const seeds = cellsOf.get(keyOf(cell.protectee, cell.column, cell.query, cell.attack));
  const others = seeds.length > 1 && make(
    "nav", { "aria-label": "Seeds" }, "Seeds: ",
    seeds.map((one) => make("a", { href: addressOf(one), "aria-current": one === cell && "page" }, String(one.seed))),
  );
  const open = cell.flags.filter((flag) => !(flag in cell.explained)).length;
  const tile = (name, value, more) =>
    make("div", { class: "tile" }, make("dt", {}, name), make("dd", {}, make("b", {}, value), make("span", {}, more)));
  return make(
    "header", {},
    make("p", {}, make("a", { href: "#" }, "← All cells")),
    make("h1", { tabindex: "-1" }, `${cell.attack} on ${cell.column}`),
    make("p", { class: "lead" }, `Protectee ${cell.protectee}, queries by ${cell.query}, seed ${cell.seed}.`),
    others,
    open > 0 && make("p", { class: "warning" }, "This run is flagged: it proves nothing about the defense."),
    make(
      "dl", { class: "tiles" },
      tile("Copy's accuracy", percent(cell.accuracy), `best epoch ${percent(cell.best_accuracy)}`),
      tile("Agreement with the victim", percent(cell.agreement), `best epoch ${percent(cell.best_agreement)}`),
      tile("Benign accuracy, one client", percent(cell.benign.one_client), `many clients ${percent(cell.benign.many_clients)}`),
      tile("Queries answered", count(cell.answered), `of ${count(cell.sent)} sent`),
    ),
  );
}

/** All sections; those that need the file are left out without it. */
function cellBody(cell, full, problem) {
  return [
    problem && make("p", { class: "warning", role: "status" }, problem),
    full && wide("Accuracy over epochs", curve(full.thief.epochs, full.protectee.accuracy, full.protectee.chance)),
    section("Flags", flagList(cell)),
    section("What the attacker knew", known(cell)),
    section("Queries and answers", facts(answerFacts(cell, full))),
    full && section("Benign clients", benignTable(full.utility)),
    full && section("Time", facts(timeFacts(full))),
    section("Where it comes from", facts(originFacts(cell, full))),
    wide("Compute it again", ...again(cell)),
    full && wide("Config", ...configs(full)),
  ].filter(Boolean);
}

function flagList(cell) {
  if (!cell.flags.length) return make("p", {}, "None.");
  const why = (flag) => (flag in cell.explained ? `Explained: ${cell.explained[flag]}.` : "Not explained: the run proves nothing.");
  return make("ul", { class: "flags" }, cell.flags.map((flag) => make("li", {}, make("strong", {}, flag), " ", why(flag))));
}

function known(cell) {
  if (!cell.knows.length) return make("p", {}, "Its own images, and the answers it got.");
  const meaning = (name) => (DATA.knowledge[name] ? `${DATA.knowledge[name].meaning} ${DATA.knowledge[name].mark}` : "");
  return make("ul", {}, cell.knows.map((name) => make("li", {}, make("strong", {}, name), " ", meaning(name))));
}

function answerFacts(cell, full) {
  const pairs = [
    ["budget", count(cell.budget)],
    ["queries sent", count(cell.sent)],
    ["answered", count(cell.answered)],
    ["honest, of all answers given", percent(cell.honest)],
  ];
  if (!full) return pairs;
  const shares = Object.entries(full.verdicts ?? {}).map(([name, share]) => [`share of queries: ${SHARES[name] ?? name}`, percent(share)]);
  const apart = Object.entries(DISTANCES).map(([name, text]) => [text, say(full.answers?.[name])]);
  const recovered = Object.entries(full.recovery ?? {}).map(([name, value]) => [`recovery: ${words(name)}`, say(value)]);
  const labels = [
    ["answers with the victim's own label", percent(full.answers?.label_kept)],
    ["labels that the thief learned from and that are the victim's", percent(full.believed?.label_right)],
  ];
  return [...pairs, ...shares, ...labels, ...apart, ...recovered];
}

function benignTable(utility) {
  const clients = Object.keys(utility);
  const names = [...new Set(clients.flatMap((one) => Object.keys(utility[one])))];
  const share = ["accuracy", "agreement", "refused"];
  const entry = (value, name) => (value === undefined ? "" : share.includes(name) ? percent(value) : say(value));
  const head = make("tr", {}, make("td"), clients.map((one) => make("th", { scope: "col" }, words(one))));
  const rows = names.map((name) => {
    const values = clients.map((one) => make("td", {}, entry(utility[one][name], name)));
    return make("tr", {}, make("th", { scope: "row" }, words(name)), values);
  });
  return make("table", { class: "plain" }, make("thead", {}, head), make("tbody", {}, rows));
}

function timeFacts(full) {
  const reused = (name) => ((full.reused ?? []).includes(name) ? " (taken from another cell)" : "");
  const seconds = full.seconds ?? {};
  const names = [...Object.keys(PHASES).filter((name) => name in seconds), ...Object.keys(seconds).filter((name) => !(name in PHASES))];
  const phases = names.map((name) => [PHASES[name] ?? name, `${say(seconds[name])} s${reused(name)}`]);
  const thief = full.thief;
  return [
    ...phases,
    ["images trained on per second", say(thief.images_per_second)],
    ["accuracy of every try", (thief.tries ?? []).map(percent).join(", ") || UNKNOWN],
  ];
}

function originFacts(cell, full) {
  const file = make("a", { href: DATA.folder + encoded(cell.path) }, cell.path);
  const name = (text) => (text ? code(text) : UNKNOWN);
  const pairs = [["result file", file], ["commit", name(cell.commit)], ["hash of the config", name(cell.hash)]];
  if (!full) return pairs;
  const { versions = {}, hardware = {}, protectee } = full;
  return [
    ...pairs,
    ["hash of the code", name(versions.code)],
    ["SHA-256 of the victim's weights", name(protectee.weights)],
    ["accuracy of the victim; of guessing one class", `${percent(protectee.accuracy)}; ${percent(protectee.chance)}`],
    ["images", `${say(protectee.images)}; from ${say(protectee.sources)}`],
    ["defense", `${full.defense.name}; it keeps the label: ${say(full.defense.keeps_label)}`],
    ["hardware", say(hardware)],
    ["Python and torch", say([versions.python, versions.torch])],
  ];
}

function again(cell) {
  const note = cell.repeatable
    ? "Run it in the folder in which this page was made. It runs all seeds of the spec."
    : "Put the path of your spec in the place of SPEC: this page was made without the spec of this cell. The config says what the spec must hold.";
  return [make("pre", {}, code(cell.command)), make("p", { class: "soft" }, note)];
}

const configs = (full) =>
  [
    ["What the spec said of this cell", full.config],
    ["Every option of the defense", full.defense.options],
    ["Every size of the attacks", full.sizes],
  ]
    .filter(([, value]) => value)
    .map(([title, value], i) => {
      const text = code(JSON.stringify(value, null, 2));
      return make("details", { open: !i }, make("summary", {}, title), make("pre", {}, text));
    });
