// @ts-check
// What is drawn of a sweep: its columns as axes, places on them, and which trials are inside the brushes. Pure.
import { numberOf } from './api.js';
import { grouped, shortNumber, valueText } from './format.js';

/** @typedef {import('./messages.d.ts').SweepView} SweepView */
/** @typedef {import('./messages.d.ts').SweepTrial} SweepTrial */
/**
 * @typedef {{ key: string, name: string, isMetric: boolean, isNumber: boolean, isLog: boolean, canBeLog: boolean,
 *   low: number, high: number, categories: string[], marks: number[], importance: number | null,
 *   of: (trial: SweepTrial) => number }} Axis `of` returns a number, the place of a category, or NaN
 * @typedef {{ low: number | null, high: number | null }} Brush both ends included
 */

export const MOST_AXES = 12;
const USUAL_PARAMETERS = 7;
const USUAL_METRICS = 3;
/** So many different values are marked each. */
const MOST_MARKED = 10;
const MOST_CATEGORIES = 24;
const LOG_FROM = 100;

/** Every column that a sweep can show, by key: `p.` a parameter, `m.` a metric. @param {SweepView} view */
export function columnKeys(view) {
  const metrics = [view.metric, ...view.metrics.filter((name) => name !== view.metric)].filter(Boolean);
  return [...view.parameters.map((one) => `p.${one.name}`), ...metrics.map((name) => `m.${name}`)];
}

/** Those that are shown unless others are chosen: the parameters that matter, the metric, and a few other metrics. @param {SweepView} view */
export function usualColumns(view) {
  const all = columnKeys(view);
  const ordered = [...view.parameters].sort((a, b) => (b.importance ?? 0) - (a.importance ?? 0));
  const chosen = new Set((view.parameters.length > USUAL_PARAMETERS ? ordered : view.parameters).slice(0, USUAL_PARAMETERS).map((one) => `p.${one.name}`));
  return [...all.filter((key) => chosen.has(key)), ...all.filter((key) => key.startsWith('m.')).slice(0, USUAL_METRICS)];
}

/**
 * @param {SweepView} view
 * @param {string} key
 * @param {string} scale `log`, `linear`, or empty: as the values are spread
 * @returns {Axis}
 */
export function axisOf(view, key, scale) {
  const name = key.slice(2);
  const isMetric = key.startsWith('m.');
  const parameter = isMetric ? undefined : view.parameters.find((one) => one.name === name);
  const isNumber = isMetric || Boolean(parameter?.is_number);
  /** @type {string[]} */
  let categories = [];
  /** @type {(trial: SweepTrial) => number} */
  let of = (trial) => numberOf(/** @type {any} */ (isMetric ? trial.metrics[name] : trial.parameters[name]));
  if (!isNumber) {
    const ordered = [...view.trials].sort((a, b) => a.number - b.number);
    const texts = new Map(ordered.map((trial) => [trial.number, textOf(trial.parameters[name])]));
    categories = [...new Set(texts.values())].slice(0, MOST_CATEGORIES);
    const places = new Map(categories.map((text, at) => [text, at]));
    of = (trial) => places.get(texts.get(trial.number) ?? '') ?? NaN;
  }
  const values = [...new Set(view.trials.map(of).filter(Number.isFinite))].sort((a, b) => a - b);
  let low = isNumber ? values[0] ?? 0 : -0.5;
  let high = isNumber ? values[values.length - 1] ?? 1 : Math.max(1, categories.length) - 0.5;
  const canBeLog = isNumber && low > 0 && high > low;
  const isLog = canBeLog && (scale ? scale === 'log' : parameter ? parameter.is_log : high / low >= LOG_FROM);
  if (low === high) [low, high] = isLog || !low ? [low - 0.5, high + 0.5] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
  const marks = !isNumber ? categories.map((_, at) => at)
    : !isMetric && values.length <= MOST_MARKED && values.length ? values : isLog ? logMarks(low, high) : roundMarks(low, high);
  return { key, name, isMetric, isNumber, isLog, canBeLog, low, high, categories, marks, importance: parameter?.importance ?? null, of };
}

/** @param {unknown} value */
const textOf = (value) => (value === undefined ? '–' : valueText(value));

/** Where a value is, from 0 at the lower end to 1. @param {Axis} axis @param {number} value */
export function placeOn(axis, value) {
  if (axis.isLog) return value > 0 ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : NaN;
  return (value - axis.low) / (axis.high - axis.low);
}

/** The value at a place, rounded to what a pixel can tell. @param {Axis} axis @param {number} place */
export function valueAt(axis, place) {
  const inside = Math.max(0, Math.min(1, place));
  if (!axis.isNumber) return Math.max(0, Math.min(axis.categories.length - 1, Math.round(axis.low + inside * (axis.high - axis.low))));
  const value = axis.isLog ? axis.low * (axis.high / axis.low) ** inside : axis.low + inside * (axis.high - axis.low);
  const step = axis.isLog ? value : axis.high - axis.low;
  const digits = Math.max(0, Math.min(15, 2 - Math.floor(Math.log10(Math.abs(step) || 1))));
  return digits > 12 ? Number(value.toPrecision(3)) : Number(value.toFixed(digits));
}

