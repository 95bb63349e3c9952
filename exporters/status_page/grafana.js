// The way to Grafana, where the agent was told of one (--grafana): our dashboards, of this run and its time.

const BOARDS = ["overview", "attention", "weights", "fleet", "monitor"];
const MARGIN_MS = 60000; // a scrape or more

// null where `base` is no address of the web.
function boardAddress(base, board, state, rank) {
  let url;
  try {
    url = new URL(base.replace(/\/+$/, "") + "/d/foreshock-" + board);
  } catch {
    return null;
  }
  if (!/^https?:$/.test(url.protocol)) return null;
  const ranks = state.ranks || [], began = smallest(ranks.map(by("started_at"))), last = largest(ranks.map(by("last_step_at")));
  url.searchParams.set("var-run", state.run);
  if (board === "attention" && rank !== null) url.searchParams.set("var-rank", rank);
  if (began !== null) url.searchParams.set("from", Math.floor(1000 * began) - MARGIN_MS);
  if (began !== null) url.searchParams.set("to", state.state === "running" || last === null ? "now" : Math.ceil(1000 * last) + MARGIN_MS);
  return url.href;
}

function showGrafana(state, rank) {
  const nav = byId("grafana");
  const links = known(state.grafana) && known(state.run) ? BOARDS.map((board) => [board, boardAddress(state.grafana, board, state, rank)]).filter(([, to]) => to) : [];
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
  links.forEach(([, to], i) => {
    if (nav.children[i].href !== to) nav.children[i].href = to;
  });
}
