// Draws lanes below the loss chart of the status page: one lane per detector, with marks at the first and last step of
// each of its events. A filled triangle marks level warn, a ring level watch, so that colour is not the only difference.

const LANE_HEIGHT = 15; // height of a lane in pixels

// Returns [{name, marks: [{from, to, level, layer, rank}]}], where `from` and `to` are the first and last step of an
// event warn_DETECTOR or watch_DETECTOR. Lanes with warnings come first, sorted by the step of their first warning. The
// other lanes follow, sorted by the step of their first mark.
function lanesOf(ranks) {
  const lanes = new Map();
  for (const rank of ranks) {
    for (const event of rank.events || []) {
      const [, level, name] = /^(warn|watch)_(.+)$/.exec(event.event) ?? [];
      if (!name) continue;
      const lane = lanes.get(name) ?? { name, marks: [] };
      lanes.set(name, lane);
      lane.marks.push({ from: event.first_step, to: event.last_step, level, layer: event.layer, rank: rank.rank });
    }
  }
  const firstStep = (lane, level) => smallest(lane.marks.filter((mark) => mark.level === level).map(by("from"))) ?? Infinity;
  const compare = (a, b) => (a === b ? 0 : a - b); // for two lanes without such marks, Infinity - Infinity would be NaN
  return [...lanes.values()].sort((a, b) => compare(firstStep(a, "warn"), firstStep(b, "warn")) || compare(firstStep(a, "watch"), firstStep(b, "watch")));
}

// The first and last steps of all warnings, ascending.
const warningSteps = (lanes) =>
  [...new Set(lanes.flatMap((lane) => lane.marks.filter((mark) => mark.level === "warn").flatMap((mark) => [mark.from, mark.to])))].sort((a, b) => a - b);

// Phrases for screen readers ("bias warns in 003") about the events that begin or end within steps [from, to].
const eventTexts = (lanes, from, to) => lanes.flatMap((lane) => lane.marks.filter((mark) => [mark.from, mark.to].some((step) => step >= from && step <= to))
  .map((mark) => `${lane.name} ${mark.level === "warn" ? "warns" : "watches"}${known(mark.layer) ? " in " + mark.layer : ""}`));

function triangle(ctx, x, bottom, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, bottom);
  ctx.lineTo(x + size, bottom);
  ctx.lineTo(x, bottom - 1.75 * size);
  ctx.fill();
}

// colour("quiet") is the grey of secondary text on the page.
function drawMark(ctx, markX, middle, level) {
  ctx.fillStyle = ctx.strokeStyle = level === "warn" ? colour("orange") : colour("quiet");
  if (level === "warn") return triangle(ctx, markX, middle + 4, 4.5);
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  ctx.arc(markX, middle, 3, 0, 2 * Math.PI);
  ctx.stroke();
}

// Chart.js plugin that draws the lanes at the bottom of the loss chart.
const laneMarks = {
  id: "laneMarks",
  afterDraw(chart, _, { lanes = [] }) {
    const { ctx, chartArea: area, scales: { x } } = chart;
    const top = chart.height - LANE_HEIGHT * lanes.length;
    ctx.save();
    ctx.font = "11px system-ui, sans-serif";
    lanes.forEach(({ name, marks }, row) => {
      const middle = top + LANE_HEIGHT * (row + 0.5);
      ctx.fillStyle = colour("quiet");
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillText(name, area.left - 8, middle, area.left - 10);
      ctx.fillStyle = colour("grid");
      ctx.fillRect(area.left, middle - 0.5, area.right - area.left, 1);
      for (const mark of marks) {
        const ends = [mark.from, mark.to].map((step) => x.getPixelForValue(step)).filter((endX) => endX >= area.left - 1 && endX <= area.right + 1);
        ctx.fillStyle = mark.level === "warn" ? colour("orange") : colour("quiet");
        const [left, right] = [mark.from, mark.to].map((step) => Math.min(Math.max(x.getPixelForValue(step), area.left), area.right));
        ctx.fillRect(left, middle - 0.75, right - left, 1.5);
        for (const endX of new Set(ends)) drawMark(ctx, endX, middle, mark.level);
      }
    });
    ctx.restore();
  },
};
