// Small helpers to build the page. Text is always set as text: nothing here takes markup.

const SVG = "http://www.w3.org/2000/svg"; // a name, not an address that is read

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const byId = (id) => document.getElementById(id);

const UNKNOWN = "not recorded";
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

const isNumber = (value) => typeof value === "number";
const count = (value) => (isNumber(value) ? whole.format(value) : UNKNOWN);
const percent = (share) => (isNumber(share) ? `${(100 * share).toFixed(1)}\u00a0%` : UNKNOWN);
const words = (name) => name.replaceAll("_", " ");

/** Any value of a result as one line. */
function say(value) {
  if (value === null || value === undefined || value === "") return UNKNOWN;
  if (isNumber(value)) return Number.isInteger(value) ? whole.format(value) : short.format(value);
  if (Array.isArray(value)) return value.length ? value.map(say).join(", ") : "none";
  if (typeof value === "object") return Object.entries(value).map(([name, one]) => `${words(name)} ${say(one)}`).join(", ") || "none";
  return value === true ? "yes" : value === false ? "no" : String(value);
}

/** A heading over a card. */
const section = (title, ...content) => make("section", {}, make("h2", {}, title), make("div", { class: "card" }, ...content));

/** One that is as wide as the page where others stand beside each other. */
function wide(title, ...content) {
  const node = section(title, ...content);
  node.classList.add("whole");
  return node;
}

/** Names and values beside each other; values are texts or elements. */
const facts = (pairs) =>
  make("dl", { class: "facts" }, pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));

const code = (text) => make("code", {}, text);

/** A name that may be broken after its hyphens and underscores, and nowhere else. */
const breakable = (name) => name.split(/(?<=[_-])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));

/** Where a cell is shown, and where its file is: names may hold any character. */
const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");
const addressOf = (cell) => `#/${encoded(cell.path)}`;
