// Draws the report of bench/precursors.py from its results, `study`: tables of all detectors, and charts of trainings.
// The page loads lab/page/report.js (element, section, table, axis, short, COLOURS) before this file. A recipe describes
// a training and its planted fault. In `study`, `shipped` has the figures of each detector with foreshock's own
// threshold: over all recipes (`all`) and by recipe (`recipes`). `learned` has the figures over all recipes with
// thresholds that were learned from a part of the trainings.
(() => {
  const { recipes, shipped, learned, curves, protocol, attention_errors: errors } = study;
  const drawn = []; // functions that draw the charts; called at the end, when the canvases are in the page
  const share = (x) => x === null ? '–' : `${Math.round(100 * x)} %`;
  const range = (low, high) => low === null ? '' : ` [${short(low)}, ${short(high)}]`;
  const HEAD = ['detector', 'hits', '95 %', 'twin', 'lead: median (quartiles; p10)', 'alarms', 'right', 'lift', 'false per 10 k steps'];

  // Returns the cells of a table row, for the columns HEAD. `d`: the figures of a detector; unknown figures are null.
  // `right`: alarms that a loss event follows. The page explains the other columns, in the section 'all'.
  const row = (name, d) => [name, `${d.hits} of ${d.events}`, d.hit_low === null ? '–' : `${share(d.hit_low)}–${share(d.hit_high)}`, String(d.twin_hits),
    d.lead_median === null ? '–' : `${short(d.lead_median)} (${d.lead_p25}–${d.lead_p75}; ${d.lead_p10})`, String(d.alarms), String(d.right),
    short(d.lift) + range(d.lift_low, d.lift_high), d.twin_steps ? `${short(d.false_per_10k)} (≤ ${short(d.false_per_10k_most)})` : '–'];

  // Makes the chart of a recipe from one seed: the losses of both arms (with the fault, and the twin without it), the
  // onsets of loss events, and the steps at which detectors began to warn in the arm with the fault.
  function frame(name) {
    if (!window.Chart) return element('p', { textContent: 'made without the chart library: tables only' });
    const canvas = element('canvas');
    const fault = curves.find((c) => c.recipe === name); // its `curve` is a list of points [step, loss]
    const last = fault.curve[fault.curve.length - 1][0];
    const twin = curves.find((c) => c.recipe === fault.twin);
    const arms = [...(twin ? [{ ...twin, curve: twin.curve.filter((p) => p[0] <= last) }] : []), fault];
    const finite = arms.flatMap((c) => c.curve.map((p) => p[1])).filter((y) => y !== null && y > 0);
    const [least, most] = [Math.min(...finite), Math.max(...finite)];
    const line = (c) => ({
      label: c === fault ? 'with the fault' : 'twin', data: c.curve.filter((p) => p[1] !== null).map((p) => ({ x: p[0], y: p[1] })),
      borderColor: COLOURS[c === fault ? 1 : 0], backgroundColor: COLOURS[c === fault ? 1 : 0], borderWidth: 1.5, pointRadius: 0,
    });
    const marks = (label, steps, height, colour, style) => ({
      label, data: steps.map((x) => ({ x, y: height })), showLine: false, pointStyle: style, pointRadius: 5, borderColor: colour, backgroundColor: colour,
    });
    // Each detector has a row and a colour. The first two colours are those of the arms.
    const alarmed = Object.entries(fault.alarms);
    const height = (n) => most * Math.pow(most / least, 0.06 * (n + 1)); // of row n above the curves; a row is 6 % of their logarithmic range
    const datasets = [...arms.map(line), marks('loss event', fault.onsets, most, '#b3372e', 'triangle'),
      ...alarmed.map(([detector, steps], n) => marks(detector, steps, height(n), COLOURS[(n + 2) % COLOURS.length], 'rect'))];
    drawn.push(() => new Chart(canvas, {
      type: 'line', data: { datasets },
      options: {
        animation: false, maintainAspectRatio: false,
        scales: { x: { type: 'linear', title: { display: true, text: 'optimizer step' }, grid: { color: '#eef1f4' } }, y: axis(true, 'loss; above it, alarms') },
        plugins: { legend: { position: 'bottom' } },
      },
    }));
    return element('div', { className: 'chart', style: 'height: 420px' }, canvas);
  }

  section('all', 'all recipes', 'thresholds as they ship', table(HEAD, Object.entries(shipped).map(([name, of]) => row(name, of.all))),
    element('p', { className: 'facts', textContent: `hit: the detector begins to warn within ${protocol.horizon} steps before a loss event, of attention ${protocol.long_horizon}; twin: windows of hits in which the training without the fault alarmed too; ` +
      'lift: how much more often an event follows an alarm than any scored step, 1 being chance, with 95 % over seeds; false: in trainings without a fault, with the 95 % Poisson bound' }));
  section('trainings', 'the trainings', 'each with a twin that has no fault', table(['recipe', 'family', 'model', 'what is wrong', 'trained', 'with a loss event'],
    recipes.map((r) => [r.name, r.family, r.model, r.what, String(r.seeds.length), String(r.with_events)])));
  section('errors', 'planted attention errors', 'and attention without an error', table(['recipe', 'trainings', 'with a loss event', 'output_error_drift', 'right layer', 'before the event', 'lead', 'bias', 'right layer'],
    errors.map((e) => [e.recipe, String(e.trainings), String(e.with_event), String(e.output_error_drift.seen), String(e.output_error_drift.right), String(e.output_error_drift.before),
      e.output_error_drift.lead === null ? '–' : String(e.output_error_drift.lead), String(e.bias.seen), String(e.bias.right)])));
  for (const recipe of recipes.filter((r) => r.twin && r.seeds.length)) {
    const rows = Object.entries(shipped).filter(([, of]) => of.recipes[recipe.name] && of.recipes[recipe.name].alarms > 0)
      .map(([name, of]) => row(name, of.recipes[recipe.name]));
    section(recipe.name, recipe.name, recipe.what, frame(recipe.name),
      rows.length ? table(HEAD, rows) : element('p', { className: 'facts', textContent: 'no detector alarmed in a scored step' }));
  }
  section('learned', 'thresholds learned from other seeds', 'even seeds to learn, odd seeds to score',
    table([HEAD[0], 'threshold', ...HEAD.slice(1)], Object.entries(learned).map(([name, of]) => { const [first, ...rest] = row(name, of.all); return [first, of.threshold ?? 'none', ...rest]; })));
  document.getElementById('summary').textContent = `${recipes.reduce((sum, r) => sum + r.seeds.length, 0)} small trainings on a CPU under the monitor, ` +
    `${recipes.filter((r) => r.twin && r.seeds.length).length} ways of going wrong, each beside a twin that does not.`;
  document.getElementById('setup').textContent = 'Protocol: bench/precursors/RESULTS.md.';
  drawn.forEach((draw) => draw());
})();
