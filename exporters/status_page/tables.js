// The tables below the charts of the status page, and the key figures above the charts. Functions ...Row and ...Rows make
// the cells of a table from the ranks of the state (JSON of /api/v1/state), ...Cell makes one cell. Helpers such as known(),
// number() and by() are in format.js; layerText() is in page.js.

// A table of texts. A cell is a text or {text, alarm, kind, title, bar}: `kind` is a CSS class, `title` the tooltip,
// `bar` the length of a bar from 0 to 1. The elements around the rows are created once, so that an update keeps the
// focus and the state of <details>.
class Table {
  // `columns`: titles. `textColumns`: indices of left-aligned columns. An empty table shows `emptyText`; "" hides it.
  constructor(parent, name, columns, textColumns, emptyText = "", isOpen = true) {
    this.emptyText = emptyText;
    this.section = add(parent, "section");
    const details = add(this.section, "details");
    details.open = isOpen;
    this.title = add(details, "summary");
    this.title.append(element("h2", "", name));
    this.title.firstChild.style.display = "inline";
    this.note = add(details, "p", "quiet summary-line");
    this.scroll = add(details, "div", "scroll");
    this.scroll.tabIndex = 0; // so that the keyboard can scroll it
    const body = add(this.scroll, "table"), head = add(add(body, "thead"), "tr");
    this.isText = columns.map((_, i) => textColumns.includes(i));
    columns.forEach((column, i) => (add(head, "th", this.isText[i] ? "text" : "", column).scope = "col"));
    this.body = add(body, "tbody");
  }

  // `rows`: arrays of cells; a row with `isFirst` begins a group of rows. `note`: a sentence above the rows.
  fill(rows, note = "") {
    this.section.hidden = rows.length === 0 && this.emptyText === "";
    this.scroll.hidden = rows.length === 0;
    this.scroll.classList.toggle("long", rows.length > 16); // a long table scrolls
    setText(this.note, rows.length === 0 ? this.emptyText : note);
    this.body.replaceChildren(...rows.map((cells) => {
      const row = element("tr", cells.isFirst ? "first" : "");
      cells.forEach((cell, i) => {
        const td = add(row, "td", this.isText[i] ? "text" : "");
        add(td, "span", cell?.alarm ? "alarm" : cell?.kind ?? "", cell?.text ?? (cell === "" || !known(cell) ? "–" : cell));
        if (cell?.title) td.title = cell.title;
        if (cell?.bar > 0) add(td, "span", "bar").style.width = `${Math.max(2, 64 * cell.bar)}px`;
      });
      return row;
    }));
  }
}

// The time at which a rank ended a step, as text; "" if it is not in the history (ui.history, JSON of /api/v1/history).
// The history has a table of values by step for each rank, and for each of its layers.
function timeOf(rank, step) {
  const table = (ui.history?.tables || []).find((t) => !known(t.layer) && t.rank === rank.rank);
  const elapsed = table?.columns.elapsed_seconds;
  if (!elapsed || !finite(step) || step < table.first_step) return "";
  const seconds = elapsed[Math.floor((step - table.first_step) / table.steps_per_point)];
  // The history has five digits, so from 1e5 s on it does not resolve seconds.
  return finite(seconds) ? clock(rank.started_at + seconds, rank.last_step_at, seconds < 1e5) : "";
}
// `max_slowdown`: the share of the training's time that monitoring may take; 1 means no limit.
const isAboveBudget = (rank) => rank.max_slowdown < 1 && rank.slowdown_ratio > rank.max_slowdown;
const slowdownCell = (rank) => ({ text: percent(rank.slowdown_ratio), alarm: isAboveBudget(rank) });

const passOf = (rank, pass) => rank.attention?.[pass] ?? {};
// `layer` null: any layer. `of`: what exceeds its limit, fused_ratio or bias. The error ratio is
// fused_ratio, the error over that of sound attention.
const hasAlarm = (rank, layer, pass, of) =>
  (rank.alarms || []).some((a) => (layer === null || a.layer === layer) && a.pass === pass && a.of === of);
