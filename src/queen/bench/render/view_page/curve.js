// How good the copy was while it trained, drawn as wide as there is room.

const LINES = [["accuracy", "line thief"], ["agreement", "line agree"]];

/** A figure of accuracy and agreement over epochs, with the victim and chance; a table of the numbers below it. */
function curve(epochs, victim, chance) {
  if (!epochs?.epoch?.length) return make("p", { class: "soft" }, "No curve: nothing was trained, or no epoch was recorded.");
  const last = epochs.epoch.length - 1;
  const label =
    `Accuracy of the copy over ${count(epochs.epoch[last])} epochs: ${percent(epochs.accuracy[0])} first, ` +
    `${percent(epochs.accuracy[last])} last; the victim has ${percent(victim)}, guessing one class ${percent(chance)}.`;
  const holder = make("div", { class: "curve" });
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.round(holder.clientWidth);
    if (width && width !== drawn) holder.replaceChildren(drawCurve(epochs, victim, chance, (drawn = width), label));
  }).observe(holder);
  const key = make(
    "figcaption", {},
    [...LINES, ["upper: the victim; lower: guessing one class", "bound"]].map(([name, look]) => {
      const sample = shape("line", { class: look, x1: 0, x2: 28, y1: 5, y2: 5 });
      return make("span", { class: "key" }, shape("svg", { width: 28, height: 10, "aria-hidden": "true" }, sample), ` ${name}`);
    }),
  );
  return make("figure", {}, holder, key, numbers(epochs));
}

function drawCurve(epochs, victim, chance, width, label) {
  const height = 280, left = 44, right = 10, top = 10, bottom = 40;
  const [first, end] = [epochs.epoch[0], epochs.epoch.at(-1)];
  const x = (epoch) => left + ((width - left - right) * (end === first ? 0.5 : (epoch - first) / (end - first)));
  const y = (share) => top + (height - top - bottom) * (1 - share);
  const across = (look, share) => shape("line", { class: look, x1: left, x2: width - right, y1: y(share), y2: y(share) });
  const grid = [0, 0.25, 0.5, 0.75, 1].map((share) => [
    across("rule", share),
    shape("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`),
  ]);
  const ticks = [...new Set([first, epochs.epoch[Math.floor(epochs.epoch.length / 2)], end])].map((epoch) => {
    const anchor = end === first ? "middle" : epoch === first ? "start" : epoch === end ? "end" : "middle";
    return shape("text", { x: x(epoch), y: height - bottom + 18, "text-anchor": anchor }, whole.format(epoch));
  });
  const bounds = [victim, chance].filter(isNumber).map((share) => across("bound", share));
  const lines = LINES.filter(([name]) => Array.isArray(epochs[name])).flatMap(([name, look]) => {
    const points = epochs[name].map((share, i) => [x(epochs.epoch[i]), y(share)]);
    const dots = points.length === 1 && shape("circle", { class: look, cx: points[0][0], cy: points[0][1], r: 4 });
    return [shape("polyline", { class: look, points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ") }), dots];
  });
  const axis = shape("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "epoch");
  return shape("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}`, width, height }, grid, bounds, lines, ticks, axis);
}

function numbers(epochs) {
  const names = ["epoch", ...LINES.map(([name]) => name)].filter((name) => Array.isArray(epochs[name]));
  const rows = epochs.epoch.map((epoch, i) =>
    make("tr", {}, names.map((name) => make("td", {}, name === "epoch" ? count(epoch) : percent(epochs[name][i])))),
  );
  const head = make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col" }, name))));
  return make("details", {}, make("summary", {}, "Numbers of every epoch"), make("table", { class: "plain" }, head, make("tbody", {}, rows)));
}
