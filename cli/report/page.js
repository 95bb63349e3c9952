// Fills the sections of the report's page from `report`, the parsed JSON of `foreshock report --json`. The build joins
// four scripts, in this order: words.js (reads `report`, has helpers), charts.js, events.js and page.js (this file).
const LABEL_WIDTH = Math.min(190, Math.round(innerWidth / 3.5)); // pixels, beside the charts of loss, detectors and attention

const MOST_FINDINGS = 5; // below the first one, which is in the verdict

function isBad() {
  if (report.conditions.some((c) => c.kind === 'fault')) return true;
  if (report.findings.length || report.verdict_from === 'agent') return report.findings.length > 0;
  return report.loss_events.length || report.episodes.some((e) => known(e.warn_step) && !e.experimental);
}

function fillHead() {
  document.title = `${report.headline} – foreshock report`;
  byId('headline').textContent = report.headline;
  byId('verdict').textContent = report.verdict;
  byId('verdict').className = isBad() ? 'bad' : report.healthy ? 'good' : 'open';
  byId('findings').append(...report.findings.slice(1, 1 + MOST_FINDINGS).map((f) => element('li', { textContent: `${f.headline}: ${f.text}.` })));
  byId('findings').append(...report.conditions.filter((c) => c.kind === 'look' && !report.verdict.includes(c.text)).map((c) => element('li', { textContent: `Worth a look: ${c.text}. Do: ${c.action}.` })));
  byId('made').textContent = known(report.version) ? `from a record of foreshock ${report.version}` : '';
  byId('facts').append(...facts(report.facts));
  byId('whole-note').textContent = report.events_note;
}

// The first columns are visible on a narrow page without scrolling: what each detector has said.
function detectorTable() {
  return table(['detector', 'warned', 'moved', 'what it finds', 'values', 'layers', 'last warning', 'how far it can be believed'], report.detectors.map((d) => [
    d.detector, d.warnings ? element('span', {}, level('warn'), ' ' + grouped(d.warnings)) : '0', grouped(d.watches), sentence(d.plain),
    d.values ? grouped(d.values) : element('span', { className: 'sure', textContent: 'none. ' + d.why_not }), d.layers ? grouped(d.layers) : '–',
    known(d.last_warn_step) ? 'step ' + grouped(d.last_warn_step) : '–', element('span', { className: 'sure', textContent: d.sure })]));
}

// Opens sections of loss events. draw(), which eventSection() (events.js) adds to the element, draws the curves if the
// section is open and they are not drawn yet. The handler of "toggle" also calls draw(), but too late for printing.
function openAll(sections) {
  for (const details of sections) {
    details.open = true;
    details.draw();
  }
}

function start() {
  fillHead();
  if (window.Chart) {
    if (lossChart(byId('loss-chart'), LABEL_WIDTH)) detectorChart(byId('lanes'), LABEL_WIDTH);
    else byId('loss-chart').append(element('p', { className: 'none', textContent: 'No loss of this run is known.' }));
  }
  attentionCharts(byId('attention'), LABEL_WIDTH);
  const warnings = warningTable();
  byId('warnings').hidden = !warnings;
  byId('warnings').open = report.loss_events.length === 0; // sections of loss events show the warnings before them
  if (warnings) byId('warnings').append(warnings);
  byId('overview').append(overview(report.loss_events));
  byId('event-sections').append(...report.loss_events.filter((e) => e.detailed).map(eventSection));
  byId('coverage').append(...facts(report.coverage));
  byId('detectors').append(detectorTable());
  byId('notes').append(...report.notes.map((text) => element('li', { textContent: text })));
  byId('limits').append(...report.limits.map((text) => element('li', { textContent: text })));
  const sections = [...document.querySelectorAll('.event > details')];
  sections.forEach((details) => details.draw()); // draws only sections that are open from the start
  addEventListener('beforeprint', () => openAll(sections));
  const openLinkedEvent = () => {
    const target = /^#event-\d+$/.test(location.hash) ? document.querySelector(location.hash + ' > details') : null;
    if (target) openAll([target]);
  };
  addEventListener('hashchange', openLinkedEvent);
  openLinkedEvent();
}

start();
