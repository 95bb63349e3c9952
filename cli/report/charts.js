// Draws the charts of the report page with Chart.js. embed.cmake joins this file with words.js, which defines `report`
// (the data), element(), known(), finite(), sentence(), and functions that write numbers as text: grouped(), short(),
// stepsText(), leadText(). A detector that has left level quiet has "moved". "Onset": the step at which a loss event
// begins. The colours follow those of Okabe and Ito, which any colour vision can distinguish. A shape or a word repeats
// the meaning of each colour, except in small rows of the layer map. Two hexadecimal digits after a colour: its opacity.
const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
// Colours by use; `quiet` is that of secondary text, `largest` that of the largest loss in a range of steps.
const INK = { line: cssColour('blue'), largest: cssColour('pale'), event: cssColour('orange'), moved: '#e69f00', warned: cssColour('orange'), green: cssColour('green'), grid: cssColour('grid'), quiet: cssColour('quiet'), paper: cssColour('paper') };
// Reloads when the reader switches to a dark or light scheme, since drawn charts keep their colours.
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => location.reload());

// Places each label {text, place, width} beside the vertical line at x = `place`, inside `area`, in the first row in
// which it covers no other label. All numbers are pixels; a row is 13 high.
function placedLabels(labels, area) {
  const rows = [];
  return labels.map(({ text, place, width }) => {
    const left = place + width + 6 > area.right ? Math.max(place - 4 - width, area.left) : place + 4, right = left + width;
    let row = rows.findIndex((taken) => taken.every((other) => left > other.right + 4 || right < other.left - 4));
    if (row < 0) { // no row has room
      row = rows.length;
      rows.push([]);
    }
    rows[row].push({ left, right });
    return { text, left, right, top: area.top + 1 + 13 * row, bottom: area.top + 13 + 13 * row };
  });
}

// A plugin of Chart.js. Draws vertical lines {at, text, colour, dash} and shaded bands {from, to}; `at`, `from` and `to`
// are values of the x axis (steps). A band goes from the step at which a detector moved to the loss event after it.
const marks = {
  id: 'marks',
  beforeDatasetsDraw(chart, _, { bands = [] }) {
    const { ctx, chartArea: area, scales: { x } } = chart;
    ctx.save();
    for (const { from, to } of bands) {
      const [left, right] = [from, to].map((step) => Math.min(Math.max(x.getPixelForValue(step), area.left), area.right));
      ctx.fillStyle = INK.moved + '2e';
      ctx.fillRect(left, area.top, right - left, area.bottom - area.top);
    }
    ctx.restore();
  },
  afterDatasetsDraw(chart, _, { lines = [] }) {
    const { ctx, chartArea: area, scales: { x } } = chart;
    ctx.save();
    ctx.font = '11px system-ui, sans-serif';
    const shown = lines.map((line) => ({ ...line, place: x.getPixelForValue(line.at) })).filter(({ place }) => place >= area.left - 1 && place <= area.right + 1);
    for (const { place, colour, dash } of shown) {
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = 1.5;
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(place, area.top);
      ctx.lineTo(place, area.bottom);
      ctx.stroke();
    }
    // If several lines at one step have the same text, the text is written once.
    const named = shown.filter((line, i) => line.text && !shown.slice(0, i).some((other) => other.text === line.text && Math.abs(other.place - line.place) < 2));
    // Stored in the chart only for tests (tests/support/layout_problems.js).
    chart.labels = placedLabels(named.map(({ text, place }) => ({ text, place, width: ctx.measureText(text).width })), area);
    chart.labels.forEach(({ text, left, right, top }, i) => {
      ctx.fillStyle = INK.paper + 'd9';
      ctx.fillRect(left - 2, top, right - left + 4, 13);
      ctx.fillStyle = named[i].colour;
      ctx.fillText(text, left, top + 10);
    });
    ctx.restore();
  },
};

// Appends a heading and a canvas with `label` for screen readers, and returns the canvas.
function frame(parent, title, label) {
  const canvas = element('canvas', { role: 'img', ariaLabel: label });
  canvas.setAttribute('aria-label', label); // older browsers ignore the property ariaLabel
  parent.append(element('h4', { textContent: title }), element('div', { className: 'frame' }, canvas));
  return canvas;
}

