'use strict';
// Reads the report's data (the JSON of `foreshock report --json`) and defines how values and lists are written. Names
// in the data come from a trainer and are not trusted, so every text goes through textContent. Unknown values are null
// in the data and a dash on the page. U+202F is a narrow non-breaking space, U+2212 the minus sign.

// A reviver of JSON.parse(): makes the blanks inside a number such as "12 345" narrow and non-breaking, in every text.
const unbroken = (_, value) => (typeof value === 'string' ? value.replace(/(?<=\d) (?=\d{3}(?!\d))/g, '\u202F') : value);
const report = JSON.parse(document.getElementById('report-data').textContent, unbroken);

const byId = (id) => document.getElementById(id);
function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
const known = (value) => value !== null && value !== undefined;
const finite = (value) => known(value) && Number.isFinite(value);
// Writes a number with its digits in groups of three: "12 345".
const grouped = (value) => (known(value) ? value.toLocaleString('en').replaceAll(',', '\u202F').replace('-', '\u2212') : '–');
const short = (value) => { // three significant digits; an exponent if it is small or large
  if (!finite(value)) return '–';
  const rounded = +value.toPrecision(3), size = Math.abs(rounded);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6) ? rounded.toExponential().replace('e+', 'e') : String(rounded);
  return text.replaceAll('-', '\u2212');
};
const stepsText = (number) => `${grouped(number)} ${Math.abs(number) === 1 ? 'step' : 'steps'}`;
// `lead`: steps from a detector's rise to the onset of a loss event.
const leadText = (lead) => (!known(lead) ? '–' : lead > 0 ? `${stepsText(lead)} before` : 'at the onset');
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// Returns a table. `rows`: lists of cells, each a text or a node.
function table(head, rows) {
  const cell = (tag, content, i) => element(tag, { className: i === 0 ? 'first' : '' }, content);
  return element('div', { className: 'scroll', tabIndex: 0 }, element('table', {},
    element('thead', {}, element('tr', {}, ...head.map((text, i) => cell('th', text, i)))),
    element('tbody', {}, ...rows.map((row) => element('tr', {}, ...row.map((content, i) => cell('td', content, i)))))));
}

const MARKS = { quiet: ['\u2713', 'nothing unusual'], notable: ['\u25B2', 'notable'], unknown: ['?', 'not known'] };
// Returns the nodes of a <dl> for facts of {name, text, mark}.
function facts(list) {
  return list.flatMap(({ name, text, mark }) => [element('dt', { textContent: name }),
    element('dd', { className: mark }, element('span', { className: 'mark', textContent: MARKS[mark][0], title: MARKS[mark][1] }), text)]);
}
// Splits a text into nodes. Parts between backquotes become <code>.
const withCode = (text) => text.split('`').map((part, i) => (i % 2 ? element('code', { textContent: part }) : part));
const bullets = (list) => element('ul', {}, ...list.map((text) => element('li', {}, ...withCode(text))));
// Returns a node that shows a detector's level, "warn" or "watch". The page writes "moved" for "watch".
const level = (name) => element('span', { className: 'level ' + name, textContent: name === 'warn' ? '\u25B2 warned' : '\u25CB moved' });
