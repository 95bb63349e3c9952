// Polls /api/v1/state (figures, alarms, layers and events of each rank of a run) every two seconds, reads
// /api/v1/history (values by step) when it has new steps, and updates the page. Functions that are not defined here are
// in the page's other scripts, such as format.js (numbers, elements), tables.js (tables, key figures), before.js (loss
// events), charts.js, heatmap.js, lanes.js, reader.js and grafana.js.

const POLL_MS = 2000;
// rank: the rank selected in the legend, null for all. run: the selected run, null for the agent's choice. view: run
// and rank of the last show(). state, history: the last replies. historyRun, historySteps: run and steps of `history`.
// outdatedPolls: number of polls at which `history` was out of date. start() adds heat (the heat map of layers), tables
// and reader (the cursor on a step). scaleChosen: the user has changed the checkbox "logarithmic".
const ui = { charts: [], rank: null, run: runOfAddress(), view: null, state: null, history: null, historyRun: null, historySteps: null, outdatedPolls: 0 };

// The fragment of the page's URL, #run=ID, selects the run.
function runOfAddress() {
  return new URLSearchParams(location.hash.slice(1)).get("run");
}

function layerText(rank, label) {
  const layer = (rank.layers || []).find((candidate) => candidate.layer === label);
  return label + (layer && known(layer.name) ? ` (${layer.name})` : "");
}

// Returns which attention layers were not checked, why and what to do, a sentence for each cause.
const gapsOf = (state) => (state?.attention_layers?.gaps || []).map((gap) => gap.text);

// Returns [kind, sentences]: the first finding of the run with what to do, else the agent's verdict. `kind` is good,
// waiting or bad, the class of the verdict's element. `state`: the state of the run, as the agent serves it.
function verdict(ranks, state) {
  const [first] = state?.findings || [], more = (state?.findings || []).length - 1;
  const failed = ranks.filter((rank) => rank.state === "failed").map((rank) => rank.rank);
  const failure = failed.length ? `RUN FAILED on rank ${span(failed)}. ` : "";
  if (first) return ["bad", `${failure}${first.headline}: ${first.text}. Do: ${first.action}.${more > 0 ? ` (and ${more} more)` : ""}`];
  const looks = (state?.conditions || []).filter((c) => c.kind === "look").length;
  const worth = state?.healthy && looks ? `; ${looks} ${looks === 1 ? "thing" : "things"} worth a look` : "";
  const [gap, ...gaps] = state?.verdict === "PARTLY CHECKED" ? gapsOf(state) : [];
  const missing = gap ? `: ${gap}.${gaps.length ? ` (and ${gaps.length} more)` : ""}` : "";
  const text = known(state?.verdict) ? state.verdict + worth + missing : "no verdict yet";
  return [failed.length ? "bad" : state?.healthy ? "good" : "waiting", failure + text];
}

// Remarks below the headline, one sentence each: [{text, alarm}].
function notes(ranks) {
  const onRank = (rank) => (ranks.length > 1 ? ` on rank ${rank.rank}` : ""), lines = [];
  const warn = (text) => lines.push({ text, alarm: true });
  for (const finding of (ui.state?.findings || []).slice(1, 4)) warn(`${finding.text}.`);
  for (const gap of gapsOf(ui.state).slice((ui.state?.findings || []).length ? 0 : 1, 2)) lines.push({ text: `Not checked: ${gap}.`, alarm: false });
  for (const look of (ui.state?.conditions || []).filter((c) => c.kind === "look").slice(0, 3)) lines.push({ text: `Worth a look: ${look.text}. Do: ${look.action}.`, alarm: false });
  for (const notice of (ui.state?.notices || []).slice(-2)) warn(`${notice}.`);  // about files of the run
  // Detectors that the benchmark has found useful (proven).
  const warning = ranks.flatMap((rank) => rank.precursors?.detectors || []).filter((d) => d.level === "warn" && d.measured?.proven);
  const names = [...new Set(warning.map(by("detector")))];
  if (names.length) warn(`${names.join(", ")} ${names.length > 1 ? "warn" : "warns"}.`);
  for (const incident of lossIncidents(ranks).slice(-3).reverse()) warn(incidentSentence(incident, ranks.length > 1));
  for (const rank of ranks) {
    const broken = rank.gradient?.nonfinite_layers || [];
    if (broken.length) warn(`NaN or Inf in the gradient of ${broken.slice(0, 8).join(", ")}${onRank(rank)}`);
    if (rank.no_attention_seen) warn(`No attention call has been seen${onRank(rank)}; dropout or a mask may put all of them on the unfused path.`);
    if (rank.alive === false && rank.state === "running") warn(`Rank ${rank.rank} is gone.`);
    if (rank.on === false) lines.push({ text: `Paused${onRank(rank)}; foreshock resume goes on.`, alarm: false });
  }
  if (ranks.length === 1 && ranks[0].alarms?.length && known(ranks[0].worst_layer)) lines.push({ text: "Worst layer: " + layerText(ranks[0], ranks[0].worst_layer), alarm: false });
  return lines.slice(0, 8);
}

