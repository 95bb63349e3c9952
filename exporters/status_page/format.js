// Formats values for the status page, and makes its elements. Names in the state (JSON from the agent) come from a
// trainer and are untrusted, so every text is set with textContent. Unknown values are null in the state and a dash on
// the page ("" for `clock`). `number` writes `digits` significant digits; `fixed`, `signed`, `percent` write decimals.
// `short` writes at most three significant digits without trailing zeros; its value must be known.
"use strict";

const known = (value) => value !== null && value !== undefined;
const finite = (value) => known(value) && Number.isFinite(value);
const minus = (text) => text.replace("-", "\u2212"); // replaces only the first "-": the sign of the number or, if it is positive, of its exponent
const withoutPlus = (text) => text.replace("e+", "e");
const significant = (value, digits) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(digits - 1) : value.toPrecision(digits));
const number = (value, digits = 4) => (finite(value) ? minus(withoutPlus(significant(value, digits))) : "–");
const fixed = (value, digits) => (finite(value) ? minus(value.toFixed(digits)) : "–");
const signed = (value, digits) => (finite(value) && value > 0 ? "+" : "") + fixed(value, digits);
const count = (value) => (finite(value) ? minus(value.toLocaleString("en")) : "–");
const percent = (value, digits = 2) => (finite(value) ? fixed(value * 100, digits) + " %" : "–");
const short = (value) => {
  const rounded = +(+value).toPrecision(3);
  return minus(withoutPlus(rounded !== 0 && Math.abs(rounded) < 1e-3 ? rounded.toExponential() : String(rounded)));
};
const by = (key) => (thing) => thing?.[key]; // a function that reads the property `key`
// largest, smallest and mean leave out values that are not finite, and return null if no value is left.
const extreme = (values, better) => values.filter(finite).reduce((best, v) => (best === null || better(v, best) ? v : best), null);
const largest = (values) => extreme(values, (a, b) => a > b);
const smallest = (values) => extreme(values, (a, b) => a < b);
const mean = (values) => {
  const good = values.filter(finite);
  return good.length ? good.reduce((sum, v) => sum + v, 0) / good.length : null;
};
// "14:05:12" or "14:05" (without hasSeconds), after its date if that is not the date of `today`. Times: s since 1970.
const clock = (seconds, today = seconds, hasSeconds = true) => {
  if (!finite(seconds)) return "";
  const [time, now] = [new Date(1000 * seconds), new Date(1000 * today)];
  const day = time.toDateString() === now.toDateString() ? "" : time.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " ";
  return day + time.toLocaleTimeString("en-GB").slice(0, hasSeconds ? 8 : 5);
};
// "12", or "12 to 15" if the values differ.
const span = (values) => {
  const [low, high] = [smallest(values), largest(values)];
  return low === high ? count(low) : `${count(low)} to ${count(high)}`;
};

function element(tag, className, text) {
  const result = document.createElement(tag);
  if (className) result.className = className;
  if (text !== undefined) result.textContent = text;
  return result;
}

const add = (parent, tag, className, text) => parent.appendChild(element(tag, className, text));
const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
// Eight colours times three dash patterns (lengths of line and gap) distinguish the curves of 24 ranks.
const rankColour = (index) => colour("rank-" + (index % 8));
const rankDash = (index) => [[], [6, 3], [2, 2]][Math.floor(index / 8) % 3];
const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text; // screen readers announce every change of a status region
};

// The sum of the known values of an object or a list.
const total = (counters) => Object.values(counters || {}).filter(known).reduce((sum, value) => sum + value, 0);

// Adds up objects such as {torn: 2, refused: 0} by name.
function addUp(counters) {
  const sums = {};
  for (const each of counters) {
    for (const [name, value] of Object.entries(each || {})) sums[name] = (sums[name] || 0) + (value || 0);
  }
  return sums;
}

// {torn: 2, refused: 0} as "torn 2".
const reasons = (counters) =>
  Object.entries(counters).filter(([, value]) => value > 0).map(([reason, value]) => `${reason} ${count(value)}`).join(", ");
