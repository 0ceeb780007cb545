// A time series on uPlot with a legend in words: every line has a name, a dash pattern and its value as text.

import { make, onTheme, small, token } from "./dom.js";
import { clock, onZone, zone } from "./time.js";
import { word } from "./words.js";

const HEIGHT = 180;

/** The line as it is drawn, so that the legend can be read without colours. */
function swatch(line) {
  const canvas = make("canvas", { class: "swatch", width: 44, height: 20, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  const colour = token(line.colour);
  if (line.fill) {
    pen.globalAlpha = 0.35;
    pen.fillStyle = colour;
    pen.fillRect(0, 10, 44, 10);
    pen.globalAlpha = 1;
  }
  pen.strokeStyle = colour;
  pen.lineWidth = 4;
  pen.setLineDash((line.dash ?? []).map((n) => 2 * n));
  pen.beginPath();
  pen.moveTo(0, 10);
  pen.lineTo(44, 10);
  pen.stroke();
  return canvas;
}

export class Chart {
  /** `lines`: {name, colour (a CSS variable), dash, fill}; with `stacked` the first line lies at the bottom. `about`: the
   * word that explains it. */
  constructor(title, unit, lines, { stacked = false, log = false, about }) {
    Object.assign(this, { title, lines, stacked, log, plot: null, data: null });
    this.box = make("div", { class: "plot", role: "img", "aria-label": `${title}: not known yet` });
    this.values = lines.map(() => make("span", { class: "number" }, "–"));
    this.swatches = lines.map(() => make("span"));
    this.at = make("span", { class: "at" });
    const legend = lines.map((line, i) => make("li", {}, this.swatches[i], line.name, " ", this.values[i]));
    this.node = make(
      "section",
      { class: "card chart" },
      make("div", { class: "head" }, make("h2", {}, word(about, title)), make("span", { class: "unit" }, unit), this.at),
      this.box,
      make("ul", { class: "legend" }, ...legend),
    );
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.box);
    const stops = [onTheme(() => this.draw()), onZone(() => (this.draw(), this.tell(null)))];
    this.stop = () => stops.forEach((stop) => stop());
  }

  /** `columns`: one list of numbers a line, null where nothing is known: there the line has a gap. */
  update(times, columns, summary) {
    this.columns = columns;
    this.data = [times, ...(this.stacked ? stack(columns) : columns)];
    this.box.setAttribute("aria-label", `${this.title}: ${summary}`);
    if (this.plot) this.plot.setData(this.data);
    else this.draw();
    this.tell(null);
  }

  resize() {
    if (this.plot && this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    this.lines.forEach((line, i) => this.swatches[i].replaceChildren(swatch(line)));
    if (!this.data || !this.box.clientWidth) return;
    const font = `12px ${token("--font")}`;
    const axis = { stroke: token("--muted"), font, ticks: { show: false } };
    const decades = (_, ticks) => ticks.map((n) => (Number.isInteger(Math.log10(n)) ? n : null));
    const grid = { stroke: token("--grid"), width: 1, ...(this.log && { filter: decades }) };
    const series = this.lines.map((line) => ({
      stroke: token(line.colour),
      width: 1.5,
      dash: line.dash,
      fill: line.fill ? mix(token(line.colour), token("--card")) : undefined,
      points: { show: true, size: 4, filter: (plot, i) => alone(plot.data[i]) },
      spanGaps: false,
    }));
    this.plot = new uPlot(
      {
        width: this.box.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        padding: [10, 24, 0, 0],
        cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
        scales: { x: { time: true }, y: this.log ? { distr: 3, range: decadesAround } : { range: (_, low, high) => [0, Math.max(1, high * 1.08)] } },
        axes: [
          { ...axis, grid: { show: false }, size: 26, gap: 8, space: roomOfTime, values: (_, ticks) => times(ticks) },
          { ...axis, grid, size: 46, gap: 8, space: 36, values: (_, ticks) => ticks.map((n) => (n === null ? "" : small(n))) },
        ],
        series: [{}, ...(this.stacked ? series.reverse() : series)],
        hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx)] },
      },
      this.data,
      this.box,
    );
  }

  /** Write the values at an index, or the newest, beside the names. */
  tell(index) {
    if (!this.data) return;
    const last = this.data[0].length - 1;
    const at = index ?? last;
    const date = new Date(1000 * this.data[0][at]);
    this.at.textContent = index == null ? `times in ${zone(date)}` : `${clock(date)} ${zone(date)}`;
    this.columns.forEach((column, i) => {
      this.values[i].textContent = column[at] == null ? "–" : small(column[at]);
    });
  }

  close() {
    this.sizes.disconnect();
    this.stop();
    this.plot?.destroy();
  }
}

/** The places of values without a neighbour, of which a line shows nothing. */
const alone = (values) =>
  values.flatMap((value, i) => (value != null && values[i - 1] == null && values[i + 1] == null ? [i] : []));

/** The range of a logarithmic axis; it has one too where there is nothing to draw. */
const decadesAround = (_, low, high) => (low == null ? [1, 100] : uPlot.rangeLog(low, high, 10, false));

/** Pixels for a tick of the time axis; less where a minute is too narrow for a tick that tells seconds. */
const roomOfTime = (plot, axis, low, high, width) => ((60 * width) / (high - low) < 76 ? 48 : 76);

/** Ticks of the time axis, with seconds only where they tell something. */
function times(ticks) {
  const length = ticks.every((t) => t % 60 === 0) ? 5 : 8;
  return ticks.map((t) => clock(new Date(1000 * t)).slice(0, length));
}

/** Running sums, the highest first, so that each area is painted over by those below it. */
function stack(columns) {
  const sums = [];
  columns.forEach((column, i) => sums.push(i ? column.map((n, k) => (n === null ? null : n + sums[i - 1][k])) : column));
  return sums.reverse();
}

/** A third of one colour over another, opaque; both as #rrggbb. */
function mix(colour, ground) {
  const parts = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const under = parts(ground);
  return `rgb(${parts(colour).map((n, i) => Math.round(0.35 * n + 0.65 * under[i])).join(",")})`;
}
