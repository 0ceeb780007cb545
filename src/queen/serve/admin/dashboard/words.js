// The words that an operator cannot know: what they mean, and buttons that say so. They work by mouse, keyboard and touch.

import { make } from "./dom.js";

// A word's name, and sentences about it, a paragraph each.
export const WORDS = {
  wealth: ["Wealth", "The evidence that a client is copying the model. Each new picture is compared with the images that clients usually send. A picture that looks foreign raises the wealth, a usual one lowers it. The same picture sent again changes nothing.",
    "Honest clients stay around 1 or below. A client that reaches the bar is accused.",
    "The strip beside the number counts powers of ten. If the bar is 10,000, the strip is half full at 100, not at 5,000."],
  bar: ["The bar", "The wealth at which a client is accused. It is computed, not chosen: it is so high that honest clients are accused no more often than alpha allows. The page Policy shows both.",
    "It is the same for all clients, and 16 times as high for a group. Each recalibration raises it, because each one is another chance to accuse somebody wrongly. The wealth of clients does not rise with it."],
  accused: ["Accused", "The client's wealth has reached the bar: its pictures are not like the images the server was calibrated on. From then on, until somebody pardons it, the client gets what the page Policy says under “Accused clients get”.",
    "This is evidence, but no proof of bad intent: a client with a new or a broken camera is accused too. Ask the owner of the key. Then pardon the client, put it on the allow-list, or revoke its key."],
  "allow-list": ["Allow-listed", "The client always gets honest answers, whatever it asks and however much. It cannot be accused, and it has no budget. Nothing protects the model from it, so allow only clients to whom you would give the model itself."],
  trusted: ["Trusted clients", "Clients whose recorded traffic was used for the calibration (queen calibrate --clients). The bar is above the highest wealth that any of them reached.",
    "They are not on the allow-list: they are watched like everybody else."],
  coverage: ["Coverage", "How much of a class a client has been shown. Each class is a disc on the map. Every honest answer inside the disc uncovers a small circle. The coverage is the area of all these circles together.",
    "It is shown in percent of what the client may see of the class (the threshold). From 80 % the class is low. Above 100 % it is spent: new pictures of it get what the page Policy says under “Clients without budget get”. The page Events names the share of the whole disc instead, as it was at that moment.",
    "Where the threshold is so high that no class can reach it, only answers are counted, and there is no percentage."],
  extra: ["Extra answers", "Honest answers that are counted one by one: those to pictures outside the disc of their class, and those to pictures close to one for which the client already got an answer. The very same picture again is free.",
    "From 80 % the budget is low. When all of them are used, the budget is spent: the client gets what the page Policy says under “Clients without budget get”, until the budget renews or you give the client more on its page."],
  group: ["Group", "Clients that belong together, such as the keys of one tenant or of one network. The group has its own wealth and its own budget, besides those of its members. So a thief with many accounts does not get many budgets.",
    "A group is accused at 16 times the bar of a client. This is only reported, unless the page Policy says that the alarm has consequences."],
  state: ["State", "Clear: nothing to do. Accused: its wealth has reached the bar. Allow-listed: always answered, never accused. Budget low: 80 % of its extra answers are used; budget spent: all of them. Class low: it has seen 80 % of what it may see of a class; class spent: all of it."],
  notices: ["Open notices", "Accusations, and budgets that are low or spent, which nobody has marked as seen yet. Marking a notice as seen changes nothing else."],
  evidence: ["Evidence", "The state of the client at the moment of the event: its wealth, or how much of the disc of a class it had seen, and how many queries it had sent."],
  queries: ["Queries", "One picture, or one row of a table, is one query. One request may carry many queries. All are counted, with or without an answer."],
  requests: ["Requests", "Requests per second, over the last ten seconds, failed ones included. One request may carry many queries."],
  latency: ["Latency", "The time from a request to its answer. p50: half of the requests were faster. p99: 99 of 100 requests were faster. Both may be wrong by an eighth. The line has a gap while nobody asks."],
  spent: ["Out of budget", "Clients and groups that have used all their extra answers, or have seen all they may see of at least one class. The page Policy says what they get then."],
  verdicts: ["Verdicts", "How the queries were judged. C, fresh: new, and inside the disc of its class. D, repeat: close to a picture for which the client already got an answer. A, outside: not in the disc of its class. B, spent: new, but the client may see no more of this class.",
    "The areas lie on top of each other, so the upper edge shows all queries. Where nobody asked, the line is at zero. A gap is a time of which the server knows nothing, such as before it started."],
  traffic: ["Traffic", "Refused queries got no answer, because the budget of the client is spent or because the client is accused. Errors are requests that failed: malformed ones and failures of the server.",
    "Where nobody asked, the line is at zero. A gap is a time of which the server knows nothing, such as before it started."],
  map: ["Map of the class", "On this map the class is a disc of radius 1, and usual images lie near its middle. Each dot is a query that got an honest answer. The circle around the dot is what that answer uncovered."],
  alpha: ["Alpha", "The share of honest clients that may ever be accused wrongly: if alpha is 0.001, at most 10 of 10,000 on average. This holds for clients whose images are like the calibration images. The certificate on the page Policy says for whom it does not hold."],
  scores: ["What is measured", "How foreign a picture looks to the model. energy: how sure the model is. distance: how far it lies from the middle of its class on the map. knn: how far it is from the training images. confidence: the probability of the best class.",
    "The margin says by how many standard deviations a client's pictures may differ before this counts against the client. A larger margin accuses fewer clients with odd cameras, and fewer patient thieves."],
  threshold: ["Threshold of a class", "How much of the disc of a class one client may see, as a share of the disc's area. It is for life, or it renews with every period."],
  radius: ["Radius of a query", "The size of the circle that one honest answer uncovers; the disc of a class has radius 1."],
  identity: ["Identity", "The first characters of a fingerprint of the fitted model. Servers that share a ledger must show the same."],
};

