// The status page: reads /api/v1/state every two seconds. Names in the state come from a trainer, so every text
// goes through textContent. Unknown values are null there and a dash here.
"use strict";

const POLL_MS = 2000;
const ALARM_RATIO = { forward: 2, backward: 3 };
const ALARM_BIAS_ULP = 0.05;
const ALARM_BIAS_Z = 6;
const SVG = "http://www.w3.org/2000/svg";
const views = new Map(); // rank -> its elements, kept so that focus and open details survive an update

const known = (value) => value !== null && value !== undefined;
const finite = (value) => known(value) && Number.isFinite(value);
const minus = (text) => text.replace("-", "\u2212");
const number = (value, digits = 4) => (finite(value) ? minus(value.toPrecision(digits)) : "–");
const fixed = (value, digits) => (finite(value) ? minus(value.toFixed(digits)) : "–");
const signed = (value, digits) => (finite(value) && value > 0 ? "+" : "") + fixed(value, digits);
const count = (value) => (finite(value) ? value.toLocaleString("en") : "–");
const percent = (value) => (finite(value) ? fixed(value * 100, 2) + " %" : "unknown");

function element(tag, className, text) {
  const result = document.createElement(tag);
  if (className) result.className = className;
  if (text !== undefined) result.textContent = text;
  return result;
}

function add(parent, tag, className, text) {
  return parent.appendChild(element(tag, className, text));
}

// A named figure: heading, value, note, and room for a chart.
function figure(parent, name) {
  const box = add(parent, "div", "figure");
  add(box, "h3", "", name);
  const value = add(box, "div", "value");
  const note = add(box, "div", "quiet");
  const chart = box.appendChild(document.createElementNS(SVG, "svg"));
  chart.setAttribute("role", "img");
  chart.setAttribute("viewBox", "0 0 100 40");
  chart.setAttribute("preserveAspectRatio", "none");
  const range = add(box, "div", "quiet range");
  return { name, value, note, chart, range, first: add(range, "span"), last: add(range, "span") };
}

function createRank(rank) {
  const section = element("section");
  const title = add(section, "div", "title");
  add(title, "h2", "", "rank " + rank);
  const view = { section, step: add(title, "span"), state: add(title, "span", "badge"), sources: add(title, "span", "quiet") };
  const figures = add(section, "div", "figures");
  view.loss = figure(figures, "loss");
  view.ratio = figure(figures, "deviation ratio");
  view.bias = figure(figures, "bias");
  view.gradient = figure(figures, "gradient norm before clipping");
  view.notes = add(section, "ul", "notes");
  view.layers = table(section, "Layers", [
    "layer", "name", "ratio forward", "ratio backward", "bias, ulp", "relative error", "gradient norm", "steps with NaN or Inf",
  ], 2);
  view.counts = table(section, "Every attention call is counted", [
    "pass", "calls", "unsampled", "skipped", "sampled", "judged", "lost", "in flight", "why skipped or lost",
  ], 1);
  view.cost = add(section, "p", "quiet");
  return view;
}

function table(parent, name, columns, textColumns) {
  const details = add(parent, "details");
  details.open = true;
  const title = add(details, "summary", "", name);
  const scroll = add(details, "div", "scroll");
  scroll.tabIndex = 0; // so that the keyboard can scroll it
  const body = add(scroll, "table");
  const head = add(add(body, "thead"), "tr");
  columns.forEach((column, i) => {
    const cell = add(head, "th", i < textColumns || column.startsWith("why") ? "text" : "", column);
    cell.scope = "col";
  });
  return { details, title, textColumns, rows: add(body, "tbody") };
}

// Rows of texts; a cell may be {text, alarm}.
function fill(view, rows) {
  view.details.hidden = rows.length === 0;
  view.rows.replaceChildren(...rows.map((cells) => {
    const row = element("tr");
    cells.forEach((cell, i) => {
      const isText = i < view.textColumns || (i === cells.length - 1 && view.lastIsText);
      const td = add(row, "td", isText ? "text" : "");
      add(td, "span", cell.alarm ? "alarm" : "", cell.alarm !== undefined ? cell.text : cell);
    });
    return row;
  }));
}

