// Line charts over the step, drawn with Chart.js: one line per rank. The ARIA label of a chart has its content as text.
// The loss chart is the wide one. Below its curves, each detector that left level quiet has a lane: a row with marks at
// the detector's events (lanes.js). The arrow keys move a cursor in the loss chart (reader.js). Functions that are not
// defined here are in the page's other scripts.

// Places each label [text, x, width] 4 pixels right of its x (left of its x if it would pass `end`), in the first row
// where no other label is nearer than 4 pixels. Returns text, left edge and row of each label.
function placedLabels(labels, end) {
  const rows = [];
  return labels.map(([text, x, width]) => {
    const left = x + 4 + width > end ? x - 4 - width : x + 4;
    let row = rows.findIndex((taken) => taken.every((other) => left > other.right + 4 || left + width < other.left - 4));
    if (row < 0) row = rows.push([]) - 1; // adds a row; push() returns the number of rows
    rows[row].push({ left, right: left + width });
    return { text, left, row };
  });
}

// Chart.js plugin that draws the marks of a chart: limits of alarms as dashed lines, detector warnings as triangles at
// the bottom, loss events and the cursor as vertical lines. `isNamed`: the names of the loss events stand beside their
// lines (loss chart only). `cursor`: the step selected with the keyboard, or null.
const guides = {
  id: "guides",
  afterDatasetsDraw(chart, _, { lines = [], warnings = [], lossEvents = [], isNamed = false, cursor = null }) {
    const { ctx, chartArea: area, scales: { x } } = chart;
    const inView = (step) => x.getPixelForValue(step) >= area.left - 1 && x.getPixelForValue(step) <= area.right + 1;
    const drawVerticalLine = (step) => {
      ctx.beginPath();
      ctx.moveTo(x.getPixelForValue(step), area.top);
      ctx.lineTo(x.getPixelForValue(step), area.bottom);
      ctx.stroke();
    };
    ctx.save();
    ctx.font = "11px system-ui, sans-serif";
    this.drawLines(chart, lines);
    ctx.fillStyle = ctx.strokeStyle = colour("orange");
    for (const step of warnings.filter(inView)) triangle(ctx, x.getPixelForValue(step), area.bottom, 4);
    ctx.lineWidth = isNamed ? 1.5 : 1;
    const shown = lossEvents.filter((event) => inView(event.step));
    for (const { step } of shown) drawVerticalLine(step);
    ctx.textAlign = "left";
    const labels = isNamed ? placedLabels(shown.map(({ step, what }) => [what, x.getPixelForValue(step), ctx.measureText(what).width]), area.right) : [];
    for (const { text, left, row } of labels) ctx.fillText(text, left, area.top + 10 + 12 * row);
    ctx.strokeStyle = colour("ink");
    ctx.setLineDash([2, 2]);
    if (cursor !== null && inView(cursor)) drawVerticalLine(cursor);
    ctx.restore();
  },

  // Draws the dashed lines. Of lines that are at most 12 pixels apart, only the first one gets its label.
  drawLines({ ctx, chartArea: area, scales: { y } }, lines) {
    const labelled = []; // y of the lines that have got a label
    ctx.setLineDash([4, 3]);
    ctx.strokeStyle = ctx.fillStyle = colour("quiet"); // the page's colour of secondary text
    for (const { value, label } of lines.filter((line) => line.value >= y.min && line.value <= y.max)) {
      const pixel = y.getPixelForValue(value);
      ctx.beginPath();
      ctx.moveTo(area.left, pixel);
      ctx.lineTo(area.right, pixel);
      ctx.stroke();
      if (labelled.every((other) => Math.abs(other - pixel) > 12)) {
        const below = pixel - area.top < 14; // above the line the label would leave the chart
        ctx.fillText(label, area.left + 4, pixel + (below ? 12 : -3));
        labelled.push(pixel);
      }
    }
    ctx.setLineDash([]);
  },
};

