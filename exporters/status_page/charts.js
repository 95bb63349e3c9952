// Charts over the step, with Chart.js. One line per rank; what is shown in words stands in each chart's label.

// What an alarm compares with is drawn as a dashed line where it is in view, events as marks below the curves, loss
// events as lines of their own in the picture of the loss.
const guides = {
  id: "guides",
  afterDatasetsDraw(chart, _, { lines = [], events = [], lossEvents = [] }) {
    const { ctx, chartArea: area, scales: { x, y } } = chart;
    ctx.save();
    ctx.font = "11px system-ui, sans-serif";
    for (const { value, label } of lines) {
      if (value < y.min || value > y.max) continue;
      const at = y.getPixelForValue(value);
      ctx.strokeStyle = ctx.fillStyle = colour("quiet");
      ctx.setLineDash([4, 3]);
      ctx.beginPath();
      ctx.moveTo(area.left, at);
      ctx.lineTo(area.right, at);
      ctx.stroke();
      ctx.fillText(label, area.left + 4, at - 3);
    }
    ctx.setLineDash([]);
    ctx.fillStyle = ctx.strokeStyle = colour("orange");
    for (const step of events) {
      const at = x.getPixelForValue(step);
      if (at < area.left || at > area.right) continue;
      ctx.globalAlpha = 0.45;
      ctx.beginPath();
      ctx.moveTo(at, area.top);
      ctx.lineTo(at, area.bottom);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.moveTo(at - 4, area.bottom);
      ctx.lineTo(at + 4, area.bottom);
      ctx.lineTo(at, area.bottom - 7);
      ctx.fill();
    }
    ctx.lineWidth = 1.5;
    for (const { step, what } of lossEvents) {
      const at = x.getPixelForValue(step);
      if (at < area.left || at > area.right) continue;
      ctx.beginPath();
      ctx.moveTo(at, area.top);
      ctx.lineTo(at, area.bottom);
      ctx.stroke();
      const isLeft = at + ctx.measureText(what).width + 6 > area.right;
      ctx.textAlign = isLeft ? "right" : "left";
      ctx.fillText(what, at + (isLeft ? -4 : 4), area.top + 10);
    }
    ctx.restore();
  },
};

// name, column of the history, how a value reads, and what belongs to the picture.
const CHARTS = [
  { name: "loss", column: "loss", text: (v) => number(v), logarithmic: true, band: "loss_max" },
  { name: "gradient norm before clipping", column: "gradient_norm", text: (v) => number(v), logarithmic: true },
  { name: "deviation ratio, forward", column: "deviation_ratio_forward", text: (v) => fixed(v, 3), band: "deviation_ratio_forward_max",
    lines: (limits) => [{ value: 1, label: "noise floor" }, { value: limits.deviation_ratio_forward, label: "alarm" }], from: 0, to: 1.1 },
  { name: "deviation ratio, backward", column: "deviation_ratio_backward", text: (v) => fixed(v, 3),
    lines: (limits) => [{ value: 1, label: "noise floor" }, { value: limits.deviation_ratio_backward, label: "alarm" }], from: 0, to: 1.1 },
  { name: "bias, ulp", column: "bias_ulp", text: (v) => signed(v, 4), control: "rounded_reference_bias_ulp",
    lines: (limits) => [{ value: limits.bias_ulp, label: "alarm" }, { value: -limits.bias_ulp, label: "alarm" }], from: -0.02, to: 0.02 },
  { name: "bias, z between slices", column: "bias_z", text: (v) => signed(v, 1),
    lines: (limits) => [{ value: limits.bias_z, label: "alarm" }, { value: -limits.bias_z, label: "alarm" }], from: -3, to: 3 },
  { name: "weights, W1 in an interval", column: "weight_wasserstein", text: (v) => number(v, 3), logarithmic: true },
  { name: "weights, mean change in a step", column: "weight_update", text: (v) => number(v, 3), logarithmic: true },
  { name: "optimizer, RMS staleness", column: "rms_staleness", text: (v) => fixed(v, 3), band: "rms_staleness_max", from: 0, to: 1.1,
    lines: () => [{ value: 1, label: "gradients as large as remembered" }] },
  { name: "update of a step over the weights", column: "update_ratio", text: (v) => number(v, 3), band: "update_ratio_max", logarithmic: true },
  { name: "effective rank of updates of attention scores", column: "update_effective_rank", text: (v) => fixed(v, 2), from: 0, to: 0 },
  { name: "slowdown in the trainer", column: "slowdown_ratio", text: (v) => percent(v), from: 0, to: 0.002,
    lines: (limits) => [{ value: limits.max_slowdown, label: "budget" }] },
  { name: "seconds per step", column: "step_seconds", text: (v) => number(v, 3), from: 0, to: 0 },
];

