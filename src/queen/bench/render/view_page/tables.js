// The overview: one table per protectee as `queen bench table` prints it, with rows and columns left out on demand.

const DATA = JSON.parse(byId("data").textContent);
const keyOf = (...names) => JSON.stringify(names);
const cellsOf = new Map(); // an attack on a defense -> its cells, one a seed
for (const cell of DATA.cells) {
  const key = keyOf(cell.protectee, cell.column, cell.query, cell.attack);
  cellsOf.set(key, [...(cellsOf.get(key) ?? []), cell]);
}

const textOf = new Map(
  DATA.cells.map((cell) => [
    cell,
    [cell.protectee, cell.column, cell.query, cell.attack, ...cell.flags, ...cell.knows, cell.path, cell.commit ?? ""]
      .join(" ")
      .toLowerCase(),
  ]),
);

const wanted = { metric: DATA.metrics[0], seed: "mean", query: "", column: "", text: "", flagged: false };
const isFiltered = () => wanted.text.trim() !== "" || wanted.flagged;

function isWanted(cell) {
  if (wanted.seed !== "mean" && String(cell.seed) !== wanted.seed) return false;
  if ((wanted.query && cell.query !== wanted.query) || (wanted.column && cell.column !== wanted.column)) return false;
  if (wanted.flagged && !cell.flags.length) return false;
  return wanted.text.toLowerCase().split(/\s+/).every((word) => textOf.get(cell).includes(word));
}

const unique = (name) => [...new Set(DATA.cells.map((cell) => cell[name]))];

/** The fields above the tables; whatever changes, all tables are drawn again. */
function drawTools() {
  const choose = (name, label, options) => {
    const change = (event) => {
      wanted[name] = event.target.value;
      drawTables();
    };
    const list = make("select", { id: `choose-${name}`, change }, options.map(([value, text]) => make("option", { value }, text)));
    return make("div", {}, make("label", { for: list.id }, label), list);
  };
  const all = (name, text) => [["", text], ...unique(name).map((value) => [value, value])];
  const columns = [...new Set(DATA.tables[wanted.metric].mean.flatMap((table) => table.columns))];
  const seeds = Object.keys(DATA.tables[wanted.metric]).filter((seed) => seed !== "mean");
  const text = make("input", { id: "search", type: "search", placeholder: "attack, defense, flag, commit", autocomplete: "off" });
  text.addEventListener("input", () => {
    wanted.text = text.value;
    drawTables();
  });
  const flagged = make("input", { id: "flagged", type: "checkbox" });
  flagged.addEventListener("change", () => {
    wanted.flagged = flagged.checked;
    drawTables();
  });
  byId("tools").replaceChildren(
    choose("metric", "Metric", DATA.metrics.map((name) => [name, words(name)])),
    choose("seed", "Seed", [["mean", seeds.length ? "mean over seeds" : `${unique("seed")}, the only one`], ...seeds.map((s) => [s, s])]),
    choose("query", "Query strategy", all("query", "all")),
    choose("column", "Defense", [["", "all"], ...columns.map((name) => [name, name])]),
    make("div", {}, make("label", { for: "search" }, "Text"), text),
    make("div", { class: "check" }, flagged, make("label", { for: "flagged" }, "Flagged runs only")),
  );
}

function drawTables() {
  const shown = DATA.cells.filter(isWanted).length;
  byId("shown").textContent =
    `${count(shown)} of ${count(DATA.cells.length)} cells are shown.` +
    (isFiltered() && shown ? " Rows of the best attack and of benign clients are left out while you filter." : "");
  byId("tables").replaceChildren(...DATA.tables[wanted.metric][wanted.seed].map(drawTable).filter(Boolean));
}

/** A table with the rows and columns in which a wanted cell is; null if there is none. */
function drawTable(table) {
  const found = (row, column) => (cellsOf.get(keyOf(table.protectee, column, row.query, row.attack)) ?? []).filter(isWanted);
  const attacks = table.rows.filter((row) => row.kind === "attack");
  const columns = table.columns.map((name, i) => ({ name, i })).filter((c) => attacks.some((row) => found(row, c.name).length));
  if (!columns.length) return null;
  const kept = table.rows.filter((row) =>
    row.kind === "attack"
      ? columns.some((c) => found(row, c.name).length)
      : !isFiltered() && (!wanted.query || !row.query || row.query === wanted.query),
  );
  const bodies = [...new Set(kept.map((row) => row.query))].map((query) => {
    const name = make("th", { scope: "rowgroup", colspan: columns.length + 1 }, make("span", {}, query));
    const title = query && make("tr", { class: "group" }, name);
    const rows = kept.filter((row) => row.query === query);
    return make("tbody", {}, title, rows.map((row) => drawRow(row, columns, found)));
  });
  const label = `${table.protectee}: ${words(wanted.metric)} of the stolen copy in percent`;
  const header = make("tr", {}, make("th", { scope: "col" }, "attack"), columns.map((c) => make("th", { scope: "col" }, breakable(c.name))));
  const grid = make("table", { class: "grid", "aria-label": label }, make("thead", {}, header), bodies);
  return make(
    "section", {},
    make("h2", {}, table.protectee),
    drawScale(table),
    make("div", { class: "card wide", tabindex: "0", role: "region", "aria-label": label }, grid),
    make("ul", {}, table.notes.map((note) => make("li", {}, note))),
  );
}

function drawScale(table) {
  const best = wanted.metric.endsWith("agreement") ? "a perfect copy" : "the victim itself";
  const ramp = make("span", { class: "ramp", "aria-hidden": "true" });
  const meaning = ` (guessing one class to ${best}). Open an entry to see its run.`;
  return make("p", { class: "soft" }, `${words(wanted.metric)} in percent: `, percent(table.chance), ramp, percent(table.best), meaning);
}

function drawRow(row, columns, found) {
  const marks = row.marks && make("span", { title: meaningOf(row.marks) }, row.marks);
  const name = make("th", { scope: "row" }, breakable(row.attack), marks);
  return make("tr", { class: row.kind }, name, columns.map((c) => drawEntry(row, row.entries[c.i], found(row, c.name))));
}

const meaningOf = (marks) =>
  Object.values(DATA.knowledge).filter((one) => one.mark && marks.includes(one.mark)).map((one) => `${one.mark} ${one.meaning}`).join(" ");

function drawEntry(row, entry, cells) {
  if (!entry || (row.kind === "attack" && !cells.length)) return make("td");
  const [text, heat] = entry;
  const node = make("td", { class: row.kind !== "benign" && heat !== null && "heat" });
  if (heat !== null) node.style.setProperty("--heat", heat);
  const flags = [...new Set(cells.flatMap((cell) => cell.flags))];
  const title = flags.join("; ") || null;
  node.append(row.kind === "attack" ? make("a", { href: addressOf(cells[0]), title }, text) : text);
  return node;
}