/** @param {Axis} axis @param {number} value */
export function axisText(axis, value) {
  if (Number.isNaN(value)) return '–';
  return axis.isNumber ? shortNumber(value) : axis.categories[Math.round(value)] ?? '–';
}

/** @param {number} low @param {number} high */
function logMarks(low, high) {
  const decades = Math.log10(high / low);
  const every = Math.max(1, Math.ceil(decades / 6));
  const made = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every) {
    for (const digit of decades < 2 ? [1, 2, 5] : [1]) made.push(Number(`${digit}e${power}`));
  }
  return made.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

/** @param {number} low @param {number} high */
function roundMarks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((digit) => digit * power >= rough) ?? 10);
  const made = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) made.push(Number((at * step).toPrecision(12)));
  return made;
}

/**
 * The brushes that a link names: `min.lr=0.001`, `max.lr=0.01`; of a category its text.
 * @param {URLSearchParams} query
 * @param {Axis[]} axes
 * @returns {Map<string, Brush>}
 */
export function readBrushes(query, axes) {
  const found = new Map();
  for (const axis of axes) {
    const [low, high] = ['min', 'max'].map((end) => {
      const text = query.get(`${end}.${axis.key}`);
      if (text === null) return null;
      const value = axis.isNumber ? Number(text) : axis.categories.indexOf(text);
      return Number.isNaN(value) || value < 0 && !axis.isNumber ? null : value;
    });
    if (low !== null || high !== null) found.set(axis.key, { low, high });
  }
  return found;
}

/**
 * The changes of a link that set a brush, or remove it.
 * @param {Axis} axis
 * @param {Brush | null} brush
 * @returns {Record<string, string | undefined>}
 */
export function brushQuery(axis, brush) {
  /** @param {number | null | undefined} value */
  const text = (value) => (value === null || value === undefined ? undefined : axis.isNumber ? String(value) : axis.categories[value]);
  return { [`min.${axis.key}`]: text(brush?.low), [`max.${axis.key}`]: text(brush?.high) };
}

/** @param {SweepTrial} trial @param {Axis[]} axes @param {Map<string, Brush>} brushes */
export function isInside(trial, axes, brushes) {
  return axes.every((axis) => {
    const brush = brushes.get(axis.key);
    if (!brush) return true;
    const value = axis.of(trial);
    return value >= (brush.low ?? -Infinity) && value <= (brush.high ?? Infinity);
  });
}

/** How good each trial is, from 0 the worst to 1 the best; trials without a value have none. @param {SweepView} view @returns {Map<number, number>} */
export function qualities(view) {
  const ranked = view.trials.filter((trial) => trial.place !== null);
  return new Map(ranked.map((trial, at) => [trial.number, ranked.length > 1 ? 1 - at / (ranked.length - 1) : 1]));
}

/** The trial that is the best of all that can be compared, if one is. @param {SweepView} view */
export function bestOf(view) {
  const firsts = view.trials.filter((trial) => trial.place === 1);
  return firsts.length === 1 ? firsts[0] : null;
}

/** @param {SweepView} view @param {SweepTrial} trial */
export function pointText(view, trial) {
  const texts = view.parameters.filter((one) => trial.parameters[one.name] !== undefined && trial.parameters[one.name] !== null)
    .map((one) => `${one.name}=${one.is_number ? shortNumber(numberOf(/** @type {any} */ (trial.parameters[one.name]))) : textOf(trial.parameters[one.name])}`);
  return texts.length ? texts.join(', ') : trial.label;
}

/** Whether values rise or fall together, by their ranks, in words. @param {number[]} xs @param {number[]} ys */
export function tendency(xs, ys) {
  if (xs.length < 3) return 'too few values for a trend';
  const [rx, ry] = [ranks(xs), ranks(ys)];
  const mean = (xs.length - 1) / 2;
  const sum = rx.reduce((total, rank, at) => total + (rank - mean) * (ry[at] - mean), 0);
  const [sx, sy] = [rx, ry].map((all) => Math.sqrt(all.reduce((total, rank) => total + (rank - mean) ** 2, 0)));
  const found = sx && sy ? sum / (sx * sy) : 0;
  return Math.abs(found) < 0.2 ? 'no clear trend' : found > 0 ? 'rising' : 'falling';
}

/** @param {number[]} values @returns {number[]} equal ones share the mean of their ranks */
function ranks(values) {
  const order = values.map((_, at) => at).sort((a, b) => values[a] - values[b]);
  const found = new Array(values.length).fill(0);
  for (let begin = 0; begin < order.length;) {
    let end = begin;
    while (end < order.length && values[order[end]] === values[order[begin]]) end += 1;
    for (let at = begin; at < end; at += 1) found[order[at]] = (begin + end - 1) / 2;
    begin = end;
  }
  return found;
}

/** @param {SweepView} view */
export const endedOf = (view) => ['completed', 'failed', 'cancelled'].reduce((sum, state) => sum + (view.jobs[state] ?? 0), 0);

/** @param {SweepView} view */
export const progressText = (view) => `${grouped(endedOf(view))} of ${grouped(view.total)} trials ended`;