// A curve over the step, not over time; `floor` draws the noise floor.
function draw(view, steps, values, floor) {
  const points = (steps || []).map((x, i) => [x, (values || [])[i]]).filter(([x, y]) => finite(x) && finite(y));
  view.chart.replaceChildren();
  view.range.hidden = points.length < 2;
  view.chart.style.display = points.length < 2 ? "none" : "block";
  if (points.length < 2) return view.chart.setAttribute("aria-label", view.name + ": no history yet");
  const ys = points.map((p) => p[1]).concat(known(floor) ? [floor] : []);
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const toX = (x) => (100 * (x - first)) / Math.max(last - first, 1);
  const toY = (y) => (high > low ? 38 - (36 * (y - low)) / (high - low) : 20);
  if (known(floor)) line(view.chart, "floor", `M0 ${toY(floor)}H100`);
  line(view.chart, "curve", points.map(([x, y], i) => (i ? "L" : "M") + toX(x).toFixed(2) + " " + toY(y).toFixed(2)).join(""));
  view.first.textContent = "step " + count(first);
  view.last.textContent = "step " + count(last);
  const from = Math.min(...points.map((p) => p[1])), to = Math.max(...points.map((p) => p[1]));
  view.chart.setAttribute("aria-label", `${view.name}, steps ${first} to ${last}: from ${number(from)} to ${number(to)}`);
}

function line(chart, className, path) {
  const shape = chart.appendChild(document.createElementNS(SVG, "path"));
  shape.setAttribute("class", className);
  shape.setAttribute("d", path);
  if (className === "floor") shape.setAttribute("stroke-width", "1");
}

function show(view, text, alarm, note) {
  view.value.textContent = text;
  view.value.className = alarm ? "value alarm" : "value";
  view.note.textContent = note;
}

const exceeds = (ratio, pass) => finite(ratio) && ratio > ALARM_RATIO[pass];
const ratioCell = (ratio, pass) => ({ text: fixed(ratio, 2), alarm: exceeds(ratio, pass) });

// The control must be silent: what the rounded reference shows too is no alarm.
const biased = (ulp, z) => finite(ulp) && finite(z) && Math.abs(ulp) > ALARM_BIAS_ULP && Math.abs(z) > ALARM_BIAS_Z;

function showAttention(view, forward, backward) {
  const [ratio, other] = [forward.deviation_ratio || {}, backward.deviation_ratio || {}];
  show(view.ratio, fixed(ratio.mean, 2), exceeds(ratio.mean, "forward") || exceeds(other.mean, "backward"),
    `forward, max ${fixed(ratio.max, 2)}; backward ${fixed(other.mean, 2)}; noise floor 1 (dashed)`);
  const control = [forward.rounded_reference_bias_ulp, forward.rounded_reference_bias_z];
  show(view.bias, signed(forward.bias_ulp, 3) + (finite(forward.bias_ulp) ? " ulp" : ""),
    biased(forward.bias_ulp, forward.bias_z) && !biased(...control),
    `z ${signed(forward.bias_z, 1)}; rounded reference ${signed(control[0], 3)} (z ${signed(control[1], 1)})`);
}

function total(counters) {
  const values = Object.values(counters || {}).filter(known);
  return values.length ? values.reduce((sum, value) => sum + value, 0) : counters ? 0 : null;
}

function reasons(attention) {
  return Object.entries({ ...attention.skipped, ...attention.lost })
    .filter(([, value]) => value > 0).map(([reason, value]) => `${reason} ${count(value)}`).join(", ");
}

function countRow(pass, attention) {
  return [pass, attention.calls, attention.unsampled, total(attention.skipped), attention.sampled, attention.judged,
    total(attention.lost), attention.in_flight].map((cell, i) => (i ? count(cell) : cell)).concat(reasons(attention));
}

function layerRow(layer) {
  return [layer.layer ?? "–", layer.name ?? "–", ratioCell(layer.deviation_ratio, "forward"),
    ratioCell(layer.deviation_ratio_backward, "backward"), signed(layer.bias_ulp, 3), number(layer.relative_error, 2),
    number(layer.gradient_norm, 3), { text: count(layer.nonfinite_steps), alarm: layer.nonfinite_steps > 0 }];
}

