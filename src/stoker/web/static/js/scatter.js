// @ts-check
// A parameter against the metric: a point per trial, one drawing per parameter, the most important first. And how
// important each parameter is.
import { useMemo } from '../vendor/hooks.js';
import { numberOf } from './api.js';
import { Canvas, colour, label, lookOfPage, ramp } from './canvas.js';
import { cutMiddle, shortNumber } from './format.js';
import { h, html } from './html.js';
import { axisText, placeOn, tendency } from './sweep_axes.js';
import { Empty } from './ui.js';

/** @typedef {import('./messages.d.ts').SweepTrial} SweepTrial */
/** @typedef {import('./messages.d.ts').SweepView} SweepView */
/** @typedef {import('./sweep_axes.js').Axis} Axis */
/**
 * @typedef {{ trials: SweepTrial[], axes: Axis[], metric: Axis, inside: Set<number>, quality: Map<number, number>, best: number,
 *   focus: number, setFocus: (number: number) => void, mark: (number: number) => void }} ScatterProps
 */

const HEIGHT = 240;
const ROOM = { left: 58, right: 14, top: 12, bottom: 26 };
const NEAR = 10;
const COLOURS = 24;
/** Points of one category are spread over so much of its room. */
const SPREAD = 0.5;

/** @param {ScatterProps} props */
export function Scatters({ axes, ...rest }) {
  const ordered = [...axes].sort((a, b) => (b.importance ?? 0) - (a.importance ?? 0));
  if (!ordered.length) return h(Empty, { title: 'No parameter is shown: choose one in the columns.' });
  return html`<div class="curves">${ordered.map((axis) => h(Scatter, { key: axis.key, axis, ...rest }))}</div>`;
}

/** @param {Omit<ScatterProps, 'axes'> & { axis: Axis }} props */
function Scatter({ trials, axis, metric, inside, quality, best, focus, setFocus, mark }) {
  const look = lookOfPage();
  const points = useMemo(() => trials.flatMap((trial) => {
    const [x, y] = [axis.of(trial), metric.of(trial)];
    if (!Number.isFinite(x) || !Number.isFinite(y)) return [];
    // The same place every time: a trial's number decides it.
    const aside = axis.isNumber ? 0 : (((trial.number * 0.618034) % 1) - 0.5) * (SPREAD / axis.categories.length);
    return [{ trial, x: 0.03 + 0.94 * (placeOn(axis, x) + aside), y: 0.04 + 0.92 * placeOn(metric, y), value: [x, y] }];
  }), [trials, axis, metric]);
  const paint = useMemo(() => painter(points, axis, metric, inside, quality, best), [points, inside, quality, best, look]);
  /** @type {import('./canvas.js').Draw} */
  const over = (context, width) => {
    const found = points.find((point) => point.trial.number === focus);
    if (found) ring(context, xOf(found.x, width), yOf(found.y), 7, colour('--text'));
  };
  /** @param {any} event */
  const hit = (event) => {
    const bounds = event.currentTarget.getBoundingClientRect();
    let [number, distance] = [0, NEAR ** 2];
    for (const point of points) {
      if (!inside.has(point.trial.number)) continue;
      const away = (xOf(point.x, bounds.width) - event.clientX + bounds.left) ** 2 + (yOf(point.y) - event.clientY + bounds.top) ** 2;
      if (away < distance) [number, distance] = [point.trial.number, away];
    }
    return number;
  };
  const drawn = points.filter((point) => inside.has(point.trial.number));
  const first = points.find((point) => point.trial.number === best);
  const text = `${metric.name} against ${axis.name}: ${drawn.length} trials, ${first ? `best ${shortNumber(first.value[1])} at ${axisText(axis, first.value[0])}, ` : ''}${
    axis.isNumber ? tendency(drawn.map((point) => point.value[0]), drawn.map((point) => point.value[1])) : `${axis.categories.length} values`}; the table lists them`;
  return html`<section class="card curve" aria-label=${`${metric.name} against ${axis.name}`}>
    <div class="row"><h2 title=${axis.name}><span class="quiet">${cutMiddle(metric.name, 24)} against</span> ${cutMiddle(axis.name, 40)}</h2><span class="grow"></span>
      <span class="quiet">${[axis.isLog ? 'log' : '', axis.importance === null ? '' : `importance ${Math.round(axis.importance * 100)} %`].filter(Boolean).join(' · ')}</span></div>
    ${h(Canvas, { label: text, height: HEIGHT, paint, over, onPointerMove: (/** @type {any} */ event) => setFocus(hit(event)), onPointerLeave: () => setFocus(0),
      onClick: (/** @type {any} */ event) => { const found = hit(event); if (found) mark(found); } })}
  </section>`;
}

