// @ts-check
// Who ran what where: a row per machine, a bar per attempt, drawn on one canvas of which only the rows in view are
// painted. Arrow keys walk along the bars; the same as a table.
import { useEffect, useMemo, useRef, useState } from '../vendor/hooks.js';
import { TINTS, colour, lookOfPage } from './canvas.js';
import { tickText } from './charts.js';
import { clockTime, cutMiddle, duration, grouped } from './format.js';
import { h, html } from './html.js';
import { go, jobLink } from './router.js';

/** @typedef {import('./messages.d.ts').TimelineView} TimelineView */
/** @typedef {import('./messages.d.ts').TimelineSpan} TimelineSpan */
/** @typedef {{ span: TimelineSpan, lane: number }} Bar */
/** @typedef {{ name: string, label: string, bars: Bar[], lanes: number, top: number, height: number }} Row */

const LANE = 20;
const MOST_LANES = 8;
const GAP = 6;
const AXIS = 24;
const MOST_HEIGHT = 420;
const MOST_TABLE_ROWS = 300;
const TICKS_S = [60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const SIGNS = /** @type {Record<string, string>} */ ({ completed: '✓', failed: '✗', cancelled: '⊘', expired: '!', released: '↺', declined: '↺', '': '▶' });

/**
 * Place bars that overlap below each other.
 * @param {TimelineView} view @param {string[]} order names of all rows
 * @param {(span: TimelineSpan) => string[]} rowsOf the rows in which a bar is
 * @param {(name: string) => string} labelOf
 * @returns {Row[]}
 */
function arrange(view, order, rowsOf, labelOf) {
  /** @type {Map<string, TimelineSpan[]>} */
  const found = new Map(order.map((name) => [name, []]));
  for (const span of view.spans) {
    for (const name of rowsOf(span)) {
      if (!found.has(name)) found.set(name, []);
      found.get(name)?.push(span);
    }
  }
  let top = 0;
  return [...found].map(([name, spans]) => {
    /** @type {number[]} */
    const ends = [];
    const bars = [...spans].sort((a, b) => a.from_s - b.from_s).map((span) => {
      let lane = ends.findIndex((end) => end <= span.from_s);
      if (lane < 0) lane = ends.length < MOST_LANES ? ends.length : ends.indexOf(Math.min(...ends));
      ends[lane] = span.to_s ?? Infinity;
      return { span, lane };
    });
    const lanes = Math.max(1, ends.length);
    const row = { name, label: labelOf(name), bars, lanes, top, height: lanes * LANE + GAP };
    top += row.height;
    return row;
  });
}

/** The points of a sweep have one colour. @param {TimelineSpan} span */
const groupOf = (span) => span.name.split('/')[0];

/** @param {TimelineSpan} span @param {number} now_s */
export const spanText = (span, now_s) =>
  `${span.name}${span.attempt > 1 ? `, attempt ${span.attempt}` : ''} on ${span.machine}: ${SIGNS[span.ending] ?? ''} ${span.ending || 'running'}, ${
    clockTime(span.from_s)} to ${span.to_s ? clockTime(span.to_s) : 'now'} (${duration((span.to_s ?? now_s) - span.from_s)})`;

/**
 * @param {{ view: TimelineView, order: string[], isTable: boolean, rowsOf?: (span: TimelineSpan) => string[],
 *   labelOf?: (name: string) => string }} props
 */
export function Timeline({ view, order, isTable, rowsOf = (span) => [span.machine], labelOf = (name) => name }) {
  const rows = useMemo(() => arrange(view, order, rowsOf, labelOf), [view, order.map((name) => `${name} ${labelOf(name)}`).join('\n')]);
  const note = view.is_cut && html`<p class="notice">More ran than is shown here${view.whole_from_s ? `: everything since ${clockTime(view.whole_from_s)}` : ''}.</p>`;
  if (isTable) return html`${note}${h(SpanTable, { view })}`;
  return html`${note}${h(Picture, { rows, view })}`;
}

/** @param {{ view: TimelineView }} props */
function SpanTable({ view }) {
  const spans = [...view.spans].sort((a, b) => b.from_s - a.from_s);
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label="what ran where"><table><caption class="hidden">what ran where, newest first</caption>
    <thead><tr><th scope="col">machine</th><th scope="col">job</th><th scope="col">started</th><th scope="col" class="right">took</th><th scope="col">ending</th></tr></thead>
    <tbody>${spans.slice(0, MOST_TABLE_ROWS).map((span) => html`<tr key=${`${span.job} ${span.attempt}`}><td>${span.machine}</td>
      <td><a href=${jobLink(span.job)}>${cutMiddle(span.name, 44)}</a>${span.attempt > 1 ? ` attempt ${span.attempt}` : ''}</td>
      <td>${clockTime(span.from_s)}</td><td class="right">${duration((span.to_s ?? view.server_s) - span.from_s)}</td>
      <td>${SIGNS[span.ending] ?? ''} ${span.ending || 'running'}</td></tr>`)}</tbody></table></div>
    ${spans.length > MOST_TABLE_ROWS && html`<p class="quiet">The newest ${grouped(MOST_TABLE_ROWS)} of ${grouped(spans.length)}.</p>`}`;
}

/** @param {{ rows: Row[], view: TimelineView }} props */
function Picture({ rows, view }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [width, setWidth] = useState(800);
  const [scroll, setScroll] = useState(0);
  const [chosen, setChosen] = useState(/** @type {[number, number] | null} */ (null));
  const whole = rows.length ? rows[rows.length - 1].top + rows[rows.length - 1].height : 0;
  const height = Math.min(MOST_HEIGHT, whole + AXIS);
  const gutter = width < 560 ? 72 : 120;
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const watch = new ResizeObserver(() => setWidth(element.clientWidth));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  /** @param {number} at_s */
  const x = (at_s) => gutter + ((Math.min(Math.max(at_s, view.from_s), view.to_s) - view.from_s) / (view.to_s - view.from_s)) * (width - gutter - 8);
  useEffect(() => {
    if (canvas.current) paint(canvas.current, { rows, view, width, height, gutter, scroll, chosen, x });
  }, [rows, width, height, scroll, chosen, lookOfPage()]);
  const at = chosen && rows[chosen[0]]?.bars[chosen[1]];
  /** @param {MouseEvent} event @returns {[number, number] | null} */
  const find = (event) => {
    const place = canvas.current?.getBoundingClientRect();
    if (!place) return null;
    const [left, top] = [event.clientX - place.left, event.clientY - place.top - AXIS + scroll];
    const row = event.clientY - place.top < AXIS ? -1 : rows.findIndex((one) => top >= one.top && top < one.top + one.height);
    if (row < 0) return null;
    const lane = Math.floor((top - rows[row].top) / LANE);
    const bar = rows[row].bars.findLastIndex((one) => one.lane === lane && left >= x(one.span.from_s) - 1 && left <= Math.max(x(one.span.to_s ?? view.to_s), x(one.span.from_s) + 3));
    return bar < 0 ? null : [row, bar];
  };
  /** @param {number} step @param {number} down */
  const move = (step, down) => {
    let [row, bar] = chosen ?? [-1, 0];
    if (row < 0 || down) {
      const from = row < 0 ? (down < 0 ? rows.length : -1) : row;
      const way = down || 1;
      let next = from + way;
      while (rows[next] && !rows[next].bars.length) next += way;
      if (!rows[next]) return;
      const near = row < 0 ? -Infinity : rows[row].bars[bar].span.from_s;
      row = next;
      bar = Math.max(0, rows[row].bars.findLastIndex((one) => one.span.from_s <= near));
    } else bar = Math.max(0, Math.min(rows[row].bars.length - 1, bar + step));
    setChosen([row, bar]);
    const element = box.current;
    if (!element) return;
    if (rows[row].top < element.scrollTop) element.scrollTop = rows[row].top;
    else if (rows[row].top + rows[row].height > element.scrollTop + height - AXIS) element.scrollTop = rows[row].top + rows[row].height - height + AXIS;
  };
  /** @param {KeyboardEvent} event */
  const hear = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const way = /** @type {Record<string, [number, number]>} */ ({ ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] })[event.key];
    if (way) move(...way);
    else if (event.key === 'Enter' && at) go(jobLink(at.span.job));
    else return;
    event.preventDefault();
  };
  return html`<div class="timeline" tabindex="0" role="group" aria-label="timeline of the machines: arrow keys choose an attempt, Enter opens its job"
      ref=${box} onKeyDown=${hear} style=${{ maxHeight: `${height}px` }} onScroll=${(/** @type {any} */ event) => setScroll(event.currentTarget.scrollTop)}>
      <canvas ref=${canvas} role="img" aria-label=${describe(rows, view)} class=${at ? 'pointing' : ''} style=${{ width: `${width}px`, height: `${height}px` }}
        onMouseMove=${(/** @type {MouseEvent} */ event) => {
          const found = find(event);
          if (found?.join() !== chosen?.join()) setChosen(found);
        }} onClick=${(/** @type {MouseEvent} */ event) => {
          const found = find(event);
          if (found) go(jobLink(rows[found[0]].bars[found[1]].span.job));
        }}></canvas>
      <div style=${{ height: `${Math.max(0, whole + AXIS - height)}px` }}></div></div>
    <p class="quiet under" role="status">${at ? spanText(at.span, view.server_s) : 'Point at a bar, or use the arrow keys; colours are names of jobs, ✗ failed.'}</p>`;
}

/** @param {Row[]} rows @param {TimelineView} view */
function describe(rows, view) {
  const jobs = new Set(view.spans.map((span) => span.job)).size;
  const failed = view.spans.filter((span) => span.ending === 'failed').length;
  return `${grouped(view.spans.length)} attempts of ${grouped(jobs)} jobs on ${grouped(rows.length)} rows from ${clockTime(view.from_s)} to ${clockTime(view.to_s)}, ${
    grouped(failed)} failed; the table has the same`;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{ rows: Row[], view: TimelineView, width: number, height: number, gutter: number, scroll: number,
 *   chosen: [number, number] | null, x: (at_s: number) => number }} what
 */
function paint(canvas, { rows, view, width, height, gutter, scroll, chosen, x }) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext('2d');
  if (!pen) return;
  pen.scale(ratio, ratio);
  const [text, quiet, line, card] = ['--text', '--text-quiet', '--line', '--card'].map(colour);
  const [failed, onColour] = ['--failed', '--on-colour'].map(colour);
  const numbers = coloursOf(view.spans.map(groupOf));
  const fills = Array.from({ length: TINTS }, (_one, at) => colour(`--tint-${at}`));
  pen.font = '12px system-ui, sans-serif';
  pen.textBaseline = 'middle';
  const step = TICKS_S.find((one) => (view.to_s - view.from_s) / one <= Math.max(2, (width - gutter) / 90)) ?? TICKS_S[TICKS_S.length - 1];
  const shift = new Date(view.from_s * 1000).getTimezoneOffset() * 60;
  pen.lineWidth = 1;
  for (let at = Math.ceil((view.from_s - shift) / step) * step + shift; at <= view.to_s; at += step) {
    pen.strokeStyle = line;
    pen.beginPath();
    pen.moveTo(Math.round(x(at)) + 0.5, AXIS - 4);
    pen.lineTo(Math.round(x(at)) + 0.5, height);
    pen.stroke();
    pen.fillStyle = quiet;
    pen.textAlign = 'center';
    pen.fillText(tickText(at, step), Math.min(x(at), width - 18), AXIS / 2);
  }
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, width, height - AXIS);
  pen.clip();
  pen.textAlign = 'left';
  rows.forEach((row, number) => {
    const top = row.top - scroll + AXIS;
    if (top > height || top + row.height < AXIS) return;
    pen.strokeStyle = line;
    pen.beginPath();
    pen.moveTo(0, Math.round(top) + 0.5);
    pen.lineTo(width, Math.round(top) + 0.5);
    pen.stroke();
    pen.fillStyle = text;
    pen.fillText(fitted(pen, row.label, gutter - 12), 4, top + (LANE + GAP) / 2);
    row.bars.forEach(({ span, lane }, at) => {
      const left = x(span.from_s);
      const wide = Math.max(3, x(span.to_s ?? view.to_s) - left);
      const y = top + GAP / 2 + lane * LANE + 1;
      const isFailed = span.ending === 'failed';
      pen.globalAlpha = ['completed', 'failed', ''].includes(span.ending) ? 1 : 0.55;
      pen.fillStyle = fills[numbers.get(groupOf(span)) ?? 0];
      pen.beginPath();
      pen.roundRect(left, y, wide, LANE - 3, 3);
      pen.fill();
      pen.globalAlpha = 1;
      if (isFailed || (chosen && chosen[0] === number && chosen[1] === at)) {
        pen.strokeStyle = isFailed ? failed : text;
        pen.lineWidth = 2;
        pen.stroke();
        pen.lineWidth = 1;
      } else {
        pen.strokeStyle = card;
        pen.stroke();
      }
      if (wide > 34) {
        pen.fillStyle = onColour;
        pen.fillText(fitted(pen, `${isFailed ? '✗ ' : span.ending ? '' : '▶ '}${span.name}`, wide - 10), left + 5, y + (LANE - 3) / 2 + 0.5);
      }
    });
  });
  pen.restore();
}

/** Cut a text to a width. @param {CanvasRenderingContext2D} pen @param {string} text @param {number} width */
function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let most = Math.floor((text.length * width) / Math.max(1, pen.measureText(text).width));
  while (most > 1 && pen.measureText(cutMiddle(text, most)).width > width) most -= 1;
  return most > 1 ? cutMiddle(text, most) : '';
}

/**
 * Give each name one of the colours: the same on every page, unless another name here has it.
 * @param {string[]} names @returns {Map<string, number>}
 */
function coloursOf(names) {
  const found = new Map();
  const free = new Set(Array.from({ length: TINTS }, (_one, at) => at));
  for (const name of [...new Set(names)].sort()) {
    let at = hash(name) % TINTS;
    while (free.size && !free.has(at)) at = (at + 1) % TINTS;
    free.delete(at);
    found.set(name, at);
  }
  return found;
}

/** @param {string} name */
function hash(name) {
  let sum = 0;
  for (const letter of name) sum = (Math.imul(sum, 31) + (letter.codePointAt(0) ?? 0)) >>> 0;
  return sum;
}