function points(table, column) {
  const values = table.columns[column] || [];
  return values.map((y, i) => ({ x: table.first_step + (i + 1) * table.steps_per_point - 1, y })).filter((p) => finite(p.y));
}

function options(kind) {
  const axis = { grid: { color: colour("grid") }, border: { display: false } };
  const ticks = { color: colour("quiet"), maxTicksLimit: 6, font: { size: 11 } };
  return {
    animation: false, parsing: false, normalized: true, maintainAspectRatio: false, spanGaps: true,
    interaction: { mode: "nearest", axis: "x", intersect: false },
    elements: { point: { radius: 0, hitRadius: 8, hoverRadius: 3 }, line: { borderWidth: 1.6, tension: 0 } },
    scales: {
      x: { ...axis, type: "linear", ticks: { ...ticks, callback: (v) => (Number.isInteger(v) ? count(v) : ""), maxRotation: 0 } },
      y: { ...axis, suggestedMin: kind.from, suggestedMax: kind.to,
        ticks: { ...ticks, callback: (v) => (kind.column === "slowdown_ratio" ? short(100 * v) + " %" : short(v)) } },
    },
    plugins: {
      legend: { display: false },
      tooltip: { callbacks: { title: (items) => "step " + count(items[0].parsed.x),
        label: (item) => `${item.dataset.label}: ${kind.text(item.parsed.y)}` } },
    },
  };
}

class StepChart {
  constructor(parent, kind) {
    this.kind = kind;
    const box = add(parent, "div", "chart");
    add(box, "h3", "", kind.name);
    this.canvas = add(add(box, "div", "frame"), "canvas");
    this.canvas.setAttribute("role", "img");
    this.box = box;
    this.chart = null;
  }

  // `tables`: histories of the ranks shown, each with its `index` among all of them.
  update(tables, { limits, events, lossEvents, logarithmic }) {
    const sets = tables.flatMap((table) => this.datasets(table, tables.length === 1));
    this.box.hidden = sets.every((set) => set.data.length === 0);
    if (this.box.hidden) return;
    if (!this.chart) this.chart = new Chart(this.canvas, { type: "line", options: options(this.kind), plugins: [guides], data: { datasets: [] } });
    const positive = sets.every((set) => set.data.every((p) => p.y > 0));
    this.chart.options.scales.y.type = this.kind.logarithmic && logarithmic && positive ? "logarithmic" : "linear";
    const ofLoss = this.kind.column === "loss" ? lossEvents : [];
    const others = events.filter((step) => !ofLoss.some((event) => event.step === step));
    this.chart.options.plugins.guides = { lines: this.kind.lines?.(limits).filter((line) => finite(line.value)), events: others, lossEvents: ofLoss };
    this.chart.data.datasets = sets;
    const xs = sets.flatMap((set) => [set.data[0]?.x, set.data[set.data.length - 1]?.x]);
    Object.assign(this.chart.options.scales.x, { min: smallest(xs), max: largest(xs) });
    this.chart.update("none");
    this.describe(sets, ofLoss);
  }

  datasets(table, alone) {
    const [line, dash] = [rankColour(table.index), rankDash(table.index)];
    const sets = [{ label: "rank " + table.rank, data: points(table, this.kind.column), borderColor: line, backgroundColor: line, borderDash: dash }];
    const more = (column, label, style) => {
      const data = points(table, column);
      if (alone && data.length) sets.push({ label, data, borderWidth: 1, ...style });
    };
    if (this.kind.band && table.steps_per_point * (this.kind.column === "loss" ? 1 : 2) > 1)
      more(this.kind.band, "largest", { borderColor: line + "66", backgroundColor: line });
    if (this.kind.control) more(this.kind.control, "rounded reference", { borderColor: colour("grey"), backgroundColor: colour("grey"), borderDash: [4, 3] });
    return sets;
  }

  describe(sets, ofLoss) {
    const ys = sets.flatMap((set) => set.data.map((p) => p.y)), last = sets[0].data[sets[0].data.length - 1];
    const xs = sets.flatMap((set) => set.data.map((p) => p.x));
    const text = `${this.kind.name}, steps ${smallest(xs)} to ${largest(xs)}: from ${this.kind.text(smallest(ys))} to ${this.kind.text(largest(ys))}` +
      (last ? `, last ${this.kind.text(last.y)}` : "") + (ofLoss.length ? `; ${ofLoss.map((e) => `${e.what} at step ${count(e.step)}`).join(", ")}` : "");
    this.canvas.setAttribute("aria-label", text);
  }

  forget() {
    this.chart?.destroy();
    this.chart = null;
  }
}
