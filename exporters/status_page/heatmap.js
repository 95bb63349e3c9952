// Layers by step as a map of colours. A cell can be read by pointing at it, or with the arrow keys.

// Cividis: reads the same with every kind of colour vision, and in grey.
const CIVIDIS = ["#00224e", "#213d6b", "#4c556b", "#6c6e72", "#8d8878", "#b2a470", "#d9c55c", "#fee838"].map(
  (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const BEYOND = "#d55e00"; // beyond the alarm, not on the scale

function shade(share) {
  const at = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1), low = Math.floor(at), high = Math.min(low + 1, CIVIDIS.length - 1);
  return `rgb(${CIVIDIS[low].map((c, i) => Math.round(c + (at - low) * (CIVIDIS[high][i] - c))).join()})`;
}

// `limit`: name of what is beyond the scale; `turns`: layers take turns within an interval of so many steps.
const SIGNALS = [
  { name: "deviation ratio, forward, largest", column: "deviation_ratio_forward", limit: "deviation_ratio_forward", text: (v) => fixed(v, 2) },
  { name: "deviation ratio, backward, largest", column: "deviation_ratio_backward", limit: "deviation_ratio_backward", text: (v) => fixed(v, 2) },
  { name: "bias, ulp, magnitude", column: "bias_ulp", limit: "bias_ulp", text: (v) => signed(v, 4) },
  { name: "gradient norm", column: "gradient_norm", limit: null, logarithmic: true, text: (v) => number(v, 3) },
  { name: "weights, W1 in an interval, worst tensor", column: "weight_wasserstein", limit: null, logarithmic: true, turns: true, text: (v) => number(v, 3) },
  { name: "effective rank of updates of attention scores", column: "update_effective_rank", limit: null, turns: true, text: (v) => fixed(v, 2) },
];

class HeatMap {
  constructor() {
    this.canvas = byId("heat-map");
    this.signal = byId("heat-signal");
    this.cursor = null;
    for (const [value, { name }] of SIGNALS.entries()) add(this.signal, "option", "", name).value = value;
    this.signal.addEventListener("change", () => this.draw());
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  // `tables`: histories of layers; of one layer on several ranks the largest magnitude is shown.
  update(tables, limits, names, interval) {
    this.interval = interval;
    this.limits = limits;
    this.names = names;
    this.tables = tables;
    byId("heat").hidden = tables.length === 0;
    this.draw();
  }

  // Steps between two sampled ones, or what one point stands for if that is more: else most cells would be empty.
  columnWidth(kind) {
    const width = Math.max(...this.tables.map((t) => t.steps_per_point)), filled = new Set();
    if (kind.turns && finite(this.interval)) return width * Math.ceil(this.interval / width);
    for (const table of this.tables) {
      (table.columns[kind.column] || []).forEach((value, i) => {
        if (finite(value)) filled.add(Math.floor((table.first_step + i * table.steps_per_point) / width));
      });
    }
    const order = [...filled].sort((a, b) => a - b);
    const gap = smallest(order.slice(1).map((at, i) => at - order[i])) ?? 1;
    return width * gap;
  }

  // rows[label][column] = {value, rank}
  build(kind) {
    const width = this.columnWidth(kind);
    const first = Math.floor(Math.min(...this.tables.map((t) => t.first_step)) / width);
    const rows = new Map();
    let last = first;
    for (const table of this.tables) {
      const cells = rows.get(table.layer) || new Map();
      rows.set(table.layer, cells);
      (table.columns[kind.column] || []).forEach((value, i) => {
        const at = Math.floor((table.first_step + i * table.steps_per_point) / width);
        if (!finite(value)) return;
        last = Math.max(last, at);
        const before = cells.get(at);
        if (!before || Math.abs(value) > Math.abs(before.value)) cells.set(at, { value, rank: table.rank });
      });
    }
    const labels = [...rows.keys()].filter((label) => rows.get(label).size > 0).sort();
    return { width, first, columns: last - first + 1, rows, labels };
  }

  draw() {
    if (!this.tables?.length || this.canvas.offsetParent === null) return;
    const kind = SIGNALS[this.signal.value], map = (this.map = this.build(kind));
    const values = map.labels.flatMap((label) => [...map.rows.get(label).values()].map((cell) => Math.abs(cell.value)));
    this.top = kind.limit ? this.limits[kind.limit] ?? largest(values) : largest(values);
    this.bottom = kind.logarithmic ? smallest(values.filter((v) => v > 0)) : 0;
    const height = Math.min(Math.max(640 / Math.max(map.labels.length, 1), 6), 26);
    const ratio = window.devicePixelRatio || 1, wide = this.canvas.clientWidth;
    this.left = 64;
    this.cell = { width: (wide - this.left) / map.columns, height };
    this.canvas.style.height = `${height * map.labels.length + 22}px`;
    this.canvas.width = wide * ratio;
    this.canvas.height = (height * map.labels.length + 22) * ratio;
    const ctx = this.canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.font = "11px system-ui, sans-serif";
    this.paint(ctx, kind);
    this.scale(kind);
    this.tell();
  }

  shadeOf(kind, value) {
    const size = Math.abs(value);
    if (kind.limit && size > this.top) return BEYOND;
    if (!kind.logarithmic) return shade(size / this.top);
    return shade(this.top > this.bottom ? Math.log(size / this.bottom) / Math.log(this.top / this.bottom) : 0.5);
  }

  paint(ctx, kind) {
    const { map, cell, left } = this, every = Math.ceil(13 / cell.height);
    ctx.fillStyle = colour("empty");
    ctx.fillRect(left, 0, map.columns * cell.width, map.labels.length * cell.height);
    map.labels.forEach((label, row) => {
      ctx.fillStyle = colour("quiet");
      ctx.textAlign = "right";
      if (row % every === 0) ctx.fillText(label.slice(-9), left - 6, row * cell.height + Math.min(cell.height, 13) - 2);
      for (const [at, { value }] of map.rows.get(label)) {
        ctx.fillStyle = this.shadeOf(kind, value);
        ctx.fillRect(left + (at - map.first) * cell.width, row * cell.height, Math.max(cell.width - 0.5, 1), cell.height - (cell.height > 8 ? 1 : 0.5));
      }
    });
    ctx.fillStyle = colour("quiet");
    const bottom = map.labels.length * cell.height + 15, end = (map.first + map.columns) * map.width - 1;
    ctx.textAlign = "left";
    ctx.fillText("step " + count(map.first * map.width), left, bottom);
    ctx.textAlign = "right";
    ctx.fillText("step " + count(end), left + map.columns * cell.width, bottom);
    if (!this.cursor) return;
    ctx.strokeStyle = colour("ink");
    ctx.lineWidth = 2;
    ctx.strokeRect(left + this.cursor.column * cell.width, this.cursor.row * cell.height, cell.width, cell.height);
  }

  scale(kind) {
    const parent = byId("heat-scale"), bar = element("canvas");
    bar.width = 128;
    bar.height = 1;
    const ctx = bar.getContext("2d");
    for (let x = 0; x < 128; ++x) {
      ctx.fillStyle = shade(x / 127);
      ctx.fillRect(x, 0, 1, 1);
    }
    parent.replaceChildren(short(this.bottom ?? 0), bar, short(this.top ?? 0));
    if (kind.limit) add(parent, "span", "alarm", "beyond");
  }

  select(row, column) {
    const { map } = this;
    this.cursor = { row: Math.min(Math.max(row, 0), map.labels.length - 1), column: Math.min(Math.max(column, 0), map.columns - 1) };
    this.draw();
  }

  point(event) {
    if (!this.map) return;
    const row = Math.floor(event.offsetY / this.cell.height), column = Math.floor((event.offsetX - this.left) / this.cell.width);
    if (column >= 0 && (row !== this.cursor?.row || column !== this.cursor?.column)) this.select(row, column);
  }

  move(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !this.map) return;
    event.preventDefault();
    const from = this.cursor ?? { row: -1, column: this.map.columns - 1 };
    this.select(from.row + step[0], from.column + step[1]);
  }

  tell() {
    const kind = SIGNALS[this.signal.value], { map, cursor } = this;
    this.canvas.setAttribute("aria-label", `${kind.name} of ${map.labels.length} layers by step; arrow keys read a cell`);
    const label = cursor && map.labels[cursor.row];
    if (!known(label) || !cursor) return;
    const from = (map.first + cursor.column) * map.width, cell = map.rows.get(label).get(map.first + cursor.column);
    const name = this.names.get(label);
    setText(byId("heat-cell"), `layer ${label}${known(name) ? ` (${name})` : ""}, ` +
      (map.width > 1 ? `steps ${count(from)} to ${count(from + map.width - 1)}` : `step ${count(from)}`) + ": " +
      (cell ? `${kind.text(cell.value)}, rank ${cell.rank}` : "not sampled"));
  }
}