const tick = { color: INK.quiet, font: { size: 11 }, maxRotation: 0 };
const axis = (more) => ({ grid: { color: INK.grid }, border: { display: false }, ...more });
// Whether a logarithmic axis is better: all values are positive, and the largest is more than 30 times the smallest.
const spansDecades = (values) => {
  const numbers = values.filter((v) => finite(v));
  return numbers.length > 0 && numbers.every((v) => v > 0) && Math.max(...numbers) > 30 * Math.min(...numbers);
};
// Only numbers whose first digit is 1, 2 or 5 have a label, since more labels would overlap.
const logTick = (v) => (/^[125]/.test(v.toExponential()) ? short(v) : '');
// `labelWidth`: width of the axis with its labels. If it is the same in two charts, their steps are aligned.
function yAxis(values, labelWidth) {
  const logarithmic = spansDecades(values);
  const more = labelWidth ? { afterFit: (scale) => (scale.width = labelWidth) } : {};
  return axis({ ...more, type: logarithmic ? 'logarithmic' : 'linear', ticks: { ...tick, maxTicksLimit: 6, callback: logarithmic ? logTick : short } });
}
const LEAST_WITHOUT_DOTS = 40; // a curve with fewer points has a dot at each
const CHART_OPTIONS = { animation: false, maintainAspectRatio: false, responsive: true };

// Describes the range of values for screen readers.
function rangeText(values) {
  const numbers = values.filter((v) => finite(v));
  return numbers.length ? `from ${short(Math.min(...numbers))} to ${short(Math.max(...numbers))}` : 'no value is a number';
}

// Returns the last step of the run or of the loss curve. The curve ends earlier if the last losses are NaN or infinite,
// and later if its last point covers steps after the end of the run.
const lastStep = () => Math.max(report.timeline.last_step, report.timeline.first_step + (report.timeline.loss ?? []).length * report.timeline.steps_per_point - 1);

const MOST_LINES = 60; // in the charts of the whole run, only the first loss events have a vertical line

// Draws the loss of the whole run, with a numbered line at each loss event. Returns false without losses.
function lossChart(parent, labelWidth) {
  const { first_step: first, steps_per_point: stepsPerPoint, loss = [], loss_max: largest = [] } = report.timeline, end = lastStep();
  const points = (values) => values.map((y, i) => ({ x: first + i * stepsPerPoint, y }));
  if (!loss.some((v) => finite(v))) return false;
  const canvas = frame(parent, `loss${stepsPerPoint > 1 ? `, mean and largest of each ${grouped(stepsPerPoint)} steps` : ''}, by step`,
    `Loss of ${grouped(loss.length * stepsPerPoint)} steps, ${rangeText(loss)}; ${report.loss_events.length} loss events`);
  const line = (values, colour, borderWidth) => ({ data: points(values), borderColor: colour, borderWidth, pointRadius: 0, spanGaps: false });
  new Chart(canvas, {
    type: 'line', plugins: [marks],
    data: { datasets: [line(loss, INK.line, 1.6), ...(stepsPerPoint > 1 ? [line(largest, INK.largest, 1)] : [])] },
    options: {
      ...CHART_OPTIONS, parsing: false, normalized: true,
      scales: { x: axis({ type: 'linear', min: first, max: end, ticks: { ...tick, callback: grouped } }), y: yAxis([...loss, ...largest], labelWidth) },
      plugins: { legend: { display: false }, tooltip: { enabled: false },
        marks: { lines: report.loss_events.slice(0, MOST_LINES).map((e) => ({ at: e.step, text: String(e.number), colour: INK.event, dash: [4, 3] })) } },
    },
  });
  return true;
}

