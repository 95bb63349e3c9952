// The page of `foreshock compare --report`: charts and tables of the distances between checkpoints a and b of each
// pair. report.js has `study`, the JSON of lab/comparison_report.h, and the functions that are not defined here. W1 is the
// Wasserstein distance; its noise floor is the W1 of two independent draws of one distribution; d = b - a.
(() => {
  // What a chart can show: title, and value of an entry `e` of the JSON (a tensor, or all pooled).
  const STATISTICS = {
    w1_relative: ['W1 / mean |a|', (e) => ratio(e.w1, e.magnitude)],
    w1: ['W1', (e) => e.w1],
    mean_abs_relative: ['mean |d| / mean |a|', (e) => ratio(e.mean_abs, e.magnitude)],
    mean_abs: ['mean |d|', (e) => e.mean_abs],
    relative_l2: ['relative L2', (e) => e.relative_l2],
    max_abs: ['max |d|', (e) => e.max_abs],
    w1_over_mean_abs: ['W1 / mean |d|: near 1 drift, near 0 noise', (e) => e.w1_over_mean_abs],
    w1_over_floor: ['W1 / noise floor', (e) => ratio(e.w1, e.w1_noise_floor)],
  };
  // The columns of the tables: title, and value of an entry.
  const FIGURES = [['values', (e) => e.elements], ['W1', (e) => e.w1], ['at least', (e) => e.w1_low],
    ['at most', (e) => e.w1_high], ['noise floor', (e) => e.w1_noise_floor], ['mean |d|', (e) => e.mean_abs],
    ['W1/mean |d|', (e) => e.w1_over_mean_abs], ['max |d|', (e) => e.max_abs], ['relative L2', (e) => e.relative_l2],
    ['mean |a|', (e) => e.magnitude], ['not finite', (e) => e.non_finite_a + e.non_finite_b]];
  const ROWS = 500;  // most rows of the table of tensors
  const pairs = study.pairs;

  function ratio(x, y) { return x === null || !y ? null : x / y; }
  const colour = (i) => COLOURS[i % COLOURS.length];

  // A table with FIGURES. `entries`: [labels in the first columns, entry of the JSON]; `names`: those columns' headings.
  const figures = (names, entries) => table([...names, ...FIGURES.map(([name]) => name)],
    entries.map(([labels, e]) => [...labels, ...FIGURES.map(([, value]) => short(value(e)))]), names.length);

  // All pairs side by side on one scale, as in Figure 8 of arXiv 2405.02803.
  function pooledChart(canvas) {
    const bars = [['W1', (e) => e.w1], ['mean |d|', (e) => e.mean_abs], ['noise floor of W1', (e) => e.w1_noise_floor]];
    const highest = Math.max(...pairs.flatMap((p) => bars.map(([, value]) => value(p.pooled) || 0)));
    return new Chart(canvas, {
      type: 'bar',
      data: {
        labels: pairs.map((p) => p.name),
        // null: no bar, since 0 has no place on a logarithmic scale
        datasets: bars.map(([label, value], i) => ({ label, data: pairs.map((p) => value(p.pooled) || null), backgroundColor: colour(i) })),
      },
      options: {
        animation: false, maintainAspectRatio: false,
        // The y axis ends well above the highest bar.
        scales: { x: { grid: { display: false } }, y: Object.assign(axis(true, 'in the unit of the weights'), { suggestedMax: 2 * highest }) },
        plugins: { legend: { position: 'bottom' }, tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${short(item.parsed.y)}` } } },
      },
    });
  }

  // One point for each tensor and pair. `statistic`: a key of STATISTICS.
  function tensorChart(canvas, statistic, logarithmic) {
    const [text, value] = STATISTICS[statistic];
    const names = unique(pairs.flatMap((p) => p.tensors.map((t) => t.name)));
    const position = new Map(names.map((name, i) => [name, i]));
    return new Chart(canvas, {
      type: 'scatter',
      data: {
        datasets: pairs.map((p, i) => ({
          label: p.name, backgroundColor: colour(i), borderColor: colour(i), pointRadius: names.length > 300 ? 1.5 : 3,
          data: p.tensors.map((t) => ({ x: position.get(t.name), y: value(t), name: t.name }))
            .filter((point) => point.y !== null && (!logarithmic || point.y > 0)),
        })),
      },
      options: {
        animation: false, maintainAspectRatio: false, interaction: { mode: 'nearest', intersect: false },
        scales: { x: Object.assign(axis(false, 'tensor, in order of name'), { min: -1, max: names.length }), y: axis(logarithmic, text) },
        plugins: { legend: { position: 'bottom' }, tooltip: { callbacks: {
          label: (item) => `${item.raw.name}, ${item.dataset.label}: ${short(item.parsed.y)}` } } },
      },
    });
  }

  // A chart of single tensors, with a choice of its statistic and scale. redraw() draws it.
  function tensorPanel() {
    const canvas = element('canvas');
    const statistic = element('select', {}, ...Object.entries(STATISTICS).map(
      ([value, [text]]) => element('option', { value, textContent: text })));
    const scale = element('input', { type: 'checkbox', checked: true });
    let chart = null;
    const redraw = () => {
      if (chart) chart.destroy();
      chart = tensorChart(canvas, statistic.value, scale.checked);
    };
    statistic.onchange = redraw;
    scale.onchange = redraw;
    const controls = element('div', { className: 'controls' }, element('label', {}, 'show ', statistic),
      element('label', {}, scale, ' logarithmic'));
    return { panel: element('div', {}, controls, element('div', { className: 'chart' }, canvas)), redraw };
  }

  // All tensors of all pairs, in descending order of relative L2. A long list is cut; a search box finds the others.
  function tensorTable() {
    const all = pairs.flatMap((p) => p.tensors.map((t) => [[t.name, p.name, t.type_a === t.type_b ? t.type_a : `${t.type_a} and ${t.type_b}`], t]));
    all.sort(([, a], [, b]) => (b.relative_l2 ?? -1) - (a.relative_l2 ?? -1));
    const search = element('input', { type: 'search', placeholder: 'part of a name' });
    const place = element('div');
    const fill = () => {
      const found = all.filter(([[name]]) => name.includes(search.value));
      place.replaceChildren(figures(['tensor', 'pair', 'type'], found.slice(0, ROWS)),
        element('p', { className: 'facts', textContent: found.length > ROWS ? `the first ${ROWS} of ${found.length}` : '' }));
    };
    search.oninput = fill;
    fill();
    return element('div', {}, element('div', { className: 'controls' }, element('label', {}, 'tensors named ', search)), place);
  }

  // Adds a section with the tensors that were not compared or whose types differ.
  function unlike() {
    const lists = pairs.flatMap((p) => {
      const [a, b] = [study.checkpoints[p.a], study.checkpoints[p.b]];
      const describe = (tensor) => `${tensor.name}: ${tensor.a} and ${tensor.b}`;  // the shapes or types in a and b
      return [[`only in ${a}`, p.only_in_a], [`only in ${b}`, p.only_in_b], ['not compared, shapes differ', p.shapes_differ.map(describe)],
        ['not compared, no floating type of 16 bits or more', p.not_compared.map(describe)], ['compared, though types differ', p.types_differ.map(describe)]]
        .filter(([, names]) => names.length).map(([title, names]) => element('details', {},
          element('summary', { textContent: `${p.name}: ${title} (${names.length})` }),
          ...names.map((name) => element('div', { textContent: name }))));
    });
    if (lists.length) section('unlike', 'not alike', '', ...lists);
  }

  const tensors = Math.max(...pairs.map((p) => p.tensors.length));
  document.getElementById('summary').textContent =
    `How far apart the weights of ${study.checkpoints.length} checkpoints are: ${pairs.length} pair${pairs.length > 1 ? 's' : ''}, ` +
    `up to ${tensors} tensors, ${(study.bytes / 1e9).toPrecision(3)} GB in ${study.seconds.toFixed(1)} s.`;
  const drawings = [];  // functions that draw the charts; called last, since a chart takes its size from the page
  const frame = (draw) => {  // the place of a chart that draw(canvas) draws
    if (!window.Chart) return element('p', { textContent: 'built without the chart library: tables only' });
    const canvas = element('canvas');
    drawings.push(() => draw(canvas));
    return element('div', { className: 'chart' }, canvas);
  };
  section('pooled', 'all tensors pooled', 'the pairs on one scale', frame(pooledChart),
    figures(['pair'], pairs.map((p) => [[p.name], p.pooled])),
    ...pairs.map((p) => element('div', { className: 'facts', textContent: `${p.name}: ${study.checkpoints[p.b]} against ${study.checkpoints[p.a]}` })));
  if (window.Chart) {
    const panel = tensorPanel();
    drawings.push(panel.redraw);
    section('tensors', 'tensor by tensor', 'early layers to the left', panel.panel);
  }
  section('table', 'figures', 'farthest first', tensorTable());
  unlike();
  drawings.forEach((draw) => draw());
  document.getElementById('setup').textContent =
    'W1 is the Wasserstein distance of the values of a and b, d = b − a value by value; W1 ≤ mean |d|, and their ratio is near 1 for a ' +
    'drift, near 0 for noise. The noise floor is the W1 of independent draws of one law. ' +
    Object.entries(study.versions).map(([name, version]) => `${name} ${version}`).join(' · ');
})();
