// Draws the report of bench/yardsticks.py from its data, `study`: how far apart the weights of two trainings (a pair)
// move, by pair, checkpoint and replicate (a repetition of all pairs). The page's script begins with
// lab/page/report.js, which defines element, section, table, axis, short and COLOURS. W1 is the Wasserstein distance, d
// the difference of a weight w in the two trainings.
(() => {
  const { setup, summary, replicates } = study;
  const NAMES = {
    kernel: 'kernel: flash and unfused attention, bf16', 'kernel, fp32': 'kernel: flash and unfused attention, fp32',
    precision: 'precision: bf16 and fp32', seed: 'seed: other initial weights',
  };
  const colour = (name) => COLOURS[Object.keys(NAMES).indexOf(name) % COLOURS.length];
  const drawers = [];  // functions that draw the charts, called once the page is complete
  const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

  // Returns the element of a chart that draw(canvas) will draw.
  function frame(draw) {
    if (!window.Chart) return element('p', { textContent: 'made without the chart library: tables only' });
    const canvas = element('canvas');
    drawers.push(() => draw(canvas));
    return element('div', { className: 'chart' }, canvas);
  }

  // Draws, for each pair of trainings in `names`, a thin curve per replicate and a thick one for their mean.
  // value(p, r, i): the value at p, the i-th checkpoint of replicate r; null is not drawn. `text`: title of the y axis.
  function curves(canvas, names, value, text, logarithmic) {
    // '55': the opacity of the thin curves, in hexadecimal.
    const line = (points, name, thick) => ({
      label: thick ? NAMES[name] : '', data: points.filter((p) => p.y !== null && (!logarithmic || p.y > 0)),
      borderColor: colour(name) + (thick ? '' : '55'), backgroundColor: colour(name), borderWidth: thick ? 2.5 : 1, pointRadius: thick ? 2 : 0,
    });
    const datasets = names.flatMap((name) => {
      const thin = replicates.map((r) => r.pairs[name].map((p, i) => ({ x: p.step, y: value(p, r, i) })));
      const known = (i) => thin.map((points) => points[i].y).filter((y) => y !== null);
      const means = thin[0].map((p, i) => ({ x: p.x, y: known(i).length ? mean(known(i)) : null }));
      return [line(means, name, true), ...thin.map((points) => line(points, name, false))];
    });
    return new Chart(canvas, {
      type: 'line', data: { datasets },
      options: {
        animation: false, maintainAspectRatio: false, interaction: { mode: 'nearest', intersect: false },
        scales: {
          x: { type: 'linear', min: 0, max: setup.steps, title: { display: true, text: 'optimizer step' }, grid: { color: '#eef1f4' } },
          y: Object.assign(axis(logarithmic, text), { beginAtZero: !logarithmic }),
        },
        plugins: {
          legend: { position: 'bottom', labels: { filter: (item) => item.text !== '' } },
          tooltip: { callbacks: { label: (item) => `${item.dataset.label || 'one replicate'}: ${short(item.parsed.y)}` } },
        },
      },
    });
  }

  const withInterval = (x) => x.low === null ? short(x.mean) : `${short(x.mean)} [${short(x.low)}, ${short(x.high)}]`;

  const sideBySide = (...children) => element('div', { className: 'columns', style: 'grid-template-columns: repeat(auto-fit, minmax(420px, 1fr))' },
    ...children.map((child) => element('div', {}, child)));
  const pairNames = Object.keys(NAMES).filter((name) => replicates[0].pairs[name]);  // NAMES lacks "again" (twins.py), a training and its repetition
  section('claim', 'the claim', 'arXiv 2405.02803: another kernel moves weights 2–5 times less than low precision does',
    element('ul', { className: 'claims' }, ...Object.entries(summary.claim).map(([name, found]) =>
      element('li', { className: found.verdict === 'confirmed' ? '' : 'fails' },
        element('span', { className: 'verdict', textContent: found.verdict }), ` precision over kernel by ${name}`,
        element('span', { className: 'measured', textContent: `${withInterval(found)} times, 95 % over ${setup.replicates} replicates` })))),
    element('p', { className: 'facts', textContent: 'confirmed: the whole interval lies in 2–5; denied: it lies outside; else undecided' }));
  section('kernel', 'kernel against kernel', 'the paper’s Figure 7', sideBySide(
    frame((canvas) => curves(canvas, pairNames.filter((n) => n.startsWith('kernel')), (p) => p.max_abs, 'max |d|', false)),
    frame((canvas) => curves(canvas, pairNames.filter((n) => n.startsWith('kernel')), (p) => p.w1, 'W1', false))));
  section('yardsticks', 'beside the yardsticks', 'the paper’s Figure 8', sideBySide(
    frame((canvas) => curves(canvas, pairNames, (p) => p.w1, 'W1', false)),
    frame((canvas) => curves(canvas, pairNames, (p) => p.mean_abs, 'mean |d|', false))));
  section('scale', 'the same, relative and logarithmic', 'W1 alone is blind to noise that leaves the distribution where it was', sideBySide(
    frame((canvas) => curves(canvas, pairNames, (p) => p.w1 / p.magnitude, 'W1 / mean |w|', true)),
    frame((canvas) => curves(canvas, pairNames, (p) => p.mean_abs / p.magnitude, 'mean |d| / mean |w|', true))));
  section('ratio', 'over precision', 'how many times less than precision, step by step', sideBySide(
    ...['w1', 'mean_abs'].map((what) => frame((canvas) => curves(canvas, pairNames.filter((n) => n !== 'precision'),
      (p, r, i) => p[what] > 0 ? r.pairs.precision[i][what] / p[what] : null, `precision / pair, ${what === 'w1' ? 'W1' : 'mean |d|'}`, true)))));
  section('slopes', 'slopes and last values', 'mean and 95 % interval over replicates', table(
    ['pair', 'slope of W1', 'slope of mean |d|', 'W1 at the end', 'mean |d| at the end'],
    pairNames.map((name) => [NAMES[name], ...['slopes', 'last'].flatMap((what) => ['w1', 'mean_abs'].map((s) => withInterval(summary[what][s][name])))])));
  // A training that belongs only to the pair "again" is in one replicate, so the others have no loss of it.
  section('losses', 'losses', 'mean over the last interval', table(['replicate', ...Object.keys(replicates[0].losses)],
    replicates.map((r) => [String(r.replicate + 1), ...Object.keys(replicates[0].losses).map((arm) => r.losses[arm] === undefined ? '–' : r.losses[arm].toFixed(4))])));
  document.getElementById('summary').textContent =
    `Twin trainings of a byte-level GPT of ${short(setup.parameters)} parameters, ${setup.steps} steps, ${setup.replicates} replicates; ` +
    'twins see the same batches and differ in one thing. All tensors pooled.';
  document.getElementById('setup').textContent =
    `torch ${setup.torch}, one thread, AdamW; bf16 is autocast over fp32 weights. One training repeated has the same bits: ` +
    `${summary.repeated_to_the_bit === null ? 'not tried' : summary.repeated_to_the_bit ? 'yes' : 'no'}.`;
  drawers.forEach((draw) => draw());
})();