// Draws a row for each detector that has moved: a thin bar while it is not at level quiet, a thick bar from its warning
// on. The steps are those of the loss chart above.
function detectorChart(parent, labelWidth) {
  const { first_step: first, loss = [] } = report.timeline, end = lastStep();
  const phrase = new Map(report.detectors.map((d) => [d.detector, d.plain]));
  const names = [...new Set(report.episodes.map((e) => e.detector))];
  if (names.length === 0 || loss.length === 0) return;
  const label = (name) => sentence(phrase.get(name)).replace(/(.{18,}?) /g, '$1\n').split('\n'); // lines of about 18 characters
  const bar = (episode, from) => ({ x: [from, known(episode.end_step) ? episode.end_step : end], y: names.indexOf(episode.detector) });
  const rows = (list) => list.map(({ x, y }) => ({ x, y: String(y) })); // y: a label of the category axis
  const moved = rows(report.episodes.map((e) => bar(e, e.since_step)));
  const warned = rows(report.episodes.filter((e) => known(e.warn_step)).map((e) => bar(e, e.warn_step)));
  const canvas = frame(parent, 'when detectors moved (thin) and warned (thick)',
    names.map((name) => `${phrase.get(name)}: ${report.episodes.filter((e) => e.detector === name).length} times`).join('; '));
  canvas.parentElement.style.height = `${44 + 40 * names.length}px`; // 40 for each row, 44 for the axis
  // grouped: an option of Chart.js; false draws the thin and the thick bars of a detector in the same row.
  const dataset = (data, colour, barThickness) => ({ data, backgroundColor: colour, barThickness, minBarLength: 3, grouped: false });
  new Chart(canvas, {
    type: 'bar', plugins: [marks],
    data: { labels: names.map((_, i) => String(i)), datasets: [dataset(moved, INK.moved, 6), dataset(warned, INK.warned, 14)] },
    options: {
      ...CHART_OPTIONS, indexAxis: 'y',
      scales: { x: axis({ type: 'linear', min: first, max: end, ticks: { ...tick, callback: grouped } }),
        y: axis({ type: 'category', grid: { display: false }, afterFit: (scale) => (scale.width = labelWidth),
          ticks: { ...tick, autoSkip: false, callback: (_, i) => label(names[i]) } }) },
      plugins: { legend: { display: false }, tooltip: { enabled: false },
        marks: { lines: report.loss_events.slice(0, MOST_LINES).map((e) => ({ at: e.step, text: '', colour: INK.event, dash: [4, 3] })) } },
    },
  });
}

// Returns the first and last step that the charts of an event show, relative to its onset. First: 96 steps before, or
// 1.5 times the longest lead if that is more. Last: 48 steps after, or the longest lead if that is more. Both are
// limited to the steps of the event's curve. event.before: detectors that moved before it; lead: steps from then to the
// onset.
function shownSteps(event) {
  const curve = event.loss.length ? event.loss : event.gradient_norm;
  const first = (curve[0]?.[0] ?? event.step) - event.step, last = (curve[curve.length - 1]?.[0] ?? event.step) - event.step;
  const lead = Math.max(0, ...event.before.map((s) => s.lead_steps));
  return [Math.max(first, -Math.max(96, Math.round(1.5 * lead))), Math.min(last, Math.max(48, lead))];
}

// Inserts a point without a value, which interrupts the line, between two points that are more than four times the
// median distance apart, since samples are missing there.
function withGaps(data) {
  const distances = data.slice(1).map(({ x }, i) => x - data[i].x).sort((a, b) => a - b), median = distances[distances.length >> 1] ?? 1;
  return data.flatMap((point, i) => (i > 0 && point.x - data[i - 1].x > 4 * median ? [{ x: (point.x + data[i - 1].x) / 2, y: null }, point] : [point]));
}

