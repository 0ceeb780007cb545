// All clients and groups, ranked.

import { get } from "./api.js";
import { allowanceText } from "./budget.js";
import { badges, choice, clientLink, count, make, meter, onChange, percent, small, swap, titled, wealthShare, wealthText } from "./dom.js";
import { wordLine } from "./words.js";

const SORTS = [["wealth", "Wealth"], ["coverage", "Coverage"], ["queries", "Queries"]];
const COLUMNS = [["name", "Name"], ["wealth", "Wealth"], ["coverage", "Coverage"], ["extra", "Extra answers"], ["queries", "Queries"], ["state", "State"]];

export function clients() {
  let [sort, search, limit, timer] = [null, "", 100, 0];
  const sorts = make("div", { class: "field" });
  const heads = COLUMNS.map(([name, text]) => make("th", { role: "columnheader", scope: "col", class: name }, text));
  const body = make("tbody", { role: "rowgroup" });
  const says = make("p", { class: "hint", role: "status" });
  const more = make("button", { type: "button", hidden: true }, "Show more");
  const field = make("input", { type: "search", id: "search", placeholder: "Part of a name", autocomplete: "off", spellcheck: "false", maxlength: 256 });
  field.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(() => ((search = field.value), again()), 200);
  };
  more.onclick = () => ((limit = Math.min(1000, limit * 4)), again());
  const table = make(
    "table",
    { role: "table", class: "rank" },
    make("caption", { class: "unseen" }, "Clients and groups"),
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)),
    body,
  );
  const node = make(
    "div",
    {},
    titled("Clients"),
    wordLine("wealth", "bar", "coverage", "extra", "group", "state", "accused"),
    make(
      "div",
      { class: "tools" },
      make("div", { class: "field" }, make("label", { for: "search" }, "Search"), field),
      sorts,
    ),
    make("div", { class: "card flush" }, table),
    says,
    more,
  );
  const draw = onChange(({ found, total, complete, asked }) => {
    heads.forEach((head, i) => head.setAttribute("aria-sort", COLUMNS[i][0] === sort ? "descending" : "none"));
    swap(body, ...(found.length ? found.map(row) : [line(total === null ? READING : asked ? NO_NAME : NOBODY)]));
    const partly = complete ? "" : " There are too many to search by parts of names: give a whole name.";
    says.textContent = total === null ? "" : `${count(found.length)} of ${count(total)} shown, by ${sort}.${partly}`;
    more.hidden = found.length < limit || limit >= 1000;
  });
  const again = () => refresh().catch(() => {});

  function drawSorts() {
    swap(sorts, make("span", { "aria-hidden": "true" }, "Sort by"), choice("Sort by", SORTS, sort, (value) => ((sort = value), again())));
  }

  async function refresh(overview) {
    if (sort === null && overview) {
      sort = overview.bundle.policy === "sentinel" ? "wealth" : "coverage"; // other policies have no wealth
      drawSorts();
    }
    const asked = search;
    const found = await get("clients", { limit, search, sort: sort ?? "wealth" });
    if (asked === search) draw({ found: found.clients, total: found.total, complete: found.complete, asked, sort });
  }

  return { node, refresh, close: () => clearTimeout(timer) };
}

const READING = "The ledger is being read; with very many clients this takes a while.";
const NO_NAME = "No name contains this.";
const NOBODY = "Nobody has asked yet. Clients appear here with their first query.";

const line = (text) => make("tr", { role: "row" }, make("td", { role: "cell", colspan: COLUMNS.length, class: "empty" }, text));

function row(client) {
  const cell = (name, label, ...children) => make("td", { role: "cell", class: name, "data-label": label }, ...children);
  const { most, bar } = client;
  const limit = client.extra_limit;
  const wealth = bar
    ? [make("span", { class: "number" }, `${wealthText(client.wealth)} `, make("small", {}, `bar ${small(bar)}`)), meter(wealthShare(client.wealth, bar), client.alarmed ? "bad" : "")]
    : ["–"];
  const cover = most && client.classes_end
    ? [make("span", { class: "number" }, `${percent(most.share)} `, make("small", {}, make("bdi", {}, `of ${most.name}`))), meter(most.share ?? 1, most.spent ? "warn" : "")]
    : ["–"];
  const extra = bar // other policies refuse nobody, so they have no budget
    ? [make("span", { class: "number" }, `${count(client.extra_used)} `, make("small", {}, `of ${allowanceText(client.extra_allowance)}`)), meter(limit ? client.extra_used / limit : 1, client.budget_state.includes("budget spent") ? "warn" : "")]
    : ["–"];
  return make(
    "tr",
    { role: "row" },
    make(
      "th",
      { role: "rowheader", scope: "row", class: "name" },
      clientLink(client.name, client.group),
      client.group && make("small", {}, "group"),
      client.keys.length > 0 && client.keys.every((key) => key.revoked) && make("small", {}, "key revoked"),
    ),
    cell("wealth", "Wealth", ...wealth),
    cell("coverage", "Coverage", ...cover),
    cell("extra", "Extra answers", ...extra),
    cell("queries", "Queries", make("span", { class: "number" }, count(client.queries))),
    cell("state", "State", make("span", { class: "pills" }, ...badges(client))),
  );
}
