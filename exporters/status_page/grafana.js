// Links to the Grafana dashboards of foreshock, for the shown run and the time in which it ran. Shown only if the agent
// was given Grafana's address (--grafana). `state`: the state of the run, as the agent serves it.

const BOARDS = ["overview", "attention", "weights", "fleet"];
const MARGIN_MS = 60000; // before and after the run; at least one scrape interval of Prometheus

// The URL of one dashboard (`board`), with the run, the rank and the time range as its variables. `base`: Grafana's
// address. Returns null if `base` is not an http or https URL.
function boardAddress(base, board, state, rank) {
  let url;
  try {
    url = new URL(base.replace(/\/+$/, "") + "/d/foreshock-" + board);
  } catch {
    return null;
  }
  if (!/^https?:$/.test(url.protocol)) return null;
  // The begin and end of the run, in seconds since 1970; null if unknown.
  const ranks = state.ranks || [], began = smallest(ranks.map(by("started_at"))), ended = largest(ranks.map(by("last_step_at")));
  url.searchParams.set("var-run", state.run);
  if (board === "attention" && rank !== null) url.searchParams.set("var-rank", rank);
  if (began !== null) url.searchParams.set("from", Math.floor(1000 * began) - MARGIN_MS);
  if (began !== null) url.searchParams.set("to", state.state === "running" || ended === null ? "now" : Math.ceil(1000 * ended) + MARGIN_MS);
  return url.href;
}

// `rank`: the selected rank, or null. Later calls change the links in place, so that a link keeps the keyboard focus.
function showGrafana(state, rank) {
  const nav = byId("grafana");
  const links = known(state.grafana) && known(state.run) ? BOARDS.map((board) => [board, boardAddress(state.grafana, board, state, rank)]).filter(([, address]) => address) : [];
  nav.hidden = links.length === 0;
  if (nav.children.length !== links.length) {
    nav.replaceChildren(...links.map(([board]) => {
      const link = element("a", "", board);
      link.target = "_blank";
      link.rel = "noopener noreferrer";
      return link;
    }));
    if (links.length) nav.prepend("Grafana: ");
  }
  links.forEach(([, address], i) => {
    if (nav.children[i].href !== address) nav.children[i].href = address;
  });
}