// Draws one signal (a measured series) around an event, by steps from the onset. `signs`: the detectors that use this
// signal and moved before the event.
function signalChart(parent, title, points, event, signs) {
  const [from, to] = shownSteps(event);
  const data = withGaps(points.map(([x, y]) => ({ x: x - event.step, y })).filter(({ x }) => x >= from && x <= to));
  const values = data.map((p) => p.y);
  const signTexts = signs.map((s) => `${s.plain}, ${leadText(s.lead_steps)}`).join('; ');
  const canvas = frame(parent, title, `${title} from ${stepsText(-from)} before the event: ${rangeText(values)}${signTexts ? '. ' + signTexts : ''}`);
  const lines = [{ at: 0, text: 'event', colour: INK.event, dash: [] }];
  for (const sign of signs) {
    lines.push({ at: -sign.lead_steps, text: 'moved', colour: INK.quiet, dash: [2, 3] });
    if (known(sign.warn_lead_steps)) lines.push({ at: -sign.warn_lead_steps, text: 'warned', colour: INK.warned, dash: [5, 3] });
  }
  new Chart(canvas, {
    type: 'line', plugins: [marks],
    data: { datasets: [{ data, borderColor: INK.line, borderWidth: 1.6, pointRadius: data.length < LEAST_WITHOUT_DOTS ? 2 : 0, pointBackgroundColor: INK.line, spanGaps: false }] },
    options: {
      ...CHART_OPTIONS, parsing: false, normalized: true,
      scales: { x: axis({ type: 'linear', min: from, max: to, ticks: { ...tick, maxTicksLimit: 7, callback: grouped } }), y: yAxis(values) },
      plugins: { legend: { display: false }, tooltip: { enabled: false },
        marks: { lines, bands: signs.map((s) => ({ from: -s.lead_steps, to: 0 })) } },
    },
  });
}

// The curves of report.attention: key, name, colour, dash pattern.
const CURVES_OF_ATTENTION = [['forward', 'output', INK.line, []], ['backward', 'dQ', INK.event, [6, 3]], ['keys', 'dK and dV', INK.green, [2, 2]]];

// Draws the error of attention over the whole run, and by layer.
function attentionCharts(parent, labelWidth) {
  const { first_step: first, steps_per_point: stepsPerPoint, layers, text } = report.attention;
  parent.append(element('h3', { textContent: 'Attention' }), element('p', { textContent: text }));
  const curves = CURVES_OF_ATTENTION.map(([key, name, colour, dash]) => ({ name, colour, dash,
    data: (report.attention[key] ?? []).map((y, i) => ({ x: first + i * stepsPerPoint, y })).filter((p) => finite(p.y)) })).filter((c) => c.data.length);
  if (!curves.length || !window.Chart) return; // a page without Chart.js shows only the text
  const values = curves.flatMap((c) => c.data.map((p) => p.y));
  const holder = element('div', { className: 'chart small' });
  parent.append(holder);
  const canvas = frame(holder, 'largest error of attention over its alarm limit (1), by step', `Error of attention over its alarm limit, ${rangeText(values)}: ${curves.map((c) => c.name).join(', ')}`);
  const end = Math.max(lastStep(), ...curves.flatMap((c) => c.data.map((p) => p.x))), begin = Math.min(report.timeline.first_step, first);
  const limit = { data: [{ x: begin, y: 1 }, { x: end, y: 1 }], borderColor: INK.quiet, borderDash: [4, 3], borderWidth: 1, pointRadius: 0 };
  new Chart(canvas, {
    type: 'line', plugins: [marks],
    data: { datasets: [...curves.map((c) => ({ data: withGaps(c.data), borderColor: c.colour, borderDash: c.dash, borderWidth: 1.6, pointRadius: c.data.length < LEAST_WITHOUT_DOTS ? 2 : 0, pointBackgroundColor: c.colour, spanGaps: false })), limit] },
    options: {
      ...CHART_OPTIONS, parsing: false, normalized: true,
      scales: { x: axis({ type: 'linear', min: begin, max: end, ticks: { ...tick, callback: grouped } }), y: { ...yAxis([...values, 1], labelWidth), suggestedMin: 0 } },
      plugins: { legend: { display: false }, tooltip: { enabled: false } },
    },
  });
  // A legend entry has the CSS border style that resembles the dash pattern of the curve.
  const borderStyle = (dash) => (dash.length === 0 ? 'solid' : dash[0] > 2 ? 'dashed' : 'dotted');
  const legendEntry = ([, name, colour, dash]) => element('span', { className: 'key' },
    Object.assign(element('i'), { style: `border-top: 2px ${borderStyle(dash)} ${colour}` }), name);
  holder.append(element('p', { className: 'quiet' }, ...CURVES_OF_ATTENTION.filter(([k]) => report.attention[k]?.some(finite)).map(legendEntry)));
  layerMap(holder, layers, begin, end, labelWidth);
}

