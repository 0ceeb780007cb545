// The 2-D map of one class: its disc, and the points that a client has been answered about, each with its radius.

import { count, make, onTheme, plural, small, token } from "./dom.js";

export class ClassMap {
  constructor() {
    this.canvas = make("canvas", { class: "map", role: "img", "aria-label": "No class chosen" });
    this.caption = make("figcaption", { class: "hint" });
    this.node = make("figure", {}, this.canvas, this.caption);
    this.found = { points: [], radius: 0 };
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.canvas);
    this.stop = onTheme(() => this.draw());
  }

  /** `found`: points relative to the disc, their radius and how many there are; `name` of the class. */
  show(found, name) {
    this.found = found;
    const text = found.note ?? describe(found, name);
    this.canvas.hidden = Boolean(found.note); // an empty disc would say that nothing was seen
    this.canvas.setAttribute("aria-label", `Map. ${text}`);
    this.caption.textContent = text;
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio;
    this.canvas.width = this.canvas.height = Math.round(width * ratio);
    const pen = this.canvas.getContext("2d");
    const unit = (width * ratio) / 2.2;
    pen.translate((width * ratio) / 2, (width * ratio) / 2);
    const circle = (x, y, radius) => {
      pen.beginPath();
      pen.arc(x * unit, -y * unit, radius * unit, 0, 2 * Math.PI);
    };
    pen.fillStyle = token("--disc");
    circle(0, 0, 1);
    pen.fill();
    pen.strokeStyle = token("--grid");
    pen.lineWidth = ratio;
    for (const [dx, dy] of [[1, 0], [0, 1]]) {
      pen.beginPath();
      pen.moveTo(-dx * unit, -dy * unit);
      pen.lineTo(dx * unit, dy * unit);
      pen.stroke();
    }
    circle(0, 0, 0.5);
    pen.stroke();
    pen.save();
    circle(0, 0, 1);
    pen.clip();
    pen.fillStyle = token("--fresh");
    pen.globalAlpha = 0.22;
    for (const [x, y] of this.found.points) {
      circle(x, y, this.found.radius);
      pen.fill();
    }
    pen.restore();
    pen.fillStyle = token("--fresh");
    const dot = Math.max(1.2 * ratio, Math.min(3 * ratio, (this.found.radius * unit) / 3)) / unit;
    for (const [x, y] of this.found.points) {
      circle(x, y, dot);
      pen.fill();
    }
    pen.strokeStyle = token("--text");
    pen.lineWidth = 1.5 * ratio;
    circle(0, 0, 1);
    pen.stroke();
  }

  close() {
    this.sizes.disconnect();
    this.stop();
  }
}

function describe({ points, radius, total }, name) {
  if (!points.length) return `Class ${name}: no recorded points.`;
  const inner = points.filter(([x, y]) => x * x + y * y < 0.25).length;
  const shown = points.length < total ? `the newest ${count(points.length)} of ` : "";
  return (
    `Class ${name}: ${shown}${plural(total, "recorded point")} in the disc, ${count(inner)} within half its radius. ` +
    `Each covers a radius of ${small(radius)}; the disc has radius 1.`
  );
}
