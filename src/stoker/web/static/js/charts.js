// @ts-check
// Charts over time: lines of several devices in one scale, each with the band between its extremes if there is room;
// loaded when they come into view; and the same numbers as a table.
import { useEffect, useMemo, useRef, useState } from '../vendor/hooks.js';
import uPlot from '../vendor/uplot.js';
import { TINTS, colour, lookOfPage } from './canvas.js';
import { clockTime, duration, shortNumber } from './format.js';
import { h, html } from './html.js';

/**
 * @typedef {(number | null)[]} Values
 * @typedef {{ label: string, at: number, times: number[], low: Values, mean: Values, high: Values }} Line
 * @typedef {{ title: string, unit: string, lines: Line[], from: number, to: number, period: number,
 *   bounds?: [number | null, number | null] }} ChartProps
 */

const HEIGHT = 170;
/** Of more lines the bands would hide each other. */
const MOST_BANDS = 2;
const MOST_LINES = 16;
const MOST_TABLE_ROWS = 400;
const MOST_TABLE_LINES = 9;

/** True once the element was in view. @returns {[{ current: any }, boolean]} */
export function useSeen() {
  const [isSeen, setSeen] = useState(false);
  const box = useRef(/** @type {any} */ (null));
  useEffect(() => {
    if (isSeen || !box.current) return undefined;
    const watch = new IntersectionObserver((found) => found.some((one) => one.isIntersecting) && setSeen(true), { rootMargin: '200px' });
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, isSeen];
}

/** @param {ChartProps & { isTable: boolean }} props */
export function TimeChart({ isTable, ...chart }) {
  const [box, isSeen] = useSeen();
  const lines = chart.lines.slice(0, MOST_LINES);
  const left = chart.lines.length - lines.length;
  return html`<section class="card chart" ref=${box} aria-label=${chart.title}>
    <div class="row"><h2>${chart.title}</h2><span class="grow"></span>
      <span class="quiet">${lines.length === 1 ? extremes(lines[0], chart.unit) : ''}</span></div>
    ${isTable ? h(ChartTable, chart) : html`<div class="chartbox">${isSeen && h(Plot, { ...chart, lines })}</div>`}
    ${lines.length > 1 && !isTable && html`<ul class="lines" aria-label="lines">${lines.map((line) => html`<li key=${line.label}>${h(Swatch, { at: line.at })}${line.label} <span class="quiet">${withUnit(lastOf(line.mean), chart.unit)}</span></li>`)}${left > 0 && html`<li class="quiet">and ${left} more, in the table</li>`}</ul>`}
  </section>`;
}

/** The colour of a line. @param {{ at: number }} props */
const Swatch = ({ at }) => html`<svg class=${`swatch tint-${at % TINTS}`} width="16" height="10" aria-hidden="true"><line x1="1" y1="5" x2="15" y2="5" /></svg>`;

/** @param {ChartProps} chart */
function ChartTable({ title, unit, lines, period }) {
  const shown = lines.slice(0, MOST_TABLE_LINES);
  const places = shown.map((line) => new Map(line.times.map((at, index) => [at, index])));
  const times = [...new Set(shown.flatMap((line) => line.times))].sort((a, b) => b - a);
  const every = Math.max(1, Math.ceil(times.length / MOST_TABLE_ROWS));
  /** @param {Line} line @param {number | undefined} index */
  const cell = (line, index) => {
    if (index === undefined || line.mean[index] === null) return '–';
    const isFlat = line.low[index] === line.high[index];
    return `${withUnit(line.mean[index], unit)}${isFlat ? '' : ` (${shortNumber(rounded(line.low[index]))} to ${shortNumber(rounded(line.high[index]))})`}`;
  };
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label=${`values of ${title}`}><table class="nowrap"><caption class="hidden">${title}: mean (lowest to highest) of periods of ${duration(period)}</caption>
    <thead><tr><th scope="col">time</th>${shown.map((line) => html`<th scope="col" key=${line.label} class="right">${line.label}</th>`)}</tr></thead>
    <tbody>${times.filter((_at, index) => index % every === 0).map((at) => html`<tr key=${at}><td>${clockTime(at)}</td>
      ${shown.map((line, number) => html`<td key=${line.label} class="right">${cell(line, places[number].get(at))}</td>`)}</tr>`)}</tbody></table></div>
    ${lines.length > shown.length && html`<p class="quiet">The first ${shown.length} of ${lines.length} devices.</p>`}`;
}

/** @param {number | null} value */
const rounded = (value) => (value !== null && Math.abs(value) >= 10 ? Math.round(value) : value);

/** @param {number | null} value @param {string} unit */
export const withUnit = (value, unit) => (value === null || value === undefined ? '–' : `${shortNumber(rounded(value))} ${unit}`.trim());

/** @param {Values} values */
const lastOf = (values) => {
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at];
  return null;
};

/** @param {Line} line @param {string} unit */
function extremes(line, unit) {
  const low = /** @type {number[]} */ (line.low.filter((value) => value !== null));
  const high = /** @type {number[]} */ (line.high.filter((value) => value !== null));
  if (!low.length || !high.length) return '–';
  return `now ${withUnit(lastOf(line.mean), unit)} · ${withUnit(least(low), unit)} to ${withUnit(most(high), unit)}`;
}

/** @param {number[]} values */
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
/** @param {number[]} values */
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** @param {ChartProps} chart */
const describe = ({ title, unit, lines }) => `${title}: ${lines.map((line) => `${line.label} ${extremes(line, unit)}`).join('; ')}`;

/**
 * Put the lines on one axis of times. Where a line has no value of another's time it goes on (undefined); where nothing
 * was measured for longer than a period it has a gap (null).
 * @param {Line[]} lines @param {number} period @param {boolean} hasBands
 */
function columns(lines, period, hasBands) {
  const gaps = lines.map(({ times }) => times.filter((at, index) => index + 1 < times.length && times[index + 1] - at > 1.5 * period).map((at) => at + period));
  const times = [...new Set([...lines.flatMap((line) => line.times), ...gaps.flat()])].sort((a, b) => a - b);
  const places = new Map(times.map((at, index) => [at, index]));
  /** @param {Line} line @param {number} number @param {Values} values */
  const spread = (line, number, values) => {
    /** @type {(number | null | undefined)[]} */
    const found = new Array(times.length).fill(undefined);
    for (const at of gaps[number]) found[places.get(at) ?? 0] = null;
    line.times.forEach((at, index) => { found[places.get(at) ?? 0] = values[index] ?? null; });
    return found;
  };
  return [times, ...lines.flatMap((line, number) => (hasBands ? [line.low, line.high, line.mean] : [line.mean]).map((values) => spread(line, number, values)))];
}

/** @param {ChartProps} chart */
function Plot(chart) {
  const { lines, period, from, to, unit } = chart;
  const latest = useRef(chart);
  latest.current = chart;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const drawn = useRef(/** @type {any} */ (null));
  const hasBands = lines.length <= MOST_BANDS && lines.some((line) => line.low !== line.high);
  const data = useMemo(() => columns(lines, period, hasBands), [lines]);
  const key = `${lines.map((line) => line.at).join()} ${hasBands} ${unit} ${lookOfPage()}`;
  useEffect(() => {
    const place = box.current;
    if (!place) return undefined;
    const made = new uPlot(options(latest, hasBands, place.clientWidth), /** @type {any} */ (data), place);
    drawn.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: HEIGHT }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      made.destroy();
      drawn.current = null;
    };
  }, [key]);
  useEffect(() => {
    // New values move what is drawn; nothing blinks.
    drawn.current?.setData(data);
  }, [data, from, to]);
  return html`<div class="plot low" ref=${box} role="img" aria-label=${describe(chart)}></div>`;
}

/** A mark of an axis of time. @param {number} at_s @param {number} step_s to the next one */
export function tickText(at_s, step_s) {
  const at = new Date(at_s * 1000);
  const isMidnight = at.getHours() === 0 && at.getMinutes() === 0;
  if (step_s >= 86400 || isMidnight) return at.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  return at.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: step_s && step_s < 60 ? '2-digit' : undefined });
}

/** @param {ChartProps} chart @returns {[number, number]} */
function range({ lines, bounds = [null, null] }) {
  const values = lines.flatMap((line) => [...line.low, ...line.high]).filter((value) => value !== null);
  const low = bounds[0] ?? (values.length ? least(/** @type {number[]} */ (values)) : 0);
  const high = bounds[1] ?? (values.length ? most(/** @type {number[]} */ (values)) : 1);
  const room = Math.max((high - low) * 0.08, high === low ? 1 : 0);
  return [bounds[0] ?? low - room, bounds[1] ?? high + room];
}

/** @param {{ current: ChartProps }} latest @param {boolean} hasBands @param {number} width */
function options(latest, hasBands, width) {
  const chart = latest.current;
  const grid = { stroke: colour('--line'), width: 1 };
  const axis = { stroke: colour('--text-quiet'), grid, ticks: grid, font: '11px system-ui' };
  /** @type {any[]} */
  const series = [{}];
  /** @type {any[]} */
  const bands = [];
  chart.lines.forEach((line) => {
    const stroke = colour(`--tint-${line.at % TINTS}`);
    if (hasBands) {
      bands.push({ series: [series.length + 1, series.length], fill: `${stroke}33` });
      series.push({ stroke: 'transparent', points: { show: false } }, { stroke: 'transparent', points: { show: false } });
    }
    series.push({ stroke, width: 1.6, points: { show: line.times.length < 2 } });
  });
  /** @type {any} */
  const made = {
    width: Math.max(160, width), height: HEIGHT, legend: { show: false }, padding: [8, 12, 0, 0], series, bands,
    cursor: { drag: { x: false, y: false }, y: false },
    scales: { x: { time: true, range: () => [latest.current.from, latest.current.to] }, y: { range: () => range(latest.current) } },
    axes: [{ ...axis, size: 28, space: 64, values: (/** @type {any} */ _plot, /** @type {number[]} */ at) => at.map((one, place) => tickText(one, at[place + 1] - one || 0)) },
      { ...axis, size: (/** @type {any} */ _plot, /** @type {string[] | null} */ texts) => 18 + 6.5 * Math.max(4, ...(texts ?? []).map((one) => one.length)), values: (/** @type {any} */ _plot, /** @type {number[]} */ at) => at.map((value) => withUnit(value, chart.unit)) }],
  };
  return made;
}