// Draws a map of the errors, given as multiples of their alarm limit. Each row is a layer, each column a range of
// steps. The colour is fuller if the error is nearer to 1 (opacity 0.12 to 1). An error above 1 is orange, and marked
// with a stroke if the rows are at least 8 pixels high.
function layerMap(parent, layers, begin, end, labelWidth) {
  const filled = layers.filter((l) => l.error.some(finite));
  if (filled.length === 0) return;
  // Heights in pixels: of a row (all rows together have about 420), and of the line with step numbers below all rows.
  const row = Math.min(18, Math.max(5, 420 / filled.length)), below = 16, largest = Math.max(...filled.flatMap((l) => l.error.filter(finite)));
  const canvas = element('canvas', { role: 'img' });
  canvas.setAttribute('aria-label', `Map of ${grouped(filled.length)} layers by step: largest error over the alarm limit, up to ${short(largest)}`);
  parent.append(element('h4', { textContent: 'the same by layer: full colour is near the alarm limit, \u25B2 orange beyond it, empty: not judged, or NaN' }), element('div', { className: 'map' }, canvas));
  const draw = () => {
    // Lengths are in pixels. `ratio`: device pixels per pixel; `unit`: pixels per step. 12: free space at the right edge.
    const canvasWidth = canvas.parentElement.clientWidth - 12, ratio = window.devicePixelRatio || 1, canvasHeight = row * filled.length + below, ctx = canvas.getContext('2d');
    const left = Math.min(labelWidth, canvasWidth / 3), unit = (canvasWidth - left) / Math.max(end - begin + 1, 1);
    Object.assign(canvas, { width: canvasWidth * ratio, height: canvasHeight * ratio });
    Object.assign(canvas.style, { width: `${canvasWidth}px`, height: `${canvasHeight}px` });
    ctx.scale(ratio, ratio);
    ctx.font = '11px system-ui, sans-serif';
    ctx.textBaseline = 'middle';
    filled.forEach(({ layer, error, first_step: first, steps_per_point: stepsPerPoint }, n) => {
      const points = error.map((y, i) => [i, y]).filter(([, y]) => finite(y)), beyond = points.some(([, y]) => y > 1);
      // A cell is as wide as the median distance between sampled steps, so that sampled layers have no holes.
      const distances = points.slice(1).map(([i], k) => i - points[k][0]).sort((a, b) => a - b), cell = stepsPerPoint * (distances[distances.length >> 1] ?? 1);
      ctx.fillStyle = beyond ? INK.event : INK.quiet;
      ctx.textAlign = 'right';
      // Labels are 11 pixels high. If rows are lower, only some layers have a label.
      if (row >= 11 || n % Math.ceil(11 / row) === 0) ctx.fillText((beyond ? '\u25B2 ' : '') + (layer ?? 'no layer known'), left - 8, row * (n + 0.5), left - 10);
      for (const [i, y] of points) {
        const x = left + (first + i * stepsPerPoint - begin) * unit, size = Math.max(cell * unit, 1);
        ctx.fillStyle = y > 1 ? '#e69f00' : INK.line + Math.round(255 * (0.12 + 0.88 * y)).toString(16).padStart(2, '0');
        ctx.fillRect(x, row * n + 0.5, Math.min(size, canvasWidth - x), row - 1);
        if (y > 1 && row >= 8) {
          ctx.fillStyle = '#5c3f00';
          ctx.fillRect(x, row * (n + 0.5) - 0.5, Math.min(size, canvasWidth - x), 1);
        }
      }
    });
    ctx.fillStyle = INK.quiet;
    ctx.textAlign = 'left';
    ctx.fillText('step ' + grouped(begin), left, canvasHeight - below / 2);
    ctx.textAlign = 'right';
    ctx.fillText(grouped(end), canvasWidth, canvasHeight - below / 2);
  };
  draw();
  addEventListener('resize', draw);
}
