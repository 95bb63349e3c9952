// Charts over the step. Colours of Okabe and Ito, told apart with every kind of colour vision; what a colour says is
// said by a shape or a word too.
const INK = { line: '#0072b2', most: '#7fb8d8', event: '#b04a00', moved: '#e69f00', warned: '#b04a00', grid: '#eceef0', quiet: '#5d656e' };

// Vertical lines with a word each, and a band from where something moved to the event.
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
    lines.forEach(({ at, text, colour, dash }, i) => {
      const place = x.getPixelForValue(at);
      if (place < area.left - 1 || place > area.right + 1) return;
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = 1.5;
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(place, area.top);
      ctx.lineTo(place, area.bottom);
      ctx.stroke();
      const width = ctx.measureText(text).width, row = area.top + 11 + 13 * (i % 3);
      const left = place + width + 6 > area.right ? place - 4 - width : place + 4;
      if (width === 0) return;
      ctx.fillStyle = '#ffffffd9';
      ctx.fillRect(left - 2, row - 10, width + 4, 13);
      ctx.fillStyle = colour;
      ctx.fillText(text, left, row);
    });
    ctx.restore();
  },
};

function frame(parent, title, label) {
  const canvas = element('canvas', { role: 'img', ariaLabel: label });
  canvas.setAttribute('aria-label', label);
  parent.append(element('h4', { textContent: title }), element('div', { className: 'frame' }, canvas));
  return canvas;
}

const tick = { color: INK.quiet, font: { size: 11 }, maxRotation: 0 };
const axis = (more) => ({ grid: { color: INK.grid }, border: { display: false }, ...more });
const wide = (values) => {
  const good = values.filter((v) => finite(v));
  return good.length > 0 && good.every((v) => v > 0) && Math.max(...good) > 30 * Math.min(...good);
};
const logTick = (v) => (/^[125]/.test(v.toExponential()) ? short(v) : '');
function yAxis(values, width) {
  const logarithmic = wide(values);
  const more = width ? { afterFit: (scale) => (scale.width = width) } : {};
  return axis({ ...more, type: logarithmic ? 'logarithmic' : 'linear', ticks: { ...tick, maxTicksLimit: 6, callback: logarithmic ? logTick : short } });
}
const plain = { animation: false, maintainAspectRatio: false, responsive: true };

function span(values) {
  const good = values.filter((v) => finite(v));
  return good.length ? `from ${short(Math.min(...good))} to ${short(Math.max(...good))}` : 'no value is a number';
}

// A loss that is no number is not in the curve; the run went on for all that.
const lastStep = () => Math.max(story.timeline.last_step, story.timeline.first_step + (story.timeline.loss ?? []).length * story.timeline.steps_per_point - 1);

// The loss of the whole run, with a numbered line at every event.
function lossChart(parent, width) {
  const { first_step: first, steps_per_point: every, loss = [], loss_max: most = [] } = story.timeline, end = lastStep();
  const points = (values) => values.map((y, i) => ({ x: first + i * every, y }));
  if (!loss.some((v) => finite(v))) return false;
  const canvas = frame(parent, `loss${every > 1 ? `, mean and largest of each ${count(every)} steps` : ''}, by step`,
    `Loss of ${count(loss.length * every)} steps, ${span(loss)}; ${story.loss_events.length} loss events`);
  const line = (values, colour, borderWidth) => ({ data: points(values), borderColor: colour, borderWidth, pointRadius: 0, spanGaps: false });
  new Chart(canvas, {
    type: 'line', plugins: [marks],
    data: { datasets: [line(loss, INK.line, 1.6), ...(every > 1 ? [line(most, INK.most, 1)] : [])] },
    options: {
      ...plain, parsing: false, normalized: true,
      scales: { x: axis({ type: 'linear', min: first, max: end, ticks: { ...tick, callback: count } }), y: yAxis([...loss, ...most], width) },
      plugins: { legend: { display: false }, tooltip: { enabled: false },
        marks: { lines: story.loss_events.slice(0, 60).map((e) => ({ at: e.step, text: String(e.number), colour: INK.event, dash: [4, 3] })) } },
    },
  });
  return true;
}