const box = document.getElementById("explain");
let opener = null; // the button whose word is explained; a view may draw it anew meanwhile
let shown = null; // the word

/** A button with a word's name, or other text, that explains the word. */
export function word(name, text = WORDS[name][0]) {
  const attributes = { type: "button", class: "word", "data-key": `word ${name}`, "aria-haspopup": "dialog" };
  const button = make("button", { ...attributes, "aria-expanded": String(shown === name) }, text);
  button.onclick = () => (shown === name ? hide() : show(button, name));
  return button;
}

/** A line of words, for views where their own places have no room for them. */
export const wordLine = (...names) =>
  make("p", { class: "words" }, make("span", {}, "What it means: "), ...names.flatMap((name, i) => [i > 0 && " · ", word(name)]));

/** Close the explanation; the focus goes back to where it was asked for, unless it has gone elsewhere already. */
export function hide() {
  if (!shown) return;
  const held = box.contains(document.activeElement);
  const again = opener.isConnected ? opener : buttonsOf(shown)[0];
  for (const button of buttonsOf(shown)) button.setAttribute("aria-expanded", "false");
  shown = opener = null;
  box.hidden = true;
  box.replaceChildren();
  if (held) again?.focus({ preventScroll: true });
}

const buttonsOf = (name) => [...document.querySelectorAll(".word")].filter((button) => button.dataset.key === `word ${name}`);

function show(button, name) {
  hide();
  const [title, ...paragraphs] = WORDS[name];
  const close = make("button", { type: "button", class: "small" }, "Close");
  close.onclick = hide;
  box.replaceChildren(make("h2", { id: "explain-title" }, title), ...paragraphs.map((text) => make("p", {}, text)), close);
  box.hidden = false;
  place(button);
  box.focus({ preventScroll: true });
  [opener, shown] = [button, name];
  button.setAttribute("aria-expanded", "true");
}

/** Below the button where there is room, else above it; it stays with the page when that is scrolled. */
function place(button) {
  const [at, own] = [button.getBoundingClientRect(), box.getBoundingClientRect()];
  const left = Math.max(12, Math.min(at.left, document.documentElement.clientWidth - own.width - 12));
  const below = at.bottom + own.height + 18 <= innerHeight || at.top < own.height + 12;
  box.style.left = `${scrollX + left}px`;
  box.style.top = `${scrollY + (below ? at.bottom + 6 : at.top - own.height - 6)}px`;
}

box.onkeydown = (event) => {
  const leaves = event.key === "Tab" && (event.shiftKey ? document.activeElement === box : document.activeElement !== box);
  if (event.key !== "Escape" && !leaves) return;
  event.preventDefault(); // the box is the last thing on the page, but not what comes after the word
  hide();
};
addEventListener("keydown", (event) => event.key === "Escape" && hide());
addEventListener("pointerdown", ({ target }) => {
  if (!box.contains(target) && target.closest?.(".word")?.dataset.key !== `word ${shown}`) hide();
});
