// @ts-check
// Parallel coordinates of a sweep on one canvas: a line per trial, an axis per column. A brush is set by dragging along
// an axis, or by the two inputs below it, which keys reach.
import { useMemo, useRef, useState } from '../vendor/hooks.js';
import { Canvas, colour, label, lookOfPage, ramp } from './canvas.js';
import { cutMiddle, grouped } from './format.js';
import { h, html } from './html.js';
import { axisText, brushQuery, placeOn, valueAt } from './sweep_axes.js';

/** @typedef {import('./messages.d.ts').SweepTrial} SweepTrial */
/** @typedef {import('./sweep_axes.js').Axis} Axis */
/** @typedef {import('./sweep_axes.js').Brush} Brush */
/**
 * @typedef {{ trials: SweepTrial[], axes: Axis[], brushes: Map<string, Brush>, inside: Set<number>,
 *   quality: Map<number, number>, best: number, focus: number, setFocus: (number: number) => void,
 *   mark: (number: number) => void, change: (query: Record<string, string | undefined>) => void,
 *   move: (key: string, by: number) => void, label: string }} ParallelProps
 */

const HEIGHT = 340;
const TOP = 16;
const BOTTOM = 34;
/** Where lines of trials without a value end, below the axis. */
const NONE = 20;
const NEAR_AXIS = 24;
const NEAR_LINE = 9;
const COLOURS = 24;
const FEW_LINES = 150;
const LINES_PER_STROKE = 40;

/** @param {ParallelProps} props */
export function Parallel(props) {
  const { trials, axes, brushes, inside, quality, best, focus, setFocus, mark, change } = props;
  const [drag, setDrag] = useState(/** @type {{ at: number, from: number, to: number } | null} */ (null));
  const started = useRef(/** @type {{ at: number, from: number } | null} */ (null));
  const look = lookOfPage();
  const places = useMemo(() => trials.map((trial) => axes.map((axis) => placeOn(axis, axis.of(trial)))), [trials, axes]);
  const paint = useMemo(() => painter(trials, axes, places, inside, quality, best), [trials, axes, places, inside, quality, best, look]);
  const focused = trials.findIndex((trial) => trial.number === focus);
  /** @type {import('./canvas.js').Draw} */
  const over = (context, width) => {
    axes.forEach((axis, at) => {
      const x = xOf(at, axes.length, width);
      const own = drag?.at === at ? span(drag.from, drag.to) : placesOf(axis, brushes.get(axis.key));
      if (own) box(context, x, own);
      drawAxis(context, axis, x, width / axes.length);
    });
    if (focused >= 0) strong(context, places[focused], width, colour('--text'), 3);
  };
  /** @param {any} event */
  const at = (event) => {
    const bounds = event.currentTarget.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    const axis = Math.max(0, Math.min(axes.length - 1, Math.floor((x / bounds.width) * axes.length)));
    const isNear = Math.abs(x - xOf(axis, axes.length, bounds.width)) <= NEAR_AXIS;
    return { x, width: bounds.width, y, axis, isNear, place: placeAt(y) };
  };
  /** @param {any} event */
  const down = (event) => {
    // A finger scrolls the page; the inputs below set brushes there.
    if (event.pointerType === 'touch' || event.button) return;
    const found = at(event);
    if (!found.isNear) return;
    event.currentTarget.setPointerCapture?.(event.pointerId);
    started.current = { at: found.axis, from: found.place };
    event.preventDefault();
  };
  /** @param {any} event */
  const move = (event) => {
    const found = at(event);
    const from = started.current;
    if (from) setDrag({ ...from, to: found.place });
    else setFocus(nearest(trials, places, inside, found));
    event.currentTarget.classList.toggle('on-axis', found.isNear);
  };
  /** @param {any} event */
  const up = (event) => {
    const found = at(event);
    const from = started.current;
    started.current = null;
    setDrag(null);
    if (!from) {
      const hit = nearest(trials, places, inside, found);
      if (hit) mark(hit);
      return;
    }
    const axis = axes[from.at];
    const isClick = Math.abs(from.from - found.place) < 0.015;
    change(brushQuery(axis, isClick ? null : brushOf(axis, span(from.from, found.place))));
  };
  return html`<div class="scroll parallel" tabindex="0" role="region" aria-label="parallel coordinates">
    <div class="axes" style=${{ gridTemplateColumns: `repeat(${axes.length}, minmax(112px, 1fr))` }}>
      ${axes.map((axis, place) => h(AxisHead, { key: axis.key, axis, isFirst: !place, isLast: place === axes.length - 1, move: (by) => props.move(axis.key, by) }))}
      ${h(Canvas, { label: props.label, height: HEIGHT, paint, over, className: 'across',
        onPointerDown: down, onPointerMove: move, onPointerUp: up, onPointerLeave: () => !started.current && setFocus(0) })}
      ${axes.map((axis) => h(AxisInputs, { key: axis.key, axis, brush: brushes.get(axis.key), change }))}
    </div></div>
    <p class="quiet legend"><span class="scale" aria-hidden="true"></span> from the worst to the best · thick: the best · dashed: failed · grey: no value yet · %: importance.
      ${' '}Drag along an axis to keep a range, click it to keep all; click a line to select its trial.</p>`;
}