// When each detector moved and warned, one row a detector, under the same steps as the loss.
function laneChart(parent, width) {
  const { first_step: first, loss = [] } = story.timeline, end = lastStep();
  const phrase = new Map(story.detectors.map((d) => [d.detector, d.plain]));
  const names = [...new Set(story.episodes.map((e) => e.detector))];
  if (names.length === 0 || loss.length === 0) return;
  const label = (name) => sentence(phrase.get(name)).replace(/(.{18,}?) /g, '$1\n').split('\n');
  const bar = (episode, from) => ({ x: [from, known(episode.end_step) ? episode.end_step : end], y: names.indexOf(episode.detector) });
  const rows = (list) => list.map(({ x, y }) => ({ x, y: String(y) }));
  const moved = rows(story.episodes.map((e) => bar(e, e.since_step)));
  const warned = rows(story.episodes.filter((e) => known(e.warn_step)).map((e) => bar(e, e.warn_step)));
  const canvas = frame(parent, 'when detectors moved (thin) and warned (thick)',
    names.map((name) => `${phrase.get(name)}: ${story.episodes.filter((e) => e.detector === name).length} times`).join('; '));
  canvas.parentElement.style.height = `${44 + 40 * names.length}px`;
  const set = (data, colour, barThickness) => ({ data, backgroundColor: colour, barThickness, minBarLength: 3, grouped: false });
  new Chart(canvas, {
    type: 'bar', plugins: [marks],
    data: { labels: names.map((_, i) => String(i)), datasets: [set(moved, INK.moved, 6), set(warned, INK.warned, 14)] },
    options: {
      ...plain, indexAxis: 'y',
      scales: { x: axis({ type: 'linear', min: first, max: end, ticks: { ...tick, callback: count } }),
        y: axis({ type: 'category', grid: { display: false }, afterFit: (scale) => (scale.width = width),
          ticks: { ...tick, autoSkip: false, callback: (_, i) => label(names[i]) } }) },
      plugins: { legend: { display: false }, tooltip: { enabled: false },
        marks: { lines: story.loss_events.slice(0, 60).map((e) => ({ at: e.step, text: '', colour: INK.event, dash: [4, 3] })) } },
    },
  });
}

// The steps around an event that its charts show: most of what was kept when something moved long before, less else.
function view(event) {
  const curve = event.loss.length ? event.loss : event.gradient_norm;
  const first = (curve[0]?.[0] ?? event.step) - event.step, last = (curve[curve.length - 1]?.[0] ?? event.step) - event.step;
  const lead = Math.max(0, ...event.before.map((s) => s.lead_steps));
  return [Math.max(first, -Math.max(96, Math.round(1.5 * lead))), Math.min(last, Math.max(48, lead))];
}

// No line where nobody looked: a gap is four times the usual distance of two points.
function withGaps(data) {
  const apart = data.slice(1).map(({ x }, i) => x - data[i].x).sort((a, b) => a - b), usual = apart[apart.length >> 1] ?? 1;
  return data.flatMap((point, i) => (i > 0 && point.x - data[i - 1].x > 4 * usual ? [{ x: (point.x + data[i - 1].x) / 2, y: null }, point] : [point]));
}

// One signal around an event, by steps from the onset. `signs`: what was seen in it.
function signalChart(parent, title, points, event, signs) {
  const [from, to] = view(event);
  const data = withGaps(points.map(([x, y]) => ({ x: x - event.step, y })).filter(({ x }) => x >= from && x <= to));
  const values = data.map((p) => p.y);
  const told = signs.map((s) => `${s.plain}, ${before(s.lead_steps)}`).join('; ');
  const canvas = frame(parent, title, `${title} from ${steps(-from)} before the event: ${span(values)}${told ? '. ' + told : ''}`);
  const lines = [{ at: 0, text: 'event', colour: INK.event, dash: [] }];
  for (const sign of signs) {
    lines.push({ at: -sign.lead_steps, text: 'moved', colour: INK.quiet, dash: [2, 3] });
    if (known(sign.warn_lead_steps)) lines.push({ at: -sign.warn_lead_steps, text: 'warned', colour: INK.warned, dash: [5, 3] });
  }
  new Chart(canvas, {
    type: 'line', plugins: [marks],
    data: { datasets: [{ data, borderColor: INK.line, borderWidth: 1.6, pointRadius: data.length < 40 ? 2 : 0, pointBackgroundColor: INK.line, spanGaps: false }] },
    options: {
      ...plain, parsing: false, normalized: true,
      scales: { x: axis({ type: 'linear', min: from, max: to, ticks: { ...tick, maxTicksLimit: 7, callback: count } }), y: yAxis(values) },
      plugins: { legend: { display: false }, tooltip: { enabled: false },
        marks: { lines, bands: signs.map((s) => ({ from: -s.lead_steps, to: 0 })) } },
    },
  });
}