const ratioCell = (rank, layer, pass, value) => ({ text: fixed(value, 2), alarm: hasAlarm(rank, layer, pass, "fused_ratio") });
const biasCell = (rank, layer, value) => ({ text: signed(value, 3), alarm: hasAlarm(rank, layer, "forward", "bias") });

function rankRow(rank) {
  const [forward, backward] = [passOf(rank, "forward"), passOf(rank, "backward")];
  const gone = rank.alive === false && rank.state === "running"; // the process ended without reporting its end
  return [String(rank.rank), { text: gone ? "gone" : rank.on === false ? "paused" : rank.state, alarm: gone || rank.state === "failed" },
    count(rank.step), { text: number(rank.loss?.last), alarm: rank.loss?.spikes > 0 }, number(rank.gradient?.norm),
    ratioCell(rank, null, "forward", forward.fused_ratio?.mean), fixed(forward.fused_ratio?.max, 2),
    ratioCell(rank, null, "backward", backward.fused_ratio?.mean), biasCell(rank, null, forward.bias_ulp), signed(forward.bias_z, 1),
    rank.worst_layer, number(rank.step_seconds, 3), slowdownCell(rank)];
}

function layerRow(rank, layer) {
  return [layer.layer, layer.name, String(rank.rank), ratioCell(rank, layer.layer, "forward", layer.fused_ratio),
    ratioCell(rank, layer.layer, "backward", layer.fused_ratio_backward), biasCell(rank, layer.layer, layer.bias_ulp),
    signed(layer.bias_z, 1), number(layer.relative_error, 2), number(layer.logit_abs_max, 3), number(layer.entropy_min, 2),
    number(layer.gradient_norm, 3), { text: count(layer.nonfinite_steps), alarm: layer.nonfinite_steps > 0 }];
}

// One row per layer. If several ranks have the layer, the row shows the rank with the largest forward error ratio.
// Layers with an alarm or with NaN or Inf come first.
function layerRows(ranks) {
  const worst = new Map();
  for (const rank of ranks) {
    for (const layer of rank.layers || []) {
      const worstYet = worst.get(layer.layer);
      if (!worstYet || (layer.fused_ratio ?? -1) > (worstYet.layer.fused_ratio ?? -1)) worst.set(layer.layer, { rank, layer });
    }
  }
  const hasFault = ({ rank, layer }) => (rank.alarms || []).some((a) => a.layer === layer.layer) || layer.nonfinite_steps > 0;
  return [...worst.values()]
    .sort((a, b) => hasFault(b) - hasFault(a) || String(a.layer.layer).localeCompare(String(b.layer.layer)))
    .map(({ rank, layer }) => layerRow(rank, layer));
}

// The attention calls of a pass over all ranks, counted by outcome. `skipped` and `lost` are counted by reason.
function countRow(ranks, pass) {
  const passes = ranks.map((rank) => passOf(rank, pass));
  const skipped = addUp(passes.map(by("skipped"))), lost = addUp(passes.map(by("lost")));
  const sum = (key) => count(total(passes.map(by(key))));
  return [pass, sum("calls"), sum("unsampled"), count(total(skipped)), sum("sampled"), sum("judged"), { text: count(total(lost)), alarm: total(lost) > 0 },
    sum("in_flight"), [reasons(skipped), reasons(lost)].filter(Boolean).join("; ")];
}

// Whether a rank is monitored. The trainer gives up tensor names, norms and weights if they cost too much or naming failed.
function monitorText(rank) {
  const now = rank.on === false ? "paused" : rank.alive === false ? "ended" : "on";
  if (!known(rank.tensors_given_up_step)) return now;
  const why = rank.tensors_given_up_reason === "failure" ? ": could not be named" : "";
  return `${now}; names, norms and weights given up at step ${count(rank.tensors_given_up_step)}${why}`;
}

