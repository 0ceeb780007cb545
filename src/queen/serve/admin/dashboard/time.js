// Times: in which zone they are told, and telling them so. Whoever looks chooses; the choice is kept in the browser.

import { choice, make } from "./dom.js";

const STORE = "queen-times";
const listeners = new Set();
let utc = recall() === "utc";

const two = (n) => String(n).padStart(2, "0");

/** The date whose UTC parts are what is told. */
const shifted = (date) => (utc ? date : new Date(date.getTime() - 60000 * date.getTimezoneOffset()));

/** The zone of a moment, which is another in summer: "UTC", or "UTC+02:00". */
export const zone = (date = new Date()) => (utc ? "UTC" : offset(date));

function offset(date) {
  const ahead = -date.getTimezoneOffset();
  const size = Math.abs(ahead);
  return ahead ? `UTC${ahead < 0 ? "−" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}` : "UTC";
}

/** "21:16:05", without its zone. */
export const clock = (date) => shifted(date).toISOString().slice(11, 19);

/** "2026-11-18 21:16:05 UTC+01:00", which is told anew when another zone is chosen. */
export function when(seconds) {
  const date = new Date(1000 * seconds);
  const node = make("time", { datetime: date.toISOString() });
  tell(node);
  return node;
}

function tell(node) {
  const date = new Date(node.dateTime);
  node.replaceChildren(`${shifted(date).toISOString().slice(0, 10)} ${clock(date)} `, make("small", {}, zone(date)));
}

/** Call back when another zone is chosen; returns how to stop. */
export function onZone(callback) {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

/** Buttons for the zone of this browser and for UTC; nothing where they are the same. */
export function zoneChoice() {
  if (offset(new Date()) === "UTC") return null;
  return choice("Time zone", [["local", "Local"], ["utc", "UTC"]], utc ? "utc" : "local", (value) => {
    utc = value === "utc";
    keep(value);
    for (const node of document.querySelectorAll("time")) tell(node);
    for (const callback of listeners) callback();
  });
}

// A browser may be told to keep nothing: then the choice is forgotten with the page.
function recall() {
  try {
    return localStorage.getItem(STORE);
  } catch {
    return null;
  }
}

function keep(value) {
  try {
    localStorage.setItem(STORE, value);
  } catch {
    // as said above
  }
}
