// Makes the rows of the status page's table of loss events, with the signals of detectors before each event, and a
// sentence on an incident (loss events close together). A signal is a rise of a detector's level to watch or warn; its
// lead is the number of steps to the onset, the first step of the loss event. `ranks` are the states of process ranks in
// the agent's JSON. Helpers that format values are defined in format.js, tables.js and page.js; by("lead") returns
// (x) => x.lead.

const LOSS_EVENTS = { loss_spike: "spike", divergence: "divergence", loss_rise: "slow rise" };
const SEVERITY = ["slow rise", "spike", "divergence"]; // in ascending order
const INCIDENT_STEPS = 8; // a divergence is often detected as a spike first, some steps earlier

// Merges events with onsets at most INCIDENT_STEPS after the first one's, on any ranks, into one incident of the
// severest kind. Returns [{step, declared, what, ranks: [{rank, event}]}]. `step` is the first onset, `declared` the
// step at which the agent first found one of the events, `what` the kind, `ranks` the merged events with their ranks.
function lossIncidents(ranks) {
  const incidents = [];
  for (const event of eventsByStep(ranks)) {
    const last = incidents[incidents.length - 1];
    if (!last || event.step - last.step > INCIDENT_STEPS) {
      incidents.push(event);
      continue;
    }
    if (SEVERITY.indexOf(event.what) > SEVERITY.indexOf(last.what)) last.what = event.what;
    last.declared = smallest([last.declared, event.declared]);
    last.ranks.push(...event.ranks);
  }
  return incidents;
}

// Returns the events, as in lossIncidents(), by onset. Events of one kind and onset on several ranks are merged.
function eventsByStep(ranks) {
  const events = new Map();
  for (const rank of ranks) {
    for (const event of rank.precursors?.loss_events || []) {
      const { step, declared_step: declared } = event, key = event.event + step;
      const seen = events.get(key) ?? { step, declared, what: LOSS_EVENTS[event.event] ?? "event", ranks: [] };
      events.set(key, seen);
      seen.declared = smallest([seen.declared, declared]);
      seen.ranks.push({ rank, event });
    }
  }
  return [...events.values()].sort((a, b) => a.step - b.step);
}

// Returns the earliest signal of each detector before an incident, over all layers and ranks. A detector without such
// a signal is listed with a `lead` of 0 or less if it warned between the onset and the step at which the event was found.
function earliestSignals({ step, declared, ranks }) {
  const earliest = new Map();
  const addSignal = (signal) => { // keeps the signal of each detector with the longest lead
    const found = earliest.get(signal.detector);
    if (!found || signal.lead > found.lead) earliest.set(signal.detector, signal);
  };
  for (const { rank, event } of ranks) {
    for (const { detector, layer, level, since_step } of event.preceded_by || [])
      addSignal({ detector, layer, level, since: since_step, lead: step - since_step, rank });
  }
  const preceding = new Set([...earliest.values()].filter(({ lead }) => lead > 0).map(by("detector")));
  for (const { rank } of ranks) {
    for (const { event, layer, first_step } of rank.events || []) {
      const detector = event.startsWith("warn_") ? event.slice(5) : null; // warn_DETECTOR, or another event
      if (detector !== null && first_step >= step && first_step <= declared && !preceding.has(detector))
        addSignal({ detector, layer, level: "warn", since: first_step, lead: step - first_step, rank });
    }
  }
  return [...earliest.values()].sort((a, b) => b.lead - a.lead);
}

const leadText = (lead) => (lead > 0 ? count(lead) : lead < 0 ? count(-lead) + " after the onset" : "at the onset");

// Returns how often the detector was right in the benchmark of detectors (docs/detectors.md), as reported by the agent.
const measuredOf = (ranks, detector) => ranks.flatMap((rank) => rank.precursors?.detectors || []).find((d) => d.detector === detector)?.measured;

// Returns the rows of the table, a row for each signal, the newest incident first. Only the first row of an incident
// has the cells that describe the incident itself. The bar of a lead is relative to the incident's longest lead.
function lossEventRows(ranks) {
  const hasSeveralRanks = ranks.length > 1;
  return lossIncidents(ranks).reverse().flatMap((incident) => {
    const signals = earliestSignals(incident), longest = Math.max(1, ...signals.map(by("lead")));
    const rankText = hasSeveralRanks ? span(incident.ranks.map(({ rank }) => rank.rank)) : String(ranks[0].rank);
    const incidentCells = [{ text: incident.what, alarm: true }, count(incident.step), timeOf(incident.ranks[0].rank, incident.step), count(incident.declared), rankText];
    const rows = signals.map((s) => [detectorCell(s.detector, measuredOf(ranks, s.detector)), levelCell(s.level), known(s.layer) ? layerText(s.rank, s.layer) : "",
      count(s.since), { text: leadText(s.lead), bar: Math.max(0, s.lead) / longest }]);
    if (rows.length === 0) rows.push(["no detector warned before it", "", "", "", ""]);
    return rows.map((row, i) => Object.assign([...(i === 0 ? incidentCells : incidentCells.map(() => ({ text: "" }))), ...row], { isFirst: i === 0 }));
  });
}

// Returns one sentence on an incident for the head of the page. `hasSeveralRanks`: of the run.
function incidentSentence(incident, hasSeveralRanks) {
  const signals = earliestSignals(incident).filter((s) => s.lead > 0);
  const before = signals.slice(0, 3).map((s) => `${s.detector}${known(s.layer) ? " in " + s.layer : ""} (${count(s.lead)} steps)`).join(", ");
  const time = timeOf(incident.ranks[0].rank, incident.step);
  return `Loss: ${incident.what} at step ${count(incident.step)}${time && ` (${time})`}${hasSeveralRanks ? " on rank " + span(incident.ranks.map(({ rank }) => rank.rank)) : ""}; ` +
    (before ? "before it " + before : "no detector warned before it");
}