function healthRows(ranks) {
  return ranks.map((rank) => {
    const spent = rank.overhead_seconds || {}, slots = rank.slots || {};
    return [String(rank.rank), { text: monitorText(rank), alarm: known(rank.tensors_given_up_step) }, rank.step_source, rank.layer_source,
      rank.loss?.source, count(rank.sample_interval_steps), slowdownCell(rank), percent(rank.max_slowdown, 1), fixed(spent.attention, 2), fixed(spent.step, 2),
      fixed(spent.agent, 2), slots.given === 0 ? { text: "none: statistics only", alarm: true } : count(slots.given),
      { text: count(rank.steps_lost), alarm: rank.steps_lost > 0 }, { text: count(rank.slots_refused), alarm: rank.slots_refused > 0 }, count(rank.skipped_steps)];
  });
}

const LEVELS = ["quiet", "watch", "warn"];
const levelCell = (level) => ({ text: level, alarm: level === "warn", kind: level === "watch" ? "watch" : "" });

// `finding`: the meaning of a detector's warning. `waits`: what gives the detector its first value.
const DETECTORS = {
  bias: { finding: "attention output is biased", waits: "a judged forward slice" },
  output_error_drift: { finding: "attention error follows the gradient", waits: "a judged backward slice" },
  deviation_forward: { finding: "attention error above its limit, forward", waits: "a judged forward slice" },
  deviation_backward: { finding: "attention error above its limit, backward", waits: "a judged backward slice" },
  max_logit: { finding: "largest logit at 100: softmax saturates", waits: "a judged forward slice" },
  logit_growth: { finding: "logits grow towards 100", waits: "a judged forward slice" },
  entropy_drop: { finding: "attention entropy falls suddenly", waits: "a judged forward slice" },
  gradient_norm: { finding: "gradient norm jumps", waits: "a gradient norm before clipping" },
  gradient_growth: { finding: "gradient norm grows steadily", waits: "a gradient norm before clipping" },
  weight_shift: { finding: "weights move faster than before", waits: "two snapshots of a tensor" },
};
const times = (logarithm) => `${short(Math.exp(logarithm))} \u00D7`;
// The value at which a detector warns, as text, by the kind of its statistic (`look` in the state). `warn`: the fixed limit,
// which two of the last values must exceed. `least`: for forecast, the value that is forecast; else the smallest change that
// counts, for rise, drop and growth the logarithm of a factor.
const LIMITS = {
  drift: (d) => (d.least > 0 ? `${short(d.least)} that lasts` : "a sign that lasts"),
  limit: (d) => `${short(d.warn)}, twice`,
  rise: (d) => `${times(d.least)} the usual`,
  drop: (d) => `usual / ${short(Math.exp(d.least))}`,
  forecast: (d) => `${short(d.least)} ahead`,
  growth: (d) => `grows ${times(d.least)}`,
};
// The value of a detector as a share of its limit. If `look` is not limit, the detector first learns from `learning` values
// what is usual. Each series (layer or tensor) learns separately, so `values` is divided by the number of series.
function scoreCell(d) {
  const perSeries = Math.floor(d.values / (d.series || 1));
  if (d.look !== "limit" && perSeries < d.learning) return `learns, ${count(perSeries)} of ${count(d.learning)}`;
  return { text: percent(d.score, 0), alarm: d.score >= 1, title: "100 %: the detector warns", bar: Math.min(d.score ?? 0, 1) };
}
const findingOf = (detector) => DETECTORS[detector]?.finding ?? "";