function showVerdict(ranks) {
  const [kind, text] = ranks.length ? verdict(ranks, ui.state) : ["waiting", "waiting for the first rank"];
  byId("verdict").className = kind;
  setText(byId("verdict-text"), text);
  byId("notes").replaceChildren(...notes(ranks).map((line) => element("li", line.alarm ? "alarm" : "quiet", line.text)));
}

// Sets the title of the browser tab. A triangle marks a fault. Must be called after showVerdict().
function showTitle(state) {
  const mark = byId("verdict").className === "bad" ? "\u25B2 " : "";
  document.title = known(state.run) ? `${mark}${state.run} – foreshock` : "foreshock";
}

function showFigures(ranks) {
  byId("figures").replaceChildren(...(ranks.length ? figures(ranks) : []).map(([name, value, note, alarm]) => {
    const box = element("div", "figure");
    add(box, "h3", "", name);
    add(box, "div", alarm ? "value alarm" : "value", value);
    add(box, "div", "quiet", note);
    return box;
  }));
}

// "node17, user me, python3.11, torch 2.13.0": hosts, owner, executables and frameworks of the run.
function jobText(state, ranks) {
  const several = (key) => {
    const values = [...new Set(ranks.map(by(key)).filter(Boolean))];
    return values.slice(0, 3).join(", ") + (values.length > 3 ? ` and ${values.length - 3} more` : "");
  };
  const owner = (state.runs || []).find((run) => run.run === state.run)?.owner;
  return [several("host"), owner && `user ${owner}`, several("executable"), several("framework")].filter(Boolean).join(", ");
}

// Buttons that select a rank, made again only if the ranks change, so that they keep the focus.
function showLegend(ranks) {
  const legend = byId("legend"), wanted = ranks.map((rank) => String(rank.rank));
  legend.hidden = ranks.length < 2;
  if (legend.dataset.ranks !== wanted.join()) {
    legend.dataset.ranks = wanted.join();
    const button = (text, value, className) => {
      const added = add(legend, "button", className, text);
      added.addEventListener("click", () => {
        ui.rank = value;
        show();
      });
      added.dataset.rank = value ?? "all";
      return added;
    };
    legend.replaceChildren();
    button("all ranks", null, "all");
    wanted.forEach((rank, i) => {
      const added = button("rank " + rank, rank, ""); // colour and dash are those of the charts
      added.style.setProperty("--colour", `var(--rank-${i % 8})`);
      added.style.setProperty("--style", ["solid", "dashed", "dotted"][Math.floor(i / 8) % 3]);
    });
  }
  for (const child of legend.children) child.setAttribute("aria-pressed", String(child.dataset.rank === (ui.rank ?? "all")));
}

// Whether the largest loss is more than 30 times the smallest. A linear axis would then show only the largest losses.
function spansDecades(tables) {
  const values = tables.flatMap((t) => t.columns.loss || []).filter((y) => finite(y) && y > 0);
  return values.length > 0 && largest(values) > 30 * smallest(values);
}

// `ranks`: all ranks of the run. `shown`: those that the legend selects. `lanes`: a row of events per detector.
function showCharts(ranks, shown) {
  const order = ranks.map((rank) => rank.rank);
  const tables = (ui.history?.tables || []).filter((t) => !known(t.layer) && shown.some((rank) => rank.rank === t.rank))
    .map((t) => ({ ...t, index: order.indexOf(t.rank) }));
  const limits = { ...ui.state.thresholds, ...shown[0]?.limits, max_slowdown: shown[0]?.max_slowdown };
  if (!ui.scaleChosen) byId("logarithmic").checked = spansDecades(tables);
  const drawing = { limits, lanes: lanesOf(shown), lossEvents: lossIncidents(shown), logarithmic: byId("logarithmic").checked, cursor: ui.reader?.step ?? null };
  ui.reader?.update(tables, drawing);
  for (const chart of ui.charts) chart.update(tables, drawing);
}

