'use strict';
// The first script of the report pages of lab and compare. Defines the page's data (`study`),
// colours, and functions that make elements.
const study = JSON.parse(document.getElementById('study').textContent);
const COLOURS = ['#2f6db5', '#d1662b', '#1a7f4b', '#8a4fb0', '#b3372e', '#14889a', '#a3801c', '#c24f8e',
  '#57636f', '#5a9e32', '#3f3d9e', '#946048'];

const element = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};
// A number as text with three significant digits. Integers below a million keep all digits. Null gives a dash.
const short = (x) => {
  if (x === null || x === undefined) return '–';
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x);
  if (Math.abs(x) >= 0.01 && Math.abs(x) < 1e4) return String(+x.toPrecision(3));
  return x.toExponential(2).replace(/\.?0+e/, 'e');  // 1.50e+5 becomes 1.5e+5
};
const unique = (values) => [...new Set(values)];

// A table of texts. The first `nameColumns` columns hold names, the others numbers; the style sheet aligns them.
function table(head, rows, nameColumns = 1) {
  const cells = (row, tag) => row.map((text, i) => element(tag, { textContent: text, className: i < nameColumns ? 'name' : '' }));
  return element('div', { className: 'scroll' }, element('table', {}, element('thead', {}, element('tr', {}, ...cells(head, 'th'))),
    element('tbody', {}, ...rows.map((row) => element('tr', {}, ...cells(row, 'td'))))));
}

// Adds a section to the page and its line to the table of contents.
function section(id, title, note, ...children) {
  const heading = element('h2', {}, title, element('small', { textContent: note }));
  document.getElementById('sweeps').append(element('section', { id }, heading, ...children));
  document.getElementById('contents').append(element('a', { href: '#' + id, textContent: title }));
}

// The options of a chart's axis. A logarithmic axis has labels at 1, 2 and 5 times a power of ten.
const axis = (logarithmic, text) => ({
  type: logarithmic ? 'logarithmic' : 'linear', title: { display: true, text }, grid: { color: '#eef1f4' },
  ticks: { callback: (v) => logarithmic && !/^1|^2|^5/.test(v.toExponential()) ? '' : short(v) },
});