// What a reader should know beside the figures, one sentence each.
function notes(rank) {
  const lines = [];
  const steps = (rank.loss || {}).spike_steps || [];
  const broken = (rank.gradient || {}).nonfinite_layers || [];
  if (known(rank.worst_layer)) lines.push({ text: "Worst layer: " + layerText(rank), alarm: false });
  if (steps.length) lines.push({ text: "Loss spikes at step " + steps.slice(-5).map(count).join(", "), alarm: true });
  if (broken.length) lines.push({ text: "NaN or Inf in the gradient of " + broken.map(nameOf).join(", "), alarm: true });
  if (rank.no_attention_seen) {
    lines.push({ text: "No attention call has been seen; dropout or a mask may put all of them on the unfused path.", alarm: true });
  }
  if (rank.on === false) lines.push({ text: "Paused.", alarm: false });
  return lines;
}

const nameOf = (layer) => (typeof layer === "object" && layer ? layer.name ?? layer.layer : layer);

function updateRank(view, rank) {
  const { attention = {}, history = {}, loss = {} } = rank;
  view.step.textContent = `step ${count(rank.step ?? rank.steps)}`;
  view.state.textContent = rank.state ?? "";
  view.state.hidden = !known(rank.state);
  view.sources.textContent =
    `step from ${rank.step_source ?? "–"}, layers from ${rank.layer_source ?? "–"}, loss from ${loss.source ?? "–"}`;
  show(view.loss, number(loss.last), loss.spikes > 0, `first ${number(loss.first)}, spikes ${count(loss.spikes)}`);
  draw(view.loss, history.step, history.loss);
  showAttention(view, attention.forward || {}, attention.backward || {});
  draw(view.ratio, history.step, history.deviation_ratio, 1);
  draw(view.bias, [], []);
  const norms = (history.gradient_norm || []).filter(known);
  show(view.gradient, number((rank.gradient || {}).norm ?? norms[norms.length - 1]), false, "all layers");
  draw(view.gradient, history.step, history.gradient_norm);
  view.notes.replaceChildren(...notes(rank).map((line) => element("li", line.alarm ? "alarm" : "", line.text)));
  fill(view.layers, (rank.layers || []).map(layerRow));
  view.counts.lastIsText = true;
  const passes = ["forward", "backward"].filter((pass) => attention[pass]);
  fill(view.counts, passes.map((pass) => countRow(pass, attention[pass])));
  view.cost.textContent = `Slowdown ${percent(rank.slowdown_ratio)}, one step of ${count(rank.sample_interval_steps)} sampled. ` +
    "calls = unsampled + skipped + sampled; sampled = judged + lost + in flight.";
}

function layerText(rank) {
  const layer = (rank.layers || []).find((candidate) => candidate.layer === rank.worst_layer);
  return rank.worst_layer + (layer && known(layer.name) ? ` (${layer.name})` : "");
}

function update(state) {
  const set = (id, text) => (document.getElementById(id).textContent = text);
  set("run", known(state.run) ? state.run : "no run yet");
  set("state", state.state ?? "unknown");
  set("version", known(state.version) ? "foreshock " + state.version : "");
  document.title = known(state.run) ? state.run + " – foreshock" : "foreshock";
  const ranks = state.ranks || [];
  const seen = new Set();
  for (const rank of ranks) {
    const key = String(rank.rank);
    seen.add(key);
    if (!views.has(key)) {
      views.set(key, createRank(key));
      document.getElementById("ranks").append(views.get(key).section);
    }
    updateRank(views.get(key), rank);
  }
  for (const [key, view] of views) {
    if (seen.has(key)) continue;
    view.section.remove();
    views.delete(key);
  }
}

async function poll() {
  const fresh = document.getElementById("fresh");
  try {
    const response = await fetch("/api/v1/state", { cache: "no-store" });
    if (!response.ok) throw new Error("status " + response.status);
    update(await response.json());
    if (fresh.textContent !== "live") fresh.textContent = "live";
    fresh.className = "quiet";
  } catch (error) {
    const text = "not reachable; these are the last values";
    if (fresh.textContent !== text) fresh.textContent = text; // a status region speaks on every change
    fresh.className = "quiet alarm";
    console.warn(error);
  }
  setTimeout(poll, POLL_MS);
}

poll();