// suggest() selects the signal of an alarm if the user has selected none. `pooled`: "RANK LAYER" of each layer with enough
// slices for a z of its bias; only there does the limit of the bias apply (heatmap.js).
function showHeat(shown) {
  const layers = (ui.history?.tables || []).filter((t) => known(t.layer) && Object.keys(t.columns).length && shown.some((rank) => rank.rank === t.rank));
  const names = new Map(shown.flatMap((rank) => (rank.layers || []).map((layer) => [layer.layer, layer.name])));
  ui.heat.suggest(shown.flatMap((rank) => rank.alarms || [])[0]);
  const pooled = new Set(shown.flatMap((rank) => (rank.layers || []).filter((layer) => finite(layer.bias_z)).map((layer) => `${rank.rank} ${layer.layer}`)));
  ui.heat.update(layers, { ...ui.state.thresholds, ...shown[0]?.limits }, names, pooled, largest(shown.map((rank) => rank.weights?.interval_steps)), lossIncidents(shown));
}

function showTables(ranks, shown) {
  ui.tables.before.fill(lossEventRows(shown), "Newest first. Steps before: from the signal of a detector to the onset of the event; the earliest of its layers.");
  ui.tables.ranks.fill(ranks.length > 1 ? ranks.map(rankRow) : []);
  const layers = layerRows(shown);
  ui.tables.layers.fill(layers, shown.length > 1 ? "Of each layer the rank with the largest ratio; layers with an alarm first." : "");
  ui.tables.detectors.fill(detectorRows(shown), "Highest level first. Value: the last one of the layer that is nearest to its limit; a detector warns at 100 % of it. Status: whether the benchmark on small trainings found the detector useful (default) or not yet (experimental); point at it for the figures.");
  ui.tables.events.fill(eventRows(shown));
  ui.tables.counts.fill(shown.length ? ["forward", "backward"].map((pass) => countRow(shown, pass)) : [],
    "calls = unsampled + skipped + sampled; sampled = judged + lost + in flight.");
  const agent = ui.state.agent || {};
  ui.tables.health.fill(healthRows(shown), `Agent ${agent.pid ?? "–"}: ${fixed(agent.cpu_seconds, 1)} s of CPU time at low priority, ` +
    `${count(agent.series)} series, ${count(agent.series_dropped)} dropped, ${count(agent.segments_refused)} segments refused, reference on ${agent.instruction_set ?? "–"}.`);
  ui.tables.logged.fill(loggedRows(shown));
}

// Returns the state of the selected run. `reply`: the reply of /api/v1/state. It has a list `runs` of all runs that the
// agent serves, but the state of only one of them, `reply.run`: the state of another run needs another request.
async function chooseRun(reply) {
  const runs = reply.runs ?? [reply], ids = runs.map((run) => run.run), select = byId("runs");
  select.hidden = runs.length < 2;
  byId("run").hidden = runs.length > 1;
  if (select.dataset.ids !== ids.join("\n")) {
    select.dataset.ids = ids.join("\n");
    select.replaceChildren(...ids.map((id) => element("option", "", id)));
  }
  const run = runs.find((each) => each.run === (ui.run ?? reply.run)) ?? runs[0] ?? {};
  select.selectedIndex = runs.indexOf(run);
  // If `ranks` is an array, `run` is a whole state, for example the reply itself if it has no list `runs`. In the agent's
  // list, `ranks` is only the number of ranks.
  if (Array.isArray(run.ranks)) return { ...reply, ...run };
  return (run.run ?? reply.run) === reply.run ? reply : read("/api/v1/state?run=" + encodeURIComponent(run.run));
}

// Resets the cursors of charts and heat map when another run or other ranks are shown.
function resetCursors(view) {
  if (ui.view === view) return;
  ui.view = view;
  ui.reader?.clearCursor();
  ui.heat.clearCursor();
}

// Updates the whole page from ui.state and ui.history. Ranks of an ended attempt (current: false) are left out.
function show() {
  const { state } = ui;
  const ranks = (state.ranks || []).filter((rank) => rank.current !== false);
  if (!ranks.some((rank) => String(rank.rank) === ui.rank)) ui.rank = null;
  const shown = ranks.filter((rank) => ui.rank === null || String(rank.rank) === ui.rank);
  resetCursors(JSON.stringify([state.run, ui.rank]));
  setText(byId("run"), known(state.run) ? state.run : "no run yet");
  setText(byId("state"), state.state ?? "unknown");
  setText(byId("job"), jobText(state, ranks));
  setText(byId("version"), known(state.version) ? "foreshock " + state.version : "");
  showGrafana(state, ui.rank);
  showVerdict(ranks);
  showTitle(state);
  showFigures(shown);
  showLegend(ranks);
  showCharts(ranks, shown);
  showHeat(shown);
  showTables(ranks, shown);
}

async function read(path) {
  const response = await fetch(path, { cache: "no-store" });
  if (!response.ok) throw new Error(path + ": status " + response.status);
  return response.json();
}