// How well a detector's warnings predict a loss event, as measured by the benchmark; `measured` is null without a result.
// Shown only as a tooltip, since a finding can be true without a loss event.
function benchmarkText(measured) {
  if (!measured) return "Not measured by the benchmark.";
  const followed = measured.alarms > 0 ? `a loss event followed ${count(measured.right)} of ${count(measured.alarms)} warnings` : "it never warned";
  const caught = measured.events > 0 ? `; ${count(measured.hits)} of ${count(measured.events)} loss events had a warning before` : "";
  const lead = finite(measured.lead_median) ? `, ${count(measured.lead_median)} steps earlier in the median` : "";
  return `Benchmark on small trainings: ${followed}${caught}${lead}. This measures prediction of a loss event, not whether the finding is true.`;
}
const detectorCell = (detector, measured) => ({ text: detector, title: [findingOf(detector), benchmarkText(measured)].filter(Boolean).join(". ") });
const statusCell = (measured) => ({ text: !measured ? "not measured" : measured.proven ? "default" : "experimental", title: benchmarkText(measured) });

// One row per detector, from the rank in which its level is highest. High levels come first, detectors without a value last.
// The layer of a quiet detector is that of its value; else it is the layer that raised the level.
function detectorRows(ranks) {
  const worst = new Map();
  for (const rank of ranks) {
    for (const detector of rank.precursors?.detectors || []) {
      const highest = worst.get(detector.detector);
      if (!highest || LEVELS.indexOf(detector.level) > LEVELS.indexOf(highest.detector.level)) worst.set(detector.detector, { rank, detector });
    }
  }
  const rows = [...worst.values()].sort((a, b) => LEVELS.indexOf(b.detector.level) - LEVELS.indexOf(a.detector.level))
    .map(({ rank, detector: d }) => [d.detector, findingOf(d.detector), levelCell(d.level), number(d.value, 3), LIMITS[d.look]?.(d), scoreCell(d),
      layerText(rank, (d.level === "quiet" ? d.value_layer : d.layer) ?? ""), d.level === "quiet" ? "" : count(d.since_step), String(rank.rank), count(d.values),
      count(d.warnings), count(d.last_warn_step), statusCell(d.measured)]);
  const waiting = ranks.length ? Object.keys(DETECTORS).filter((name) => !worst.has(name)) : [];
  return [...rows, ...waiting.map((name) => [name, findingOf(name), { text: "waits for " + DETECTORS[name].waits, kind: "quiet" }])];
}

const EVENT_NAMES = { loss_spike: "loss spike", divergence: "loss diverged", loss_rise: "slow rise of the loss", resumed: "went back to an earlier step",
  nonfinite_gradient_norm: "NaN or Inf in the gradient norm", nonfinite: "NaN or Inf out of attention", nonfinite_gradient: "NaN or Inf in the gradient",
  weight_mismatch: "weights differ from their replicas'", weight_initial_unknown: "first weights of the run not known",
  tensors_given_up: "names, norms and weights given up" };

// "warn_bias" becomes "bias warns".
const levelName = (name) => name.replace(/^warn_(.+)/, "$1 warns").replace(/^watch_(.+)/, "$1 watches");

function eventRows(ranks) {
  return ranks.flatMap((rank) => (rank.events || []).map((event) => ({ rank, event })))
    .sort((a, b) => b.event.last_step - a.event.last_step)
    .map(({ rank, event }) => [count(event.first_step), timeOf(rank, event.first_step), event.last_step === event.first_step ? "" : count(event.last_step), EVENT_NAMES[event.event] ?? levelName(event.event),
      String(rank.rank), event.layer, count(event.count), number(event.value)]);
}

const loggedRows = (ranks) => ranks.flatMap((rank) =>
  Object.entries(rank.logged || {}).map(([name, { value, step }]) => [name, String(rank.rank), number(value, 5), count(step)]));

