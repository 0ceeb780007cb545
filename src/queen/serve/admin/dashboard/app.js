// Starts the page: the key, the views, and asking the server again and again.

import { ApiError, dropKey, get, hasKey, setKey } from "./api.js";
import { client } from "./client.js";
import { clients } from "./clients.js";
import { badge, count, make, swap } from "./dom.js";
import { events } from "./events.js";
import { live } from "./live.js";
import { policy } from "./policy.js";
import { when, zoneChoice } from "./time.js";
import { hide } from "./words.js";

const VIEWS = { "/": ["live", live], "/clients": ["clients", clients], "/client": ["clients", client], "/events": ["events", events], "/policy": ["policy", policy] };
const EVERY = 2000;
const SLOWEST = 30000;

const byId = (id) => document.getElementById(id);
const main = byId("main");
let view = null;
let timer = 0;
let failures = 0;
let lastAnswer = null;
let round = 0; // answers of an older round than this come too late

function route() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return [VIEWS[path] ?? VIEWS["/"], Object.fromEntries(new URLSearchParams(query))];
}

function open() {
  leave();
  if (!hasKey()) return showLogin();
  const [[name, make_view], parameters] = route();
  byId("header").hidden = false;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view = make_view(parameters);
  main.replaceChildren(view.node);
  main.setAttribute("aria-busy", "true"); // until there is something to show
  const heading = main.querySelector("h1");
  document.title = `${heading.textContent} · QUEEN`;
  heading.focus({ preventScroll: true });
  scrollTo(0, 0);
  ask();
}

/** Ask for everything shown, and again a while later; longer after failures. */
async function ask() {
  clearTimeout(timer);
  if (!hasKey()) return;
  const mine = ++round;
  const shown = view;
  try {
    const overview = await get("overview");
    if (mine !== round) return;
    drawHeader(overview);
    await shown?.refresh(overview);
    if (mine !== round) return;
    main.removeAttribute("aria-busy");
    failures = 0;
    lastAnswer = Date.now() / 1000;
    byId("banner").hidden = true;
  } catch (error) {
    if (mine !== round) return;
    if (error.status === 401 || error.status === 403) return lock(wrongKey(error));
    failures += 1;
    showBanner(error);
    if (!(error instanceof ApiError)) throw error; // a fault of this page: it does not ask again by itself
  }
  if (!document.hidden) timer = setTimeout(ask, wait());
}

const wait = () => Math.min(SLOWEST, EVERY * 2 ** Math.max(0, failures - 1));

function showBanner(error) {
  const isOwn = !(error instanceof ApiError);
  const then = isOwn ? " Load this page again." : ` Trying again in ${Math.round(wait() / 1000)} s.`;
  const since = lastAnswer ? [" What you see is from ", when(lastAnswer), "."] : [];
  byId("banner-text").replaceChildren(`▲ ${isOwn ? `This page failed: ${error.message}.` : error.message}`, ...since, then);
  byId("banner").hidden = false;
  if (error.status === 0) drawReady("warn", "▲", "No answer");
}

const drawReady = (...state) => byId("ready").replaceWith(Object.assign(badge(...state), { id: "ready" }));

function drawHeader({ bundle, server, totals }) {
  byId("model").textContent = `${bundle.model} · policy ${bundle.policy}${bundle.observe ? " (observing)" : ""}`;
  if (server.ready) drawReady("good", "●", "Ready");
  else drawReady("bad", "▲", "Not ready");
  const unseen = byId("unseen");
  unseen.hidden = !totals.unacknowledged;
  swap(unseen, count(totals.unacknowledged ?? 0), make("span", { class: "unseen" }, " open"));
}

const wrongKey = (error) =>
  error.status === 403
    ? "This key is no admin key. Make one with: queen keys new NAME --admin"
    : "The server does not know this key, or it was revoked. Make another with: queen keys new NAME --admin";

function lock(why = "") {
  dropKey();
  clearTimeout(timer);
  round += 1;
  leave();
  showLogin(why);
}

/** Close the view, and what is open above it. */
function leave() {
  hide();
  byId("confirm").close();
  view?.close();
  view = null;
}

function showLogin(why = "") {
  byId("header").hidden = true;
  byId("banner").hidden = true;
  main.removeAttribute("aria-busy");
  document.title = "QUEEN dashboard";
  const field = make("input", { id: "key", type: "password", required: true, autocomplete: "off", spellcheck: "false", autocapitalize: "none", "aria-describedby": "key-error" });
  const keep = make("input", { id: "keep", type: "checkbox" });
  const error = make("p", { id: "key-error", class: "result bad", role: "alert" }, why);
  const button = make("button", { class: "primary" }, "Open");
  const form = make(
    "form",
    { class: "card login", novalidate: true },
    make("img", { src: "dashboard/icon.svg", alt: "", width: 44, height: 44 }),
    make("h1", {}, "QUEEN dashboard"),
    make("label", { for: "key" }, "Admin key"),
    field,
    make("div", { class: "check" }, keep, make("label", { for: "keep" }, "Keep the key until this tab is closed")),
    button,
    error,
    make("p", { class: "hint" }, "The key is sent to this server alone, in a header. To make one: ", make("code", {}, "queen keys new NAME --admin")),
  );
  form.onsubmit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    error.textContent = "";
    try {
      setKey(field.value.trim(), keep.checked);
      await get("overview");
      open();
    } catch (problem) {
      dropKey();
      if (!(problem instanceof ApiError)) throw problem;
      error.textContent = problem.status === 401 || problem.status === 403 ? wrongKey(problem) : problem.message;
      field.setAttribute("aria-invalid", "true");
      button.disabled = false;
      field.focus();
    }
  };
  main.replaceChildren(form);
  field.focus();
}

byId("times").replaceChildren(zoneChoice() ?? "");
byId("lock").onclick = () => lock();
byId("retry").onclick = ask;
byId("skip").onclick = (event) => {
  event.preventDefault();
  main.focus();
};
addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
open();
