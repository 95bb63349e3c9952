// The status page's heat map: a row for each layer, columns of steps, a colour for the value of the chosen signal. The
// mouse or the arrow keys select a cell, whose value is shown as text. Helpers such as finite() are in format.js.

// The Cividis colour map: it is readable with every kind of colour blindness and in greyscale.
const CIVIDIS = ["#00224e", "#213d6b", "#4c556b", "#6c6e72", "#8d8878", "#b2a470", "#d9c55c", "#fee838"].map(
  (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const BEYOND = "#d55e00"; // colour of cells above the limit, which are also striped
const LEFT = 76, BELOW = 24; // pixels left of the cells for names of layers, and below them for step numbers

// The colour at `share` of the scale, 0 to 1, interpolated between the two nearest colours of CIVIDIS.
function shade(share) {
  const index = Math.min(Math.max(share || 0, 0), 1) * (CIVIDIS.length - 1), low = Math.floor(index), high = Math.min(low + 1, CIVIDIS.length - 1);
  return `rgb(${CIVIDIS[low].map((c, i) => Math.round(c + (index - low) * (CIVIDIS[high][i] - c))).join()})`;
}

// A pattern of lines that rise to the right if `slant` is positive, else fall. It marks cells without a value and cells
// above the limit, so that colour is not their only mark.
function striped(back, front, period, slant) {
  const tile = element("canvas");
  tile.width = tile.height = period;
  const ctx = tile.getContext("2d");
  ctx.fillStyle = back;
  ctx.fillRect(0, 0, period, period);
  ctx.strokeStyle = front;
  ctx.lineWidth = 1.2;
  ctx.beginPath();
  for (const shift of [-period, 0, period]) {
    ctx.moveTo(shift, slant > 0 ? period : 0);
    ctx.lineTo(shift + period, slant > 0 ? 0 : period);
  }
  ctx.stroke();
  return ctx.createPattern(tile, "repeat");
}

// `column`: the column of the history tables that has the values. `limit`: name of the alarm threshold, at which the
// colours end (null: they end at the largest value). A cell above the limit is striped; an alarm needs several slices
// above the limit. `isPooled`: the limit applies only to layers with enough slices for a z (mean bias / its standard
// error). `logarithmic`: the colours follow the logarithm of the value. `inTurns`: the layers are measured in turns, each
// once per weight interval. Below, `kind` is an entry of SIGNALS.
const SIGNALS = [
  { name: "error ratio, forward, largest", column: "deviation_ratio_forward", limit: "deviation_ratio_forward", text: (v) => fixed(v, 2) },
  { name: "error ratio, backward, largest", column: "deviation_ratio_backward", limit: "deviation_ratio_backward", text: (v) => fixed(v, 2) },
  { name: "bias, ulp, magnitude", column: "bias_ulp", limit: "bias_ulp", isPooled: true, text: (v) => signed(v, 4) },
  { name: "gradient norm", column: "gradient_norm", limit: null, logarithmic: true, text: (v) => number(v, 3) },
  { name: "weights, W1 in an interval, worst tensor", column: "weight_wasserstein", limit: null, logarithmic: true, inTurns: true, text: (v) => number(v, 3) },
];

class HeatMap {
  constructor() {
    this.canvas = byId("heat-map");
    this.signal = byId("heat-signal"); // the <select>, whose value is an index of SIGNALS
    this.cursor = null; // the selected cell, {row, column}, counted from the first row and column that are shown
    for (const [value, { name }] of SIGNALS.entries()) add(this.signal, "option", "", name).value = value;
    this.signal.addEventListener("change", () => {
      this.isChosen = true; // by the user
      this.draw();
    });
    this.canvas.addEventListener("mousemove", (event) => this.selectAtMouse(event));
    this.canvas.addEventListener("keydown", (event) => this.selectByKey(event));
    this.canvas.setAttribute("aria-roledescription", "heat map");
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  clearCursor() { // the page shows another run or other ranks from now on
    this.cursor = null;
    setText(byId("heat-cell"), "");
  }

  // Selects the signal of an alarm (if any), until the user selects one. `alarm.of`: what exceeded its limit.
  suggest(alarm) {
    const column = alarm && (alarm.of === "bias" ? "bias_ulp" : alarm.of === "fused_ratio" ? "deviation_ratio_" + alarm.pass : null);
    const index = SIGNALS.findIndex((signal) => signal.column === column);
    if (!this.isChosen && index >= 0) this.signal.value = index;
  }

  // `tables`: histories, one for each layer of each rank: columns[name][i] is the value from step first_step + i *
  // steps_per_point on. `limits`: the alarm thresholds by name. `names`: the module's name of each layer. `pooled`: the
  // set of "RANK LAYER" whose bias has a z. `interval`: steps of the weight interval, if known.
  update(tables, limits, names, pooled, interval, lossEvents) {
    this.pooled = pooled;
    this.lossEvents = lossEvents;
    this.interval = interval;
    this.limits = limits;
    this.names = names;
    this.tables = tables;
    for (const part of ["heat-map", "heat-scale", "heat-cell"]) byId(part).hidden = tables.length === 0;
    setText(byId("heat-help"), tables.length ? "Point at a cell, or move with the arrow keys, Home, End, Page Up and Page Down." : "Fills with the first attention slice of a layer that is judged.");
    this.draw();
  }

  // Steps per column of the map, a multiple of the largest steps_per_point. It is at least the weight interval if the
  // signal has `inTurns`, else the smallest distance of two points with a value, so that most cells have a value.
  columnWidth(kind) {
    const width = Math.max(...this.tables.map((t) => t.steps_per_point)), filled = new Set();
    if (kind.inTurns && finite(this.interval)) return width * Math.ceil(this.interval / width);
    for (const table of this.tables) {
      (table.columns[kind.column] || []).forEach((value, i) => {
        if (finite(value)) filled.add(Math.floor((table.first_step + i * table.steps_per_point) / width));
      });
    }
    const ascending = [...filled].sort((a, b) => a - b);
    const gap = smallest(ascending.slice(1).map((point, i) => point - ascending[i])) ?? 1;
    return width * gap;
  }

  // The cells of the map: rows.get(label).get(column) is {value, rank}, the value of largest magnitude and its rank.
  // Column n begins at step n * width; `first` is the first column that is shown. `labels`: layers with a value.
  build(kind) {
    const width = this.columnWidth(kind);
    const first = Math.floor(Math.min(...this.tables.map((t) => t.first_step)) / width);
    const rows = new Map();
    let last = first;
    for (const table of this.tables) {
      const cells = rows.get(table.layer) || new Map();
      rows.set(table.layer, cells);
      (table.columns[kind.column] || []).forEach((value, i) => {
        const column = Math.floor((table.first_step + i * table.steps_per_point) / width);
        if (!finite(value)) return;
        last = Math.max(last, column);
        const largestYet = cells.get(column);
        if (!largestYet || Math.abs(value) > Math.abs(largestYet.value)) cells.set(column, { value, rank: table.rank });
      });
    }
    const labels = [...rows.keys()].filter((label) => rows.get(label).size > 0).sort();
    return { width, first, columns: last - first + 1, rows, labels };
  }

  draw() {
    if (!this.tables?.length || this.canvas.offsetParent === null) return; // without offsetParent: not visible
    const kind = SIGNALS[this.signal.value], map = this.build(kind);
    this.map = map;
    const values = map.labels.flatMap((label) => [...map.rows.get(label).values()].map((cell) => Math.abs(cell.value)));
    // scaleMax, scaleMin: the values at the two ends of the colours. Rows share 640 pixels and have 6 to 26 each.
    this.scaleMax = kind.limit ? this.limits[kind.limit] ?? largest(values) : largest(values);
    this.scaleMin = kind.logarithmic ? smallest(values.filter((v) => v > 0)) : 0;
    const height = Math.min(Math.max(640 / Math.max(map.labels.length, 1), 6), 26);
    const ratio = window.devicePixelRatio || 1, wide = this.canvas.clientWidth;
    this.left = LEFT;
    this.cellSize = { width: (wide - LEFT) / map.columns, height };
    this.canvas.style.height = `${height * map.labels.length + BELOW}px`;
    this.canvas.width = wide * ratio;
    this.canvas.height = (height * map.labels.length + BELOW) * ratio;
    const ctx = this.canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.font = "11px system-ui, sans-serif";
    this.fills = { missing: striped(colour("card"), colour("hatch"), 5, 1), beyond: striped(BEYOND, "#ffffff", 6, -1) };
    this.paint(ctx, kind);
    this.paintSteps(ctx);
    this.paintCursor(ctx);
    this.showLegend(kind);
    this.showCell();
  }

  // If the signal has a limit, scaleMax is that limit.
  isBeyond(kind, label, { value, rank }) {
    return kind.limit !== null && Math.abs(value) > this.scaleMax && (!kind.isPooled || this.pooled.has(`${rank} ${label}`));
  }

  fillOf(kind, label, cell) {
    const size = Math.abs(cell.value);
    if (this.isBeyond(kind, label, cell)) return this.fills.beyond;
    if (!kind.logarithmic) return shade(size / this.scaleMax);
    return shade(this.scaleMax > this.scaleMin ? Math.log(size / this.scaleMin) / Math.log(this.scaleMax / this.scaleMin) : 0.5); // 0.5: all values are equal
  }

  // Paints cells and names of layers. If rows are lower than a name (13 pixels), only every `rowsPerName`-th row has a
  // name. A layer with a cell beyond the limit always has its name; names of other layers that would overlap it are left
  // out. A name is cut to its last 9 characters. Its baseline is 7 to 13 pixels below the top of the row.
  // `gap`: pixels between two rows of cells.
  paint(ctx, kind) {
    const { map, cellSize, left } = this, rowsPerName = Math.ceil(13 / cellSize.height), gap = cellSize.height > 8 ? 1 : 0.5;
    map.labels.forEach((label, row) => {
      const cells = map.rows.get(label), top = row * cellSize.height;
      const isMarked = [...cells.values()].some((each) => this.isBeyond(kind, label, each));
      ctx.fillStyle = colour(isMarked ? "orange" : "quiet");
      ctx.textAlign = "right";
      if (isMarked || (row % rowsPerName === 0 && !this.isNearMarked(row, rowsPerName, kind)))
        ctx.fillText((isMarked ? "\u25B2 " : "") + label.slice(-9), left - 6, top + Math.max(Math.min(cellSize.height, 18) - 5, 7), left - 8);
      for (let column = 0; column < map.columns; ++column) {
        const found = cells.get(map.first + column);
        ctx.fillStyle = found ? this.fillOf(kind, label, found) : this.fills.missing;
        ctx.fillRect(left + column * cellSize.width, top, Math.max(cellSize.width - 0.5, 1), cellSize.height - gap);
      }
    });
  }

  // Whether another row, so near that the two names would overlap, has a cell beyond the limit.
  isNearMarked(row, rowsPerName, kind) {
    const { map } = this;
    for (let near = row - rowsPerName + 1; near < row + rowsPerName; ++near) {
      const label = map.labels[near], cells = near === row ? null : map.rows.get(label);
      if (cells && [...cells.values()].some((each) => this.isBeyond(kind, label, each))) return true;
    }
    return false;
  }

  paintSteps(ctx) {
    const { map, cellSize, left } = this, bottom = map.labels.length * cellSize.height, wide = map.columns * cellSize.width;
    const ticks = Math.max(1, Math.min(6, Math.floor(wide / 90), map.columns));
    ctx.fillStyle = colour("quiet");
    for (let tick = 0; tick <= ticks; ++tick) {
      const column = Math.round((tick * map.columns) / ticks), x = left + column * cellSize.width;
      ctx.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
      ctx.fillRect(Math.min(x, left + wide - 1), bottom, 1, 4);
      // The last tick is labelled with the last step of the last column, the others with the first step of a column.
      ctx.fillText((tick === 0 ? "step " : "") + count((map.first + column) * map.width - (tick === ticks ? 1 : 0)), x, bottom + 16);
    }
    for (const { step } of this.lossEvents) {
      const x = left + (step / map.width - map.first) * cellSize.width;
      if (x < left || x > left + wide) continue;
      ctx.fillStyle = colour("ink");
      ctx.fillRect(x - 0.75, 0, 1.5, bottom);
      triangle(ctx, x, bottom + 7, 4);
    }
  }

  paintCursor(ctx) {
    const { cellSize, cursor, left } = this;
    if (!cursor) return;
    const box = [left + cursor.column * cellSize.width, cursor.row * cellSize.height, cellSize.width, cellSize.height];
    for (const [name, width] of [["card", 5], ["ink", 2]]) { // edges of the opposite brightness make the line visible on every colour
      ctx.strokeStyle = colour(name);
      ctx.lineWidth = width;
      ctx.strokeRect(...box);
    }
  }

  swatch(fill) {
    const box = element("canvas", "swatch");
    [box.width, box.height] = [18, 12];
    const ctx = box.getContext("2d");
    ctx.fillStyle = fill;
    ctx.fillRect(0, 0, 18, 12);
    return box;
  }

  showLegend(kind) {
    const parent = byId("heat-scale"), bar = element("canvas");
    [bar.width, bar.height] = [128, 1];
    const ctx = bar.getContext("2d");
    for (let x = 0; x < 128; ++x) {
      ctx.fillStyle = shade(x / 127);
      ctx.fillRect(x, 0, 1, 1);
    }
    const beyond = kind.limit ? [this.swatch(this.fills.beyond), element("span", "alarm", "beyond the limit")] : [];
    const event = this.lossEvents.length ? [element("span", "", "\u25B2 loss event")] : [];
    parent.replaceChildren(short(this.scaleMin ?? 0), bar, short(this.scaleMax ?? 0), ...beyond, this.swatch(this.fills.missing), "not sampled", ...event);
  }

  select(row, column) {
    const { map } = this;
    this.cursor = { row: Math.min(Math.max(row, 0), map.labels.length - 1), column: Math.min(Math.max(column, 0), map.columns - 1) };
    this.draw();
  }

  selectAtMouse(event) {
    if (!this.map) return;
    const row = Math.floor(event.offsetY / this.cellSize.height), column = Math.floor((event.offsetX - this.left) / this.cellSize.width);
    if (column >= 0 && (row !== this.cursor?.row || column !== this.cursor?.column)) this.select(row, column);
  }

  selectByKey(event) {
    const { map } = this;
    if (!map || event.ctrlKey || event.altKey || event.metaKey) return;
    const from = this.cursor ?? { row: -1, column: map.columns - 1 }; // select() changes row -1 to 0
    const to = { ArrowUp: [from.row - 1, from.column], ArrowDown: [from.row + 1, from.column], ArrowLeft: [from.row, from.column - 1],
      ArrowRight: [from.row, from.column + 1], PageUp: [from.row - 10, from.column], PageDown: [from.row + 10, from.column],
      Home: [from.row, 0], End: [from.row, map.columns - 1] }[event.key];
    if (!to) return;
    event.preventDefault();
    this.select(...to);
  }

  showCell() {
    const kind = SIGNALS[this.signal.value], { map, cursor } = this;
    this.canvas.setAttribute("aria-label", `${kind.name} of ${map.labels.length} layers by step; arrow keys read a cell`);
    const label = cursor && map.labels[cursor.row];
    if (!known(label) || !cursor) return;
    const from = (map.first + cursor.column) * map.width, cell = map.rows.get(label).get(map.first + cursor.column);
    const name = this.names.get(label);
    setText(byId("heat-cell"), `layer ${label}${known(name) ? ` (${name})` : ""}, ` +
      (map.width > 1 ? `steps ${count(from)} to ${count(from + map.width - 1)}` : `step ${count(from)}`) + ": " +
      (cell ? `${kind.text(cell.value)}${this.isBeyond(kind, label, cell) ? ", beyond the limit" : ""}, rank ${cell.rank}` : "not sampled"));
  }
}
