// Small helpers to build the page. Text is always set as text: nothing here takes markup.

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "oninput" || name === "onsubmit") node[name] = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Replace what is in a container and keep the focus on the element with the same data-key. */
export function swap(container, ...nodes) {
  const held = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  container.replaceChildren(...nodes.filter(Boolean));
  if (held === undefined) return;
  const again = [...container.querySelectorAll("[data-key]")].find((node) => node.dataset.key === held);
  again?.focus({ preventScroll: true });
}

/** Call `draw` with the data only when it differs from last time. */
export function onChange(draw) {
  let last;
  return (data) => {
    const now = JSON.stringify(data);
    if (now === last) return;
    last = now;
    draw(data);
  };
}

// Characters that cannot be seen, or that turn text around, are spelled out: nobody passes for somebody else.
export function visible(name) {
  return name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c, at) =>
    c === "\u200d" && joinsEmoji(name, at) ? c : `‹U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`,
  );
}

const joinsEmoji = (name, at) =>
  /\p{Extended_Pictographic}[\ufe0f\u{1f3fb}-\u{1f3ff}]?$/u.test(name.slice(0, at)) &&
  /^\p{Extended_Pictographic}/u.test(name.slice(at + 1));

/** A client's name, cut off from the direction of the text around it. */
export const nameOf = (name) => make("bdi", { class: "name" }, visible(name));

export const clientLink = (name, group) =>
  make("a", { href: clientAddress(name, group), "data-key": `${group ? "g" : "c"}:${name}` }, nameOf(name));

export const clientAddress = (name, group) => `#/client?${new URLSearchParams({ name, group: group ? 1 : 0 })}`;

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (n) => whole.format(n);
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const small = (n) => (n >= 1e6 ? compact.format(n) : short.format(n));
export const percent = (share) => (share === null ? "over" : `${share > 0 && share < 0.1 ? (100 * share).toFixed(1) : Math.round(100 * share)}\u00a0%`);

/** Wealth: tiny ones are as good as none. */
export const wealthText = (w) => (w === null ? "∞" : w === 0 ? "0" : w < 0.01 ? "< 0.01" : small(w));

export function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** A bar for a share of something; its number stands beside it as text. */
export function meter(share, kind = "") {
  const node = make("span", { class: `meter ${kind}`, "aria-hidden": "true" }, make("i"));
  node.style.setProperty("--share", Math.max(0, Math.min(1, share)));
  return node;
}

/** How far wealth is on its way to the bar, by orders of magnitude. */
export const wealthShare = (wealth, bar) =>
  !bar || wealth === 0 ? 0 : wealth === null ? 1 : Math.max(0, Math.log10(Math.max(wealth, 1e-9)) / Math.log10(bar));

// As NOTICES of ledger/words.py: what the ledger notes by itself, and an operator marks as seen.
const NOTICES = ["alarm", "budget low", "budget spent", "class low", "class spent"];
export const isOpen = (event) => NOTICES.includes(event.what) && !event.acknowledged;

export const STATES = {
  alarmed: ["bad", "▲", "Accused"],
  allowed: ["good", "✓", "Allow-listed"],
  "budget low": ["", "◐", "Budget low"],
  "budget spent": ["warn", "●", "Budget spent"],
  "class low": ["", "◐", "Class low"],
  "class spent": ["warn", "●", "Class spent"],
  clear: ["", "○", "Clear"],
};

export const badge = (kind, sign, text) =>
  make("span", { class: `pill ${kind}` }, make("span", { "aria-hidden": "true" }, sign), ` ${text}`);

export function badges(client) {
  const found = [...client.budget_state];
  if (client.allowed) found.unshift("allowed");
  if (client.alarmed) found.unshift("alarmed");
  return (found.length ? found : ["clear"]).map((name) => badge(...STATES[name]));
}

export function titled(text, ...more) {
  return make("div", { class: "title" }, make("h1", { tabindex: "-1" }, text), ...more);
}

/** Buttons of which one is chosen. */
export function choice(label, options, chosen, pick) {
  const group = make("div", { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = make("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
    button.onclick = () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      pick(value);
    };
    group.append(button);
  }
  return group;
}

export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Call back whenever the colours change; returns how to stop. */
export function onTheme(callback) {
  dark.addEventListener("change", callback);
  return () => dark.removeEventListener("change", callback);
}