// Reads another run's history at once, the same run's at every second poll with new steps or judged backward slices. These
// are the last slices that the agent judges of a step, so their count also shows that the last steps have new values.
async function readHistory(state) {
  const steps = JSON.stringify((state.ranks || []).map((rank) => [rank.rank, rank.steps, rank.attention?.backward?.judged]));
  const isOtherRun = ui.historyRun !== state.run;
  if (!isOtherRun) {
    if (steps === ui.historySteps) return;
    ui.outdatedPolls += 1;
    if (ui.outdatedPolls % 2 === 0) return;
  }
  const history = await read("/api/v1/history" + (known(state.run) ? "?run=" + encodeURIComponent(state.run) : ""));
  Object.assign(ui, { history, historyRun: state.run, historySteps: steps });
}

// Returns false if the user selected another run meanwhile; the update of that run is already in progress.
async function update() {
  const run = ui.run;
  const state = await chooseRun(await read("/api/v1/state"));
  if (ui.run !== run) return false;
  await readHistory(state);
  if (ui.run !== run) return false;
  ui.state = state;
  show();
  return true;
}

async function poll() {
  const fresh = byId("fresh");
  try {
    if (await update()) setText(fresh, "live");
    fresh.className = "quiet";
  } catch (error) {
    // The agent ends with its last run. What the page has is then the past, the state of the run included.
    setText(fresh, "agent not reachable; these are the last values");
    if (ui.state?.state === "running") setText(byId("state"), "running when last seen");
    fresh.className = "quiet alarm";
    console.warn(error);
  }
  setTimeout(poll, POLL_MS);
}

// Table(parent, title, columns, indices of the columns with text, text if it is empty, whether it is open).
function start() {
  const tables = byId("tables");
  if (window.Chart) ui.charts = CHARTS.map((kind) => new StepChart(byId(kind.isWide ? "loss" : "charts"), kind));
  else add(byId("loss"), "p", "quiet", "This foreshock was built without a chart library.");
  byId("signals").hidden = ui.charts.length === 0;
  ui.heat = new HeatMap();
  ui.tables = {
    ranks: new Table(tables, "Ranks", ["rank", "state", "step", "loss", "gradient norm", "ratio forward", "largest", "ratio backward", "bias, ulp", "z",
      "worst layer", "s per step", "slowdown"], [0, 1]), // with one rank, other parts of the page have these values
    before: new Table(byId("before"), "Loss events, and what came before", ["event", "step", "time", "seen at step", "rank", "detector", "level", "layer", "from step", "steps before"], [0, 5, 6, 7, 9],
      "None so far. A spike is three losses in a row far above the 128 before them."),
    detectors: new Table(byId("detectors"), "Detectors", ["detector", "finding", "level", "value", "limit", "of the limit", "layer", "since step", "rank", "values",
      "warned", "last warning at step", "status"], [0, 1, 2, 4, 5, 6, 12], "Fills with the first rank."),
    events: new Table(tables, "Events", ["first step", "time", "last step", "what", "rank", "layer", "times", "value"], [3], "None so far."),
    layers: new Table(tables, "Layers", ["layer", "name", "rank", "ratio forward", "ratio backward", "bias, ulp", "z", "relative error", "largest logit",
      "least entropy", "gradient norm", "steps with NaN or Inf"], [0, 1], "Fills with the first attention slice that is judged."),
    logged: new Table(tables, "What the training logs", ["name", "rank", "value", "step"], [0],
      "Fills when the training logs a number to W&B, TensorBoard, Lightning or Hugging Face."),
    counts: new Table(tables, "Every attention call is counted", ["pass", "calls", "unsampled", "skipped", "sampled", "judged", "lost", "in flight",
      "why skipped or lost"], [0, 8], "Fills with the first rank.", false),
    health: new Table(tables, "The monitor itself", ["rank", "monitor", "source of steps", "source of layers", "source of loss", "sampling interval, steps", "slowdown", "budget",
      "s in attention calls", "s at step ends", "s in the agent", "slots", "step records lost", "slices refused", "optimizer steps skipped"], [0, 1, 2, 3, 4], "Fills with the first rank.", false),
  };
  if (ui.charts.length) ui.reader = new StepReader(ui.charts[0], show);
  byId("logarithmic").addEventListener("change", () => {
    ui.scaleChosen = true;
    show();
  });
  byId("runs").addEventListener("change", async (event) => {
    ui.run = event.target.value;
    history.replaceState(null, "", "#" + new URLSearchParams({ run: ui.run }));
    try {
      await update();
    } catch (error) {
      console.warn(error);
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    ui.charts.forEach((chart) => chart.destroy());
    if (ui.state) show();
  });
  poll();
}

start();
