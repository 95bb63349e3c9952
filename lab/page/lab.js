'use strict';
// The page of `foreshock lab --report`: for each sweep its chart, its claims and a table of its points. A sweep varies
// settings (AXES). A point has the settings and statistics of one output tensor of one algorithm. A claim is a statement
// about a sweep that is checked on its points. report.js has the helpers (element(), axis(), ...) and `study`: the JSON
// of lab/study.h. A drawing in study.drawings describes the chart of a sweep: x (an axis), y (a statistic), series (axes
// with commas), tensor ('': several), choose (whether the page lets its reader choose a tensor), ...
(() => {
  // Titles of the statistics of a point. Each statistic is {mean, low, high} over the seeds.
  const STATISTICS = {
    max_abs: 'largest deviation', mean_abs: 'mean deviation', std_abs: 'standard deviation of the deviation',
    relative_l2: 'relative L2 error', bias_ulp: 'bias (ulp, > 0 away from zero)',
    ratio_to_plain: 'relative L2 / plain', max_ratio_to_plain: 'largest deviation / plain',
    max_from_plain: 'largest difference to plain', signed_sum: 'signed sum of the deviation',
    max_over_roundoff: 'largest deviation / (unit roundoff × largest output)',
  };
  const AXES = ['algorithm', 'format', 'accumulator', 'rounding', 'input', 'n', 'd', 'rows', 'block_q', 'block_k',
    'splits', 'key_order', 'scale', 'pass', 'delta', 'reference', 'seeds', 'first_seed', 'tensor'];
  // The axes on which the points differ.
  const varying = (points) => AXES.filter((axis) => unique(points.map((p) => p[axis])).length > 1);

  // A plugin of Chart.js that draws the 95 % interval over seeds of each point as a thin bar.
  const intervals = {
    id: 'intervals',
    afterDatasetsDraw(chart) {
      const { ctx, scales: { y } } = chart;
      chart.data.datasets.forEach((dataset, i) => {
        if (!chart.isDatasetVisible(i)) return;
        ctx.save();
        ctx.strokeStyle = dataset.borderColor;
        ctx.globalAlpha = 0.6;
        chart.getDatasetMeta(i).data.forEach((mark, k) => {
          const value = dataset.statistics[k]; // the statistic {mean, low, high} of the mark
          if (!value || value.low === null || (y.type === 'logarithmic' && value.low <= 0)) return;
          const low = y.getPixelForValue(value.low), high = y.getPixelForValue(value.high);
          ctx.beginPath();
          ctx.moveTo(mark.x, low);
          ctx.lineTo(mark.x, high);
          ctx.stroke();
        });
        ctx.restore();
      });
    },
  };

  // The series of a chart, as datasets of Chart.js. `labels`: the categories if x is not a number, else null.
  // Category n is at x = n; the series are drawn side by side around it.
  function datasets(points, drawing, statistic, labels) {
    const keys = drawing.series.split(',');
    const name = (p) => keys.map((key) => p[key]).join(', ');
    const names = unique(points.map(name));
    return names.map((label, i) => {
      const own = points.filter((p) => name(p) === label);
      const aside = 0.6 * ((i + 0.5) / names.length - 0.5); // within 0.3 of the category
      if (!labels) own.sort((a, b) => a[drawing.x] - b[drawing.x]);
      const colour = COLOURS[i % COLOURS.length];
      return {
        label,
        statistics: own.map((p) => p[statistic]),
        data: own.map((p) => ({ x: labels ? labels.indexOf(String(p[drawing.x])) + aside : p[drawing.x], y: p[statistic].mean })),
        borderColor: colour, backgroundColor: colour, borderWidth: 2, pointRadius: labels ? 4.5 : 3,
        borderDash: i < COLOURS.length ? [] : [5, 4], showLine: !labels, tension: 0,
      };
    });
  }

  // Draws the chart of a sweep. `statistic`: the one on the y axis. `logarithmic`: the scale of this axis.
  function draw(canvas, points, drawing, statistic, logarithmic) {
    const labels = points.some((p) => typeof p[drawing.x] !== 'number')
      ? unique(points.map((p) => String(p[drawing.x]))) : null;
    const x = axis(!labels && drawing.log_x, drawing.x);
    if (labels) {
      Object.assign(x, { min: -0.5, max: labels.length - 0.5 });
      x.afterBuildTicks = (scale) => { scale.ticks = labels.map((_, value) => ({ value })); };
      x.ticks.callback = (v) => labels[v];
    }
    if (!labels && drawing.log_x) {
      const values = unique(points.map((p) => p[drawing.x])).sort((a, b) => a - b);
      x.afterBuildTicks = (scale) => { scale.ticks = values.map((value) => ({ value })); };
      x.ticks.callback = (v) => short(v);
      x.min = values[0] / 1.15; // margins on both sides
      x.max = values[values.length - 1] * 1.15;
    }
    return new Chart(canvas, {
      type: 'line',
      data: { datasets: datasets(points, drawing, statistic, labels) },
      plugins: [intervals],
      options: {
        animation: false, maintainAspectRatio: false, interaction: { mode: 'nearest', intersect: false },
        scales: { x, y: axis(logarithmic, STATISTICS[statistic]) },
        plugins: {
          legend: { position: 'bottom', labels: { boxWidth: 12, boxHeight: 3, font: { size: 11 } } },
          tooltip: { callbacks: { title: (items) => labels ? labels[Math.round(items[0].parsed.x)]
            : `${drawing.x} ${short(items[0].parsed.x)}`, label: (item) => {
            const value = item.dataset.statistics[item.dataIndex];
            return `${item.dataset.label}: ${short(value.mean)}  (${short(value.low)} to ${short(value.high)})`;
          } } },
        },
      },
    });
  }

  // A chart of a sweep, with a choice of its statistic, scale and tensor. redraw() draws it.
  function chartPanel(points, drawing) {
    const canvas = element('canvas'), controls = element('div', { className: 'controls' });
    const statistic = element('select', {}, ...Object.entries(STATISTICS).map(
      ([value, text]) => element('option', { value, textContent: text, selected: value === drawing.y })));
    const logBox = element('input', { type: 'checkbox', checked: drawing.log_y });
    controls.append(element('label', {}, 'show ', statistic), element('label', {}, logBox, ' logarithmic'));
    const tensors = unique(points.map((p) => p.tensor));
    const tensor = element('select', {}, ...tensors.map(
      (value) => element('option', { value, textContent: value, selected: value === 'out' })));
    if (drawing.choose && tensors.length > 1) controls.prepend(element('label', {}, 'tensor ', tensor));
    const frame = element('div', { className: 'chart' }, canvas);
    let chart = null;
    const redraw = () => {
      if (chart) chart.destroy();
      const own = drawing.choose ? points.filter((p) => p.tensor === tensor.value) : points;
      const lines = unique(own.map((p) => drawing.series.split(',').map((key) => p[key]).join(', '))).length;
      frame.style.height = `${340 + 7 * lines}px`; // with room for the legend
      chart = draw(canvas, own, drawing, statistic.value, logBox.checked);
    };
    tensor.onchange = redraw;
    statistic.onchange = () => {
      logBox.checked = points.every((p) => p[statistic.value].mean > 0);
      redraw();
    };
    logBox.onchange = redraw;
    const panel = element('div', {}, controls, frame);
    return { panel, redraw };
  }

  function claimsPanel(claims) {
    if (!claims.length) return element('div');
    return element('ul', { className: 'claims' }, ...claims.map((claim) => element(
      'li', { className: claim.holds ? 'holds' : 'fails' },
      element('span', { className: 'verdict', textContent: claim.holds ? 'holds  ' : 'does not hold  ' }),
      claim.statement + ' ', element('span', { className: 'source', textContent: `(${claim.source})` }),
      element('span', { className: 'measured', textContent: claim.measured }))));
  }

  function dataTable(points) {
    const axes = unique(['algorithm', 'tensor', ...varying(points)]);
    const figures = ['max_abs', 'mean_abs', 'std_abs', 'relative_l2', 'bias_ulp', 'bias_z', 'ratio_to_plain',
      'max_ratio_to_plain'];
    const head = element('tr', {}, ...axes.map((a) => element('th', { textContent: a, className: 'name' })),
      ...figures.map((f) => element('th', { textContent: f })));
    const rows = points.map((p) => element('tr', {},
      ...axes.map((a) => element('td', { textContent: p[a], className: 'name' })),
      ...figures.map((f) => element('td', {
        textContent: short(p[f].mean), title: `${short(p[f].low)} to ${short(p[f].high)}` }))));
    return element('details', {}, element('summary', { textContent: `all ${points.length} points` }),
      element('div', { className: 'scroll' }, element('table', {}, element('thead', {}, head),
        element('tbody', {}, ...rows))));
  }

  // The complete drawing. For points chosen on the command line, `drawing` has no x. Then x becomes the numeric axis
  // (or, if none is numeric, the axis) with the most values, and the other axes that vary define the series.
  function completed(points, drawing) {
    if (drawing.x) return drawing;
    const axes = varying(points).filter((axis) => axis !== 'first_seed' && axis !== 'tensor');
    const rank = (axis) => unique(points.map((p) => p[axis])).length + (typeof points[0][axis] === 'number' ? 1e3 : 0);
    const x = [...axes].sort((a, b) => rank(b) - rank(a))[0] || 'algorithm';
    const series = axes.filter((axis) => axis !== x);
    return { ...drawing, question: 'points of your own', x, y: 'relative_l2', tensor: '', choose: true,
      series: (series.length ? series : ['algorithm']).join(','), log_y: true,
      log_x: typeof points[0][x] === 'number' };
  }

  function sweepSection(drawing) {
    const all = study.points.filter((p) => p.sweep === drawing.name);
    drawing = completed(all, drawing);
    // The log-sum-exp is left out, since most algorithms do not store it in the format under test.
    const points = all.filter((p) => drawing.tensor ? p.tensor === drawing.tensor : p.tensor !== 'log_sum_exp');
    const fixed = AXES.filter((axis) => !varying(points).includes(axis) && !['first_seed', 'tensor'].includes(axis));
    const facts = element('p', { className: 'facts' });
    fixed.forEach((axis) => facts.append(`${axis} `, element('b', { textContent: points[0][axis] }), '   '));
    facts.append('first seed ', element('b', { textContent: points[0].first_seed }));
    const claims = study.claims.filter((claim) => claim.sweep === drawing.name);
    const columns = element('div', { className: claims.length ? 'columns' : '' });
    let redraw = () => {};
    if (window.Chart) {
      const chart = chartPanel(points, drawing);
      columns.append(chart.panel);
      redraw = chart.redraw;
    } else {
      columns.append(element('p', { textContent: 'built without the chart library: tables only' }));
    }
    columns.append(claimsPanel(claims));
    const section = element('section', { id: drawing.name }, element('h2', {}, drawing.name,
      element('small', { textContent: drawing.question })), facts, columns, dataTable(all));
    document.getElementById('sweeps').append(section);
    redraw();
  }

  const holding = study.claims.filter((claim) => claim.holds).length;
  document.getElementById('summary').textContent =
    `Deviation of algorithms, formats and tiles from attention computed in fp64, beside plain unfused attention in ` +
    `the same format. ${study.points.length} points in ${study.seconds.toFixed(1)} s. ` +
    (study.claims.length ? `Of ${study.claims.length} statements checked, ${holding} hold.` : '');
  study.drawings.forEach((drawing) => {
    document.getElementById('contents').append(
      element('a', { href: '#' + drawing.name, textContent: drawing.name }));
    sweepSection(drawing);
  });
  document.getElementById('setup').textContent =
    'Every figure is a mean over seeds; bars and brackets are 95 % intervals by Student\u2019s t. The reference is ' +
    'plain attention in fp64 on the inputs as rounded to the format, unless a point says otherwise. ' +
    Object.entries(study.versions).map(([name, version]) => `${name} ${version}`).join(' · ');
})();
