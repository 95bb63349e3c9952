// Makes tables of loss events and warnings, and sections of the `detailed` events (at most the first 40). An episode: a
// period in which a detector was above level quiet ("moved" at its start). event.before: the episodes before an event
// (its signs), the most reliable first. charts.js has signalChart(), words.js `report` (the data) and other helpers.
const OPEN_SECTIONS = 3; // number of loss events whose sections are open when the page is loaded
const MOST_CURVES = 6; // most curves of detectors in a section
const MOST_RANKS = 8; // most ranks that are listed for an event
const LONG_UNSEEN = 8; // steps; if a detector may have moved earlier by more than this, the step is shown as a range
const GRADIENT_DETECTORS = ['gradient_norm', 'gradient_growth']; // detectors whose input is the gradient norm, which has a chart anyway

const place = (sign) => (known(sign.layer) ? `layer ${sign.layer}` : 'the whole model');
const ranksOf = (event) => `${event.ranks.length > 1 ? 'ranks' : 'rank'} ${event.ranks.slice(0, MOST_RANKS).join(', ')}${event.ranks.length > MOST_RANKS ? ', …' : ''}`;

// When the detector moved. It had at most three values in the unseen_steps steps before, so it may have moved in those
// steps: they are shown as a range if they are many.
const movedText = (sign) => (sign.unseen_steps > LONG_UNSEEN ? `${grouped(sign.lead_steps)} to ${grouped(sign.lead_steps + sign.unseen_steps)} steps before: too few samples to say` : leadText(sign.lead_steps));

function signTable(event) {
  if (event.before.length === 0) return element('p', { className: 'none', textContent: 'No detector spoke before this event.' });
  return table(['what moved', 'where', 'moved', 'warned', 'how far it can be believed'], event.before.map((sign, i) => [
    element('span', {}, sentence(sign.plain), element('small', { textContent: ' ' + sign.detector })), place(sign), movedText(sign),
    known(sign.warn_step) ? leadText(sign.warn_lead_steps) : 'no', element('span', { className: 'sure', textContent: event.before.findIndex((s) => s.detector === sign.detector) < i ? 'as above' : sign.sure })]));
}

// Draws the charts of an event's section: loss, gradient norm, a changed learning rate, and the inputs of detectors.
function drawCurves(parent, event) {
  if (!window.Chart) return parent.append(element('p', { className: 'quiet', textContent: 'Made without a chart library: words only.' }));
  const box = () => parent.appendChild(element('div', { className: 'chart small' }));
  if (event.loss.length) signalChart(box(), 'loss', event.loss, event, []);
  if (event.gradient_norm.length) // marks of only one gradient detector, the most reliable
    signalChart(box(), 'gradient norm before clipping', event.gradient_norm, event, event.before.filter((s) => GRADIENT_DETECTORS.includes(s.detector)).slice(0, 1));
  if (event.facts.some((f) => f.name === 'learning rate' && f.mark === 'notable'))
    signalChart(box(), 'learning rate', event.learning_rate, event, []);
  const others = event.before.filter((s) => !GRADIENT_DETECTORS.includes(s.detector) && s.points.length > 1);
  for (const sign of others.slice(0, MOST_CURVES)) signalChart(box(), `${sign.detector}, ${place(sign)}`, sign.points, event, [sign]);
  if (others.length > MOST_CURVES) parent.append(element('p', { className: 'quiet', textContent: `${others.length - MOST_CURVES} more ${others.length === MOST_CURVES + 1 ? 'is' : 'are'} in the table only.` }));
}

function eventSection(event) {
  const curves = element('div', { className: 'curves' });
  const column = (title, list) => element('div', {}, element('h3', { textContent: title }), bullets(list));
  const details = element('details', { open: event.number <= OPEN_SECTIONS },
    element('summary', {}, element('h2', { textContent: `${event.number}. ${event.title}` }), element('span', { className: 'quiet', textContent: ranksOf(event) })),
    element('p', { textContent: event.text }),
    element('h3', { textContent: 'What moved before it' }), signTable(event),
    element('p', { className: 'quiet', textContent: 'In this order: detectors that have proven themselves in the benchmark, then experimental ones; of each first what warned; then by when it moved.' }), curves,
    element('p', { className: 'quiet', textContent: 'Horizontally: steps, 0 is the onset of the event. Shaded: from where the detector moved.' }),
    element('h3', { textContent: 'Circumstances' }), element('dl', { className: 'facts' }, ...facts(event.facts)),
    element('div', { className: 'three' }, column('Consistent with', event.consistent_with), column('Not excluded', event.not_excluded),
      column('What to try', event.to_try)));
  let drawn = false;
  const draw = () => {
    if (drawn || !details.open) return;
    drawn = true;
    drawCurves(curves, event);
  };
  details.addEventListener('toggle', draw);
  details.draw = draw;  // page.js calls it for sections that are open from the start, and before printing
  return element('section', { id: 'event-' + event.number, className: 'event' }, details);
}

// Returns the table of all episodes with a warning; null if there are none.
function warningTable() {
  const warned = report.episodes.filter((e) => known(e.warn_step)).sort((a, b) => a.since_step - b.since_step);
  const phrase = new Map(report.detectors.map((d) => [d.detector, d.plain]));
  if (warned.length === 0) return null;
  return table(['what', 'where', 'moved at step', 'warned at step', 'until step'], warned.map((e) => [
    element('span', {}, sentence(phrase.get(e.detector)), element('small', { textContent: ' ' + e.detector })), place(e), grouped(e.since_step), grouped(e.warn_step),
    known(e.end_step) ? grouped(e.end_step) : 'the end']));
}

// Returns the table of all loss events, or a text if there are none.
function overview(events) {
  if (events.length === 0 && !(report.timeline.loss ?? []).some((v) => finite(v)))
    return element('p', { textContent: 'None can be told: the loss of this run is not known.' });
  if (events.length === 0)
    return element('p', { className: 'none', textContent: 'The loss went through the whole record without one. What was watched, and what was not, stands below.' });
  const link = (event) => (event.detailed ? element('a', { href: '#event-' + event.number, textContent: event.title }) : event.title);
  return table(['', 'what', 'first sign', 'warned before it', 'seen on'], events.map((event) => {
    const warned = event.before.filter((s) => known(s.warn_step));
    return [String(event.number), link(event), event.first_sign, warned.length ? [...new Set(warned.map((s) => s.detector))].join(', ') : 'nothing', ranksOf(event)];
  }));
}