/** @param {number} x @param {number} width */
const xOf = (x, width) => ROOM.left + x * (width - ROOM.left - ROOM.right);
/** @param {number} y */
const yOf = (y) => HEIGHT - ROOM.bottom - y * (HEIGHT - ROOM.top - ROOM.bottom);

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} size @param {string} stroke */
function ring(context, x, y, size, stroke) {
  context.beginPath();
  context.arc(x, y, size, 0, 2 * Math.PI);
  context.strokeStyle = colour('--card');
  context.lineWidth = 4;
  context.stroke();
  context.strokeStyle = stroke;
  context.lineWidth = 2;
  context.stroke();
}

/**
 * @param {{ trial: SweepTrial, x: number, y: number }[]} points @param {Axis} axis @param {Axis} metric
 * @param {Set<number>} inside @param {Map<number, number>} quality @param {number} best
 * @returns {import('./canvas.js').Draw}
 */
function painter(points, axis, metric, inside, quality, best) {
  return (context, width) => {
    const colours = ramp(COLOURS);
    context.lineWidth = 1;
    context.strokeStyle = colour('--line');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (const value of metric.marks) {
      const y = yOf(0.04 + 0.92 * placeOn(metric, value));
      context.beginPath();
      context.moveTo(ROOM.left, y);
      context.lineTo(width - ROOM.right, y);
      context.stroke();
      label(context, axisText(metric, value), ROOM.left - 6, y);
      context.lineWidth = 1;
      context.strokeStyle = colour('--line');
    }
    context.textAlign = 'center';
    let before = -Infinity;
    const letters = axis.isNumber ? 9 : Math.max(4, Math.floor((width - ROOM.left) / axis.marks.length / 7));
    for (const value of axis.marks) {
      const x = xOf(0.03 + 0.94 * placeOn(axis, value), width);
      context.fillStyle = colour('--text-quiet');
      context.fillRect(x - 0.5, HEIGHT - ROOM.bottom, 1, 4);
      if (x - before < 44 && axis.isNumber) continue;
      before = x;
      label(context, cutMiddle(axisText(axis, value), letters), x, HEIGHT - ROOM.bottom + 13);
    }
    for (const point of [...points].reverse()) {
      const own = quality.get(point.trial.number);
      const isIn = inside.has(point.trial.number);
      context.globalAlpha = isIn ? 0.9 : 0.15;
      context.fillStyle = point.trial.state === 'failed' ? colour('--failed') : own === undefined ? colour('--text-quiet') : colours[Math.round(own * (COLOURS - 1))];
      context.beginPath();
      context.arc(xOf(point.x, width), yOf(point.y), points.length > 300 ? 2.6 : 4, 0, 2 * Math.PI);
      context.fill();
    }
    context.globalAlpha = 1;
    const first = points.find((point) => point.trial.number === best && inside.has(best));
    if (first) ring(context, xOf(first.x, width), yOf(first.y), 6.5, colours[COLOURS - 1]);
  };
}

const METHODS = /** @type {Record<string, string>} */ ({
  'random forest': 'Permutation importance over a random forest: how much worse the ranks of trials are predicted if one parameter is shuffled.',
  'rank correlation': 'Rank correlation with the metric; of a parameter that is no number, how much of the spread lies between its values. With scikit-learn installed it is permutation importance over a random forest.',
});

/** @param {{ view: SweepView }} props */
export function Importance({ view }) {
  if (!view.importance_by) return h(Empty, { title: 'Too few trials: importance needs eight that have the metric.' });
  const ordered = [...view.parameters].sort((a, b) => (b.importance ?? 0) - (a.importance ?? 0));
  const trials = view.trials.filter((trial) => Number.isFinite(numberOf(trial.metrics[view.metric])));
  return html`<section class="card" aria-label="importance"><h2>What ${view.metric} depends on <span class="quiet">by ${view.importance_by}</span></h2>
    <p class="quiet">${METHODS[view.importance_by] ?? ''}</p>
    <div class="scroll" tabindex="0" role="region" aria-label="importance of parameters"><table class="importance"><caption class="hidden">importance of each parameter by ${view.importance_by}</caption>
      <thead><tr><th scope="col">parameter</th><th scope="col"><span class="hidden">bar</span></th><th scope="col" class="right">part</th><th scope="col">${view.metric} with larger values</th></tr></thead>
      <tbody>${ordered.map((one) => html`<tr key=${one.name}><th scope="row"><span title=${one.name}>${cutMiddle(one.name, 40)}</span></th>
        <td><progress max="100" value=${Math.round((one.importance ?? 0) * 100)} aria-label=${`importance of ${one.name}`}></progress></td>
        <td class="right">${Math.round((one.importance ?? 0) * 100)} %</td><td>${trendOf(view, one, trials)}</td></tr>`)}</tbody></table></div></section>`;
}

/** @param {SweepView} view @param {import('./messages.d.ts').SweepParameter} parameter @param {SweepTrial[]} trials */
function trendOf(view, parameter, trials) {
  if (!parameter.is_number) return '–';
  const pairs = trials.map((trial) => [numberOf(/** @type {any} */ (trial.parameters[parameter.name])), numberOf(trial.metrics[view.metric])])
    .filter(([x]) => Number.isFinite(x));
  return tendency(pairs.map(([x]) => x), pairs.map(([, y]) => y));
}