// `column`: column of the history (values by step, /api/v1/history). `waits`: what the empty chart waits for. `text`:
// formats a value. If only one rank is shown, the columns `band` (the maximum) and `control` (bias chart: the bias
// of the rounded fp64 reference, which is near 0) are drawn too. `lines`: dashed reference lines. `logarithmic`: the
// checkbox "logarithmic" applies. `from`, `to`: values that the y axis includes. Both 0: the y axis includes 0.
const CHARTS = [
  { name: "loss", column: "loss", waits: "the first loss that is seen", text: (v) => number(v), logarithmic: true, band: "loss_max", isWide: true },
  { name: "gradient norm before clipping", column: "gradient_norm", waits: "the first gradient norm: clip gradients, or name the parameters", text: (v) => number(v), logarithmic: true },
  { name: "error ratio, forward", column: "deviation_ratio_forward", waits: "the first judged forward slice", text: (v) => fixed(v, 3), logarithmic: true, band: "deviation_ratio_forward_max",
    lines: (limits) => [{ value: 1, label: "fused attention" }, { value: limits.deviation_ratio_forward, label: "alarm" }], from: 0, to: 1.1 },
  { name: "error ratio, backward", column: "deviation_ratio_backward", waits: "the first judged backward slice", text: (v) => fixed(v, 3), logarithmic: true,
    lines: (limits) => [{ value: 1, label: "fused attention" }, { value: limits.deviation_ratio_backward, label: "alarm" }], from: 0, to: 1.1 },
  { name: "bias, ulp", column: "bias_ulp", waits: "the first judged forward slice", text: (v) => signed(v, 4), control: "rounded_reference_bias_ulp",
    lines: (limits) => [{ value: limits.bias_ulp, label: "alarm" }, { value: -limits.bias_ulp, label: "alarm" }], from: -0.02, to: 0.02 },
  { name: "bias, z between slices", column: "bias_z", waits: "judged slices of two steps", text: (v) => signed(v, 1),
    lines: (limits) => [{ value: limits.bias_z, label: "alarm" }, { value: -limits.bias_z, label: "alarm" }], from: -3, to: 3 },
  { name: "weights, W1 in an interval", column: "weight_wasserstein", waits: "two snapshots of the weights", text: (v) => number(v, 3), logarithmic: true },
  { name: "weights, mean change in a step", column: "weight_update", waits: "two snapshots of the weights", text: (v) => number(v, 3), logarithmic: true },
  { name: "optimizer, RMS staleness", column: "rms_staleness", waits: "the state of an Adam-like optimizer", text: (v) => fixed(v, 3), band: "rms_staleness_max", from: 0, to: 1.1,
    lines: () => [{ value: 1, label: "gradients as large as remembered" }] },
  { name: "update of a step over the weights", column: "update_ratio", waits: "the state of an Adam-like optimizer", text: (v) => number(v, 3), band: "update_ratio_max", logarithmic: true },
  { name: "slowdown in the trainer", column: "slowdown_ratio", waits: "the first step", text: (v) => percent(v), from: 0, to: 0.002,
    lines: (limits) => [{ value: limits.max_slowdown, label: "budget" }] },
  { name: "seconds per step", column: "step_seconds", waits: "the first step", text: (v) => number(v, 3), from: 0, to: 0 },
];

// The known values of a column. Value i covers steps_per_point steps, and is drawn at the last of these steps.
function points(table, column) {
  const values = table.columns[column] || [];
  return values.map((y, i) => ({ x: table.first_step + (i + 1) * table.steps_per_point - 1, y })).filter((p) => finite(p.y));
}

const GAP = 8; // a line is interrupted between points that are more than GAP times the median distance apart

// Returns `line`, a list of points, with a NaN point in every long gap, so that the line is interrupted there.
function withGaps(line) {
  const gaps = line.slice(1).map((p, i) => p.x - line[i].x).sort((a, b) => a - b);
  const limit = GAP * gaps[gaps.length >> 1]; // the median
  return line.flatMap((p, i) => (i > 0 && p.x - line[i - 1].x > limit ? [{ x: line[i - 1].x + 1, y: NaN }, p] : [p]));
}

// "step 1,200, 14:05:12"; the time is that of the first rank whose history has the step.
function stepText(step) {
  const time = (ui.state?.ranks || []).map((rank) => timeOf(rank, step)).find(Boolean);
  return "step " + count(step) + (time ? ", " + time : "");
}

function chartJsOptions(kind) {
  const axis = { grid: { color: colour("grid") }, border: { display: false } };
  const ticks = { color: colour("quiet"), maxTicksLimit: 6, font: { size: 11 } };
  return {
    animation: false, parsing: false, normalized: true, maintainAspectRatio: false, spanGaps: false,
    interaction: { mode: "nearest", axis: "x", intersect: false },
    elements: { point: { radius: 0, hitRadius: 8, hoverRadius: 3 }, line: { borderWidth: 1.6, tension: 0 } },
    scales: {
      x: { ...axis, type: "linear", ticks: { ...ticks, callback: (v) => (Number.isInteger(v) ? count(v) : ""), maxRotation: 0 } },
      y: { ...axis, suggestedMin: kind.from, suggestedMax: kind.to,
        ticks: { ...ticks, callback: (v) => (kind.column === "slowdown_ratio" ? short(100 * v) + " %" : short(v)) } },
    },
    plugins: {
      legend: { display: false },
      tooltip: { callbacks: { title: (items) => stepText(items[0].parsed.x),
        label: (item) => `${item.dataset.label}: ${kind.text(item.parsed.y)}` } },
    },
  };
}

class StepChart {
  constructor(parent, kind) { // `kind`: an entry of CHARTS
    this.kind = kind;
    const box = add(parent, "div", kind.isWide ? "chart wide" : "chart");
    add(box, "h3", "", kind.name);
    this.waitingNote = add(box, "p", "quiet", "Fills with " + kind.waits + ".");
    this.frame = add(box, "div", "frame");
    this.canvas = add(this.frame, "canvas");
    this.canvas.setAttribute("role", "img");
    this.box = box;
    this.chart = null;
  }

