// Keyboard access to the charts. The arrow keys move a cursor (a step) in the loss chart. Every chart shows the cursor
// as a line, and the values at its step are shown as text. `tables`: the histories of the shown ranks, with columns of
// values over steps. `lanes`: from lanesOf(), the marked steps of each detector. Other functions are in the page's other
// scripts.

class StepReader {
  // `chart`: the loss chart. `redraw()` must draw all charts again, with the cursor.
  constructor(chart, redraw) {
    this.chart = chart;
    this.redraw = redraw;
    this.step = null; // the cursor; null: there is no cursor
    const { canvas } = chart;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-roledescription", "chart");
    canvas.setAttribute("aria-describedby", "step-help");
    canvas.addEventListener("keydown", (event) => this.move(event));
  }

  update(tables, { lanes, lossEvents }) {
    this.tables = tables;
    this.lanes = lanes;
    this.lossEvents = lossEvents;
  }

  clearCursor() {
    this.step = null;
    setText(byId("step-values"), "");
  }

  // The largest number of steps that one point of a chart covers: the point's own step and those before it.
  stepsPerPoint() {
    return Math.max(...this.tables.map((table) => table.steps_per_point));
  }

  // The steps at which a shown rank has a loss, ascending.
  steps() {
    return [...new Set(this.tables.flatMap((table) => points(table, "loss").map((p) => p.x)))].sort((a, b) => a - b);
  }

  // Handles a key. Up and down go to the previous and next warning or loss event, Escape removes the cursor. Indices of
  // `steps`: `at` (the cursor; without a cursor, the end), `to` (the new cursor), `marks` (warnings and loss events).
  move(event) {
    if (!this.tables?.length || event.ctrlKey || event.altKey || event.metaKey) return;
    const steps = this.steps(), last = steps.length - 1;
    const at = this.step === null ? last + 1 : Math.max(0, steps.findIndex((step) => step >= this.step));
    const marks = [...new Set([...warningSteps(this.lanes), ...this.lossEvents.map(by("step"))].map((step) => steps.findIndex((s) => s >= step)))].filter((i) => i >= 0);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 16, PageDown: at + 16, Home: 0, End: last,
      ArrowUp: largest(marks.filter((i) => i < at)) ?? at, ArrowDown: smallest(marks.filter((i) => i > at)) ?? at, Escape: null }[event.key];
    if (to === undefined || steps.length === 0) return;
    event.preventDefault();
    this.step = to === null ? null : steps[Math.min(Math.max(to, 0), last)];
    setText(byId("step-values"), this.cursorText());
    this.redraw();
  }

  // The values of all charts at the cursor, and the events in the steps that its point covers, as text.
  cursorText() {
    if (this.step === null) return "";
    const first = this.step - this.stepsPerPoint() + 1, texts = [];
    for (const { name, column, text } of CHARTS) {
      const values = this.tables.flatMap((table) => points(table, column).filter((p) => p.x === this.step).map((p) => p.y));
      const low = smallest(values), high = largest(values);
      if (values.length) texts.push(`${name} ${low === high ? text(low) : `${text(low)} to ${text(high)}`}`);
    }
    const here = this.lossEvents.filter((event) => event.step >= first && event.step <= this.step).map((event) => `loss event: ${event.what}`);
    const where = first === this.step ? stepText(this.step) : `steps ${count(first)} to ${count(this.step)}`;
    return `${where}: ${[...here, ...eventTexts(this.lanes, first, this.step), ...texts].join("; ")}`;
  }
}