/** @param {{ axis: Axis, isFirst: boolean, isLast: boolean, move: (by: number) => void }} props */
function AxisHead({ axis, isFirst, isLast, move }) {
  return html`<div class=${axis.isMetric ? 'axis-head metric' : 'axis-head'}>
    <strong title=${axis.name}>${cutMiddle(axis.name, 28)}</strong>
    <span class="quiet"><button type="button" class="mini" disabled=${isFirst} aria-label=${`move ${axis.name} to the left`} onClick=${() => move(-1)}>◂</button>
      ${[axis.isLog ? 'log' : '', axis.importance ? `${Math.round(axis.importance * 100)} %` : ''].filter(Boolean).join(' · ')}
      <button type="button" class="mini" disabled=${isLast} aria-label=${`move ${axis.name} to the right`} onClick=${() => move(1)}>▸</button></span></div>`;
}

/** @param {{ axis: Axis, brush: Brush | undefined, change: (query: Record<string, string | undefined>) => void }} props */
function AxisInputs({ axis, brush, change }) {
  /** @param {'low' | 'high'} end @param {string} text */
  const set = (end, text) => {
    const value = text === '' ? null : Number(text);
    if (value !== null && !Number.isFinite(value)) return;
    change(brushQuery(axis, { low: brush?.low ?? null, high: brush?.high ?? null, [end]: value }));
  };
  /** @param {'low' | 'high'} end @param {string} word */
  const input = (end, word) => {
    const value = brush?.[end] ?? null;
    if (axis.isNumber) {
      return html`<input type="number" step="any" aria-label=${`${axis.name} ${word}`} placeholder=${axisText(axis, end === 'low' ? axis.low : axis.high)}
        value=${value ?? ''} onChange=${(/** @type {any} */ event) => set(end, event.target.value)} />`;
    }
    return html`<select aria-label=${`${axis.name} ${word}`} value=${value === null ? '' : String(value)} onChange=${(/** @type {any} */ event) => set(end, event.target.value)}>
      <option value="">${word} any</option>${axis.categories.map((text, at) => html`<option key=${text} value=${String(at)}>${cutMiddle(text, 30)}</option>`)}</select>`;
  };
  return html`<div class="axis-inputs">${input('low', 'from')}${input('high', 'to')}
    ${axis.canBeLog && html`<label class="check quiet"><input type="checkbox" checked=${axis.isLog} aria-label=${`${axis.name} on a log scale`}
      onChange=${() => change({ [`scale.${axis.key}`]: axis.isLog ? 'linear' : 'log' })} /> log</label>`}</div>`;
}

/** @param {number} at @param {number} count @param {number} width */
const xOf = (at, count, width) => ((at + 0.5) * width) / count;
/** @param {number} place */
const yOf = (place) => (Number.isNaN(place) ? HEIGHT - BOTTOM + NONE : TOP + (1 - place) * (HEIGHT - TOP - BOTTOM));
/** @param {number} y */
const placeAt = (y) => Math.max(0, Math.min(1, 1 - (y - TOP) / (HEIGHT - TOP - BOTTOM)));
/** @param {number} a @param {number} b @returns {[number, number]} */
const span = (a, b) => [Math.min(a, b), Math.max(a, b)];

/** @param {Axis} axis @param {Brush | undefined} brush @returns {[number, number] | null} */
function placesOf(axis, brush) {
  if (!brush) return null;
  const half = axis.isNumber ? 0 : 0.5 / axis.categories.length;
  /** @param {number | null} value @param {number} end @param {number} more */
  const place = (value, end, more) => (value === null ? end : Math.max(0, Math.min(1, (placeOn(axis, value) || 0) + more)));
  return [place(brush.low, 0, -half), place(brush.high, 1, half)];
}

/** @param {Axis} axis @param {[number, number]} places @returns {Brush | null} */
function brushOf(axis, [from, to]) {
  const low = from < 0.005 ? null : valueAt(axis, from);
  const high = to > 0.995 ? null : valueAt(axis, to);
  return low === null && high === null ? null : { low, high };
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {[number, number]} places */
function box(context, x, [from, to]) {
  const [top, bottom] = [yOf(to), yOf(from)];
  context.fillStyle = colour('--brush');
  context.fillRect(x - 9, top, 18, Math.max(2, bottom - top));
  context.strokeStyle = colour('--accent');
  context.lineWidth = 1.5;
  context.strokeRect(x - 9, top, 18, Math.max(2, bottom - top));
}

/** @param {CanvasRenderingContext2D} context @param {Axis} axis @param {number} x @param {number} room */
function drawAxis(context, axis, x, room) {
  context.strokeStyle = colour('--text-quiet');
  context.lineWidth = 1;
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x, TOP);
  context.lineTo(x, yOf(0));
  context.stroke();
  context.textBaseline = 'middle';
  context.textAlign = 'left';
  let before = Infinity;
  const letters = Math.max(6, Math.floor(room / 8) - 2);
  for (const value of axis.marks) {
    const y = yOf(placeOn(axis, value));
    context.fillStyle = colour('--text-quiet');
    context.fillRect(x - 3, y - 0.5, 6, 1);
    if (Math.abs(before - y) < 13) continue;
    before = y;
    label(context, cutMiddle(axisText(axis, value), letters), x + 8, y);
  }
}

