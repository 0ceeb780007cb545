// The budget of a client: what is left of it, when it renews, and a form that gives it one of its own.

import { count, make, onChange, small, swap } from "./dom.js";
import { when } from "./time.js";
import { word } from "./words.js";

const HINT = "A plain number is for life. With a period (hour, day, week or month) it renews: 2000/day, 0.2/week. An empty field means the usual limit.";

/** The card's content; `save` is called with {extra_answers, threshold}, null for the usual limit. */
export function budgetForm(save) {
  const facts = make("dl", { class: "facts" });
  const [extra, threshold] = [field("extra", "Extra answers", "2000/day"), field("threshold", "Threshold of a class", "0.2/week")];
  const submit = make("button", { type: "submit", class: "primary", "data-key": "save budget" }, "Set budget");
  const usual = make("button", { type: "button", "data-key": "usual budget" }, "Usual budget");
  const buttons = make("div", { class: "buttons" }, submit, usual);
  const form = make("form", { class: "budget" }, extra.node, threshold.node, make("p", { class: "hint" }, HINT), buttons);
  form.onsubmit = (event) => {
    event.preventDefault();
    save({ extra_answers: extra.read(), threshold: threshold.read() });
  };
  usual.onclick = () => save({ extra_answers: null, threshold: null });
  const drawFacts = onChange((rows) => swap(facts, ...rows.map(fact)));
  const drawOwn = onChange((own) => {
    extra.write(own?.extra_answers);
    threshold.write(own?.threshold);
    usual.disabled = own === null;
  });
  const draw = (found) => {
    extra.node.hidden = found.bar === null; // only the sentinel counts extra answers
    drawFacts([
      ...(found.bar === null ? [] : [["extra", "Extra answers", extraText(found), found.extra_renews]]),
      found.classes_end
        ? ["threshold", "Each class", `${allowanceText(found.class_allowance)} of its disc may be seen`, found.classes_renew]
        : ["threshold", "Each class", "is never spent: answers are counted"],
    ]);
    drawOwn(found.budget);
  };
  return { node: make("div", {}, facts, form), draw };
}

/** "2,000 per day" for "2000/day". */
export function allowanceText(allowance) {
  const [amount, period] = String(allowance).split("/");
  return period ? `${amountText(Number(amount))} per ${period}` : amountText(Number(amount));
}

/** A whole number to its last digit, unless it is in the millions; a share in short. */
const amountText = (n) => (Number.isInteger(n) && n < 1e6 ? count(n) : small(n));

/** How many extra answers are used and left. */
export const extraText = (found) =>
  `${count(found.extra_used)} of ${allowanceText(found.extra_allowance)} used, ${amountText(found.extra_left)} left`;

function fact([about, name, text, renews]) {
  const outlook = renews === undefined ? [] : renews === null ? ["; for life"] : ["; renews ", when(renews)];
  return make("div", {}, make("dt", {}, word(about, name)), make("dd", {}, text, ...outlook));
}

function field(id, label, example) {
  const input = make("input", { id: `budget-${id}`, type: "text", placeholder: `for example ${example}`, autocomplete: "off" });
  const read = () => {
    const text = input.value.trim();
    return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  };
  const write = (value) => (input.value = value ?? "");
  return { node: make("div", { class: "field" }, make("label", { for: input.id }, label), input), read, write };
}