// Returns a list with one figure as in figures(): how far the weights of the node have moved (Wasserstein distance W1),
// and whether replicas agree. The list is empty without weights. Except `mismatches`, all ranks of a node have the same values.
function weightFigure(ranks) {
  const all = ranks.map(by("weights")).filter((weights) => weights?.tensors > 0);
  if (all.length === 0) return [];
  const weights = all.find((w) => finite(w.wasserstein_previous)) ?? all[0];
  const differing = ranks.filter((rank) => rank.weights?.mismatches > 0).map((rank) => "rank " + rank.rank).join(", ");
  const replicas = differing ? `${differing} differs from its replicas` :
    { here: `${count(weights.replica_ranks)} replicas agree`, none: "no replicas to compare", elsewhere: "replicas are compared by Prometheus" }[weights.replicas];
  const notes = [`W1 in ${count(weights.interval_steps)} steps`, known(weights.moved_most) && `${weights.moved_most} moved most, ${number(weights.moved_most_wasserstein, 3)}`, replicas];
  return [["weights", number(weights.wasserstein_previous, 3), notes.filter(Boolean).join("; "), differing !== ""]];
}

// "; 10 min since the start; last at 14:05:12", by the clocks of the trainers.
function elapsedText(ranks) {
  const begin = smallest(ranks.map(by("started_at"))), last = largest(ranks.map(by("last_step_at")));
  if (!finite(begin) || !finite(last) || last < begin) return "";
  const seconds = last - begin;
  const text = seconds < 120 ? `${fixed(seconds, 0)} s` : seconds < 7200 ? `${fixed(seconds / 60, 0)} min` : `${fixed(seconds / 3600, 1)} h`;
  return `; ${text} since the start; last at ${clock(last)}`;
}

// The main figures of the whole run: [name, value, note, whether it is an alarm].
function figures(ranks) {
  const all = (pass, key, stat) => ranks.map((rank) => passOf(rank, pass)[key]?.[stat]);
  const alarms = (pass, of) => ranks.some((rank) => hasAlarm(rank, null, pass, of));
  const mostBiased = ranks.reduce((most, rank) => (Math.abs(passOf(rank, "forward").bias_ulp ?? 0) >= Math.abs(passOf(most, "forward").bias_ulp ?? 0) ? rank : most), ranks[0]);
  const bias = passOf(mostBiased, "forward"), budget = ranks[0].max_slowdown;
  const spikes = ranks.reduce((sum, rank) => sum + (rank.loss?.spikes || 0), 0);
  return [
    ["step", span(ranks.map(by("step"))), `from ${ranks[0].step_source ?? "–"}; ${number(mean(ranks.map(by("step_seconds"))), 3)} s each${elapsedText(ranks)}`],
    ["loss", number(mean(ranks.map((r) => r.loss?.last))), `first ${number(mean(ranks.map((r) => r.loss?.first)))}, spikes ${count(spikes)}`, spikes > 0],
    ["gradient norm", number(largest(ranks.map((r) => r.gradient?.norm))), "largest of the ranks, before clipping"],
    ["error ratio, forward", fixed(mean(all("forward", "fused_ratio", "mean")), 2), `largest ${fixed(largest(all("forward", "fused_ratio", "max")), 2)}; fused attention 1`, alarms("forward", "fused_ratio")],
    ["error ratio, backward", fixed(mean(all("backward", "fused_ratio", "mean")), 2), `largest ${fixed(largest(all("backward", "fused_ratio", "max")), 2)}; fused attention 1`, alarms("backward", "fused_ratio")],
    ["bias", signed(bias.bias_ulp, 3) + (finite(bias.bias_ulp) ? " ulp" : ""), `z ${signed(bias.bias_z, 1)}; rounded reference ${signed(bias.rounded_reference_bias_ulp, 3)} (z ${signed(bias.rounded_reference_bias_z, 1)})`, alarms("forward", "bias")],
    ...weightFigure(ranks),
    ["slowdown", percent(largest(ranks.map(by("slowdown_ratio")))), `budget ${percent(budget, 1)}, one step of ${span(ranks.map(by("sample_interval_steps")))} sampled`, ranks.some(isAboveBudget)],
  ];
}