/** @param {CanvasRenderingContext2D} context @param {number[]} places @param {number} width */
function trace(context, places, width) {
  places.forEach((place, at) => {
    const [x, y] = [xOf(at, places.length, width), yOf(place)];
    if (at) context.lineTo(x, y);
    else context.moveTo(x, y);
  });
}

/** @param {CanvasRenderingContext2D} context @param {number[]} places @param {number} width @param {string} stroke @param {number} wide */
function strong(context, places, width, stroke, wide) {
  context.setLineDash([]);
  for (const [one, thick] of /** @type {[string, number][]} */ ([[colour('--card'), wide + 3], [stroke, wide]])) {
    context.strokeStyle = one;
    context.lineWidth = thick;
    context.beginPath();
    trace(context, places, width);
    context.stroke();
  }
}

/**
 * All lines: those outside of the brushes first, the best last.
 * @param {SweepTrial[]} trials @param {Axis[]} axes @param {number[][]} places @param {Set<number>} inside
 * @param {Map<number, number>} quality @param {number} best
 * @returns {import('./canvas.js').Draw}
 */
function painter(trials, axes, places, inside, quality, best) {
  return (context, width) => {
    const colours = ramp(COLOURS);
    /** @type {Map<string, number[]>} */
    const groups = new Map();
    trials.forEach((trial, at) => {
      const own = quality.get(trial.number);
      const key = !inside.has(trial.number) ? 'out' : trial.state === 'failed' ? 'failed' : own === undefined ? 'none'
        : String(Math.round(own * (COLOURS - 1)));
      const group = groups.get(key);
      if (group) group.push(at);
      else groups.set(key, [at]);
    });
    const dense = inside.size > 400 ? 0.45 : inside.size > 100 ? 0.65 : 0.9;
    // Without a graphics card, lines of one pixel are drawn 20 times as fast as wider ones, and few in one stroke.
    const wide = trials.length > FEW_LINES ? 1 / context.getTransform().a : 1.3;
    /** @param {string} key @param {string} stroke @param {number} alpha @param {number[]} dash */
    const draw = (key, stroke, alpha, dash) => {
      context.globalAlpha = alpha;
      context.strokeStyle = stroke;
      context.lineWidth = wide;
      context.setLineDash(dash);
      const group = groups.get(key) ?? [];
      for (let begin = 0; begin < group.length; begin += LINES_PER_STROKE) {
        context.beginPath();
        for (const at of group.slice(begin, begin + LINES_PER_STROKE)) trace(context, places[at], width);
        context.stroke();
      }
    };
    draw('out', colour('--text-quiet'), trials.length > 200 ? 0.07 : 0.15, []);
    draw('none', colour('--text-quiet'), 0.4, []);
    draw('failed', colour('--failed'), 0.7, [4, 4]);
    colours.forEach((stroke, at) => draw(String(at), stroke, dense, []));
    context.globalAlpha = 1;
    const first = trials.findIndex((trial) => trial.number === best && inside.has(best));
    if (first >= 0) strong(context, places[first], width, colours[COLOURS - 1], 3.5);
    if (places.some((row) => row.some(Number.isNaN))) {
      context.textAlign = 'center';
      context.textBaseline = 'top';
      axes.forEach((_, at) => {
        if (places.some((row) => Number.isNaN(row[at]))) label(context, 'no value', xOf(at, axes.length, width), HEIGHT - BOTTOM + NONE + 2);
      });
    }
  };
}

/**
 * The number of the trial whose line is nearest, or 0 if none is near.
 * @param {SweepTrial[]} trials @param {number[][]} places @param {Set<number>} inside @param {{ x: number, y: number, width: number }} at
 */
function nearest(trials, places, inside, { x, y, width }) {
  const count = places[0]?.length ?? 0;
  if (!count) return 0;
  const along = (x / width) * count - 0.5;
  const left = Math.max(0, Math.min(count - 1, Math.floor(along)));
  const right = Math.min(count - 1, left + 1);
  const part = Math.max(0, Math.min(1, along - left));
  let [found, distance] = [0, NEAR_LINE];
  trials.forEach((trial, at) => {
    if (!inside.has(trial.number)) return;
    const [from, to] = [yOf(places[at][left]), yOf(places[at][right])];
    const away = Math.abs(from + (to - from) * part - y);
    if (away < distance) [found, distance] = [trial.number, away];
  });
  return found;
}

/** @param {number} count @param {number} shown */
export const shownText = (count, shown) => (shown === count ? `${grouped(count)} trials` : `${grouped(shown)} of ${grouped(count)} trials`);
