// The words that an operator cannot know: what they mean, and buttons that say so. They work by mouse, keyboard and touch.

import { make } from "./dom.js";

// A word's name, and sentences about it, a paragraph each.
export const WORDS = {
  wealth: ["Wealth", "The evidence that a client is copying the model. Every new picture is a small bet that it looks foreign beside the images your clients usually send: foreign pictures raise the wealth, usual ones lower it. Sending the same picture again changes nothing.",
    "Honest clients stay around 1 or below. Who reaches the bar stands accused.",
    "The strip beside the number counts powers of ten: half full is not half of the bar but its square root, 100 of 10,000."],
  bar: ["The bar", "The wealth at which a client stands accused. Nobody chooses it: it is as high as it must be for an honest client to be accused no more often than alpha allows (Policy shows both).",
    "It is the same for all clients, and 16 times as high for a group. It rises with every recalibration that this ledger has met, since each is one more chance to accuse somebody wrongly; nobody's wealth rises with it."],
  accused: ["Accused", "The client's wealth has reached the bar: its pictures are not like the images the server was calibrated on. From that query on it gets what Policy says under “Accused clients get”, until somebody pardons it.",
    "This is evidence, not proof of bad intent: a new camera or a broken one is accused too. Ask whose key it is. Then pardon it, put it on the allow-list, or revoke the key."],
  "allow-list": ["Allow-listed", "The client is always answered honestly, whatever it asks and however much: it can neither be accused nor run out of budget. Nothing protects the model from it, so put only clients there that you trust with the model itself."],
  trusted: ["Trusted clients", "Clients whose recorded traffic was replayed when the server was calibrated (queen calibrate --clients): the bar lies above all that any of them reached.",
    "That is not the allow-list: they are watched like everybody else."],
  coverage: ["Coverage", "How much of a class a client has been shown. Each class is a disc on the map, and every honest answer inside it uncovers a small circle around its place; the coverage is the area of all these circles.",
    "In percent of what the client may see of a class (the threshold): at 80 % the class is low, beyond 100 % it is spent, and new pictures of it get what Policy says under “Clients without budget get”. Events name the share of the whole disc instead, as it was then.",
    "With limits that no class can reach, answers are counted alone, and there is no percentage."],
  extra: ["Extra answers", "The honest answers that are counted one by one: for pictures outside the disc of their class, or close to one the client was already shown. An exact repeat is free.",
    "At 80 % the budget is low. When all are used it is spent, and the client gets what Policy says under “Clients without budget get”, until the budget renews or you give it more on its page."],
  group: ["Group", "Clients that belong together, such as the keys of one tenant or of one network. The group has wealth and a budget of its own beside those of its members, so that a thief with many accounts does not get many budgets.",
    "A group is accused at 16 times a client's bar. Unless Policy says that its alarm has consequences, that is only reported."],
  state: ["State", "Clear: nothing to do. Accused: its wealth has reached the bar. Allow-listed: always answered, never accused. Budget low or spent: 80 % or all of its extra answers are used. Class low or spent: a class is uncovered to 80 % of the threshold, or beyond it."],
  notices: ["Open notices", "What the server noted by itself and nobody has marked as seen: accusations, and budgets that are low or spent. Marking one as seen changes nothing else."],
  evidence: ["Evidence", "What the event rests on, as it was at that moment: the client's wealth, or how much of the disc of a class it had seen, and how many queries it had sent."],
  queries: ["Queries", "One picture, or one row of a table, is one query; a request may carry many. All are counted, answered or not."],
  requests: ["Requests", "Calls of the server that ended in the last ten seconds, per second, failed ones included. One request may carry many queries."],
  latency: ["Latency", "The time from a request to its answer. p50: half of the requests were faster. p99: 99 of 100 were. Both are right to within an eighth. There is no point where nobody asked."],
  spent: ["Out of budget", "Clients and groups whose extra answers are all used, or that have seen all they may of at least one class. What they get then stands under Policy."],
  verdicts: ["Verdicts", "How the queries were judged. C, fresh: new, inside the disc of its class. D, repeat: close to something the client was already shown. A, outside: not in the disc of its class. B, spent: new, but of a class of which the client may see no more.",
    "The areas lie on top of each other: the upper edge is all queries. A gap is a time of which this server knows nothing, such as before it started; where nobody asked, the line is at zero."],
  traffic: ["Traffic", "Refused queries got no answer, for want of budget or because their sender stands accused. Errors are requests that failed: malformed ones and failures of the server.",
    "A gap is a time of which this server knows nothing, such as before it started; where nobody asked, the line is at zero."],
  map: ["Map of the class", "The plane on which the class is a disc of radius 1, with usual images near its middle. A dot is a place of which the client got an honest answer, and the circle around it what that answer uncovered."],
  alpha: ["Alpha", "How often an honest client may be accused wrongly, ever: of 10,000 of them at most 10 on average, if alpha is 0.001. It holds for clients whose images are like the calibration images; the certificate below says who is not meant."],
  scores: ["What is measured", "How foreign a picture looks to the model. energy: how sure the model is. distance: how far it lies from the middle of its class on the map. knn: how far it is from the training images. confidence: the probability of the best class.",
    "The margin says how many standard deviations a client's pictures may differ before that counts against it; more spares odd cameras, and patient thieves."],
  threshold: ["Threshold of a class", "How much of the disc of a class one client may see, as a share of its area; for life, or renewed with every period."],
  radius: ["Radius of a query", "The size of the circle that one honest answer uncovers; the disc of a class has radius 1."],
  identity: ["Identity", "The first digits of a fingerprint of all that was fitted. Servers that share a ledger must show the same."],
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
  box.hidePopover();
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
  box.showPopover();
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