  make() {
    const options = chartJsOptions(this.kind);
    // The names of the lanes are drawn left of the lanes, so the y axis is made wide enough for them.
    if (this.kind.isWide) options.scales.y.afterFit = (axis) => (axis.width = this.lanes.length ? Math.min(136, this.frame.clientWidth / 3) : axis.width);
    this.chart = new Chart(this.canvas, { type: "line", options, plugins: this.kind.isWide ? [guides, laneMarks] : [guides], data: { datasets: [] } });
  }

  // `tables`: the histories of the shown ranks. `index` of a table is the position of its rank among all ranks, which
  // determines the colour. `limits`: limits of alarms, and the budget. `lanes`: from lanesOf(). `logarithmic`: whether the
  // checkbox is checked. `cursor`: the step selected with the keyboard, or null.
  update(tables, { limits, lanes, lossEvents, logarithmic, cursor }) {
    this.lanes = lanes;
    const sets = tables.flatMap((table) => this.datasets(table, tables.length === 1));
    this.waitingNote.hidden = sets.some((set) => set.data.length > 0);
    this.frame.hidden = !this.waitingNote.hidden;
    if (this.frame.hidden) return;
    if (!this.chart) this.make();
    const positive = sets.every((set) => set.data.every((p) => !(p.y <= 0))); // NaN, which marks a gap, is allowed
    this.chart.options.scales.y.type = this.kind.logarithmic && logarithmic && positive ? "logarithmic" : "linear";
    const isNamed = Boolean(this.kind.isWide), lines = this.kind.lines?.(limits).filter((line) => finite(line.value)) ?? [];
    // The wide chart shows the warnings in its lanes.
    this.chart.options.plugins.guides = { lines, warnings: isNamed ? [] : warningSteps(lanes), lossEvents, isNamed, cursor };
    if (isNamed) this.makeRoomForLanes(lanes);
    this.chart.data.datasets = sets;
    const xs = sets.flatMap((set) => [set.data[0]?.x, set.data[set.data.length - 1]?.x]);
    Object.assign(this.chart.options.scales.x, { min: smallest(xs), max: largest(xs) });
    this.chart.update("none");
    this.describe(sets, isNamed ? lossEvents : [], isNamed ? lanes : []);
  }

  makeRoomForLanes(lanes) {
    this.chart.options.plugins.laneMarks = { lanes };
    this.chart.options.layout = { padding: { bottom: LANE_HEIGHT * lanes.length + (lanes.length ? 4 : 0) } };
    const height = `${230 + LANE_HEIGHT * lanes.length}px`; // 230: the height without lanes
    if (this.frame.style.height !== height) {
      this.frame.style.height = height;
      this.chart.resize();
    }
  }

  // The lines of a rank. `isAlone`: only this rank is shown, so there is room for the lines of maximum and control.
  datasets(table, isAlone) {
    const [hue, dash] = [rankColour(table.index), rankDash(table.index)];
    const sets = [{ label: "rank " + table.rank, data: withGaps(points(table, this.kind.column)), borderColor: hue, backgroundColor: hue, borderDash: dash }];
    const addIfAlone = (column, label, style) => {
      const data = withGaps(points(table, column));
      if (isAlone && data.length) sets.push({ label, data, borderWidth: 1, ...style });
    };
    // With one step per point, the loss is its own maximum. Other columns have several samples or tensors in a step, so
    // their maximum is drawn then too.
    if (this.kind.band && (this.kind.column !== "loss" || table.steps_per_point > 1))
      addIfAlone(this.kind.band, "largest", { borderColor: hue + "66", backgroundColor: hue }); // 66: 40 % opaque
    if (this.kind.control) addIfAlone(this.kind.control, "rounded reference", { borderColor: colour("grey"), backgroundColor: colour("grey"), borderDash: [4, 3] });
    return sets;
  }

  // Sets the ARIA label: range, last value, loss events, and the first warning of each lane.
  describe(sets, lossEvents, lanes) {
    const ys = sets.flatMap((set) => set.data.map((p) => p.y)), last = sets[0].data[sets[0].data.length - 1];
    const xs = sets.flatMap((set) => set.data.map((p) => p.x));
    const events = lossEvents.map((e) => `${e.what} at step ${count(e.step)}`).join(", ");
    const warnings = lanes.filter((lane) => warningSteps([lane]).length).map((lane) => `${lane.name} at step ${count(warningSteps([lane])[0])}`).join(", ");
    const text = `${this.kind.name}, steps ${smallest(xs)} to ${largest(xs)}: from ${this.kind.text(smallest(ys))} to ${this.kind.text(largest(ys))}`;
    this.canvas.setAttribute("aria-label", text + (last ? `, last ${this.kind.text(last.y)}` : "") + (events && `; ${events}`) + (warnings && `; warned: ${warnings}`));
  }

  // Removes the drawn chart, so that the next update makes it with the present colours.
  destroy() {
    this.chart?.destroy();
    this.chart = null;
  }
}
