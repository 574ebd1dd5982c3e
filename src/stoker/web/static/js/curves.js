// @ts-check
// The curves of a job. Smoothing is an average of what came before, weighted by the number of values, with the raw
// values behind it; zooming asks the server again, for full detail.
import { useEffect, useMemo, useRef, useState } from '../vendor/hooks.js';
import uPlot from '../vendor/uplot.js';
import { jobPath, numberOf } from './api.js';
import { colour, lookOfPage } from './canvas.js';
import { clockTime, duration, grouped, shortNumber } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { place, setQuery } from './router.js';
import { useData, useEvery } from './state.js';
import { Empty, Select, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').JobView} JobView */
/** @typedef {import('./messages.d.ts').Series} Series */
/** @typedef {import('./messages.d.ts').SeriesView} SeriesView */
/** @typedef {{ window: number, isLog: boolean, x: string, isTable: boolean }} Look */

const FIRST_SHOWN = 6;
/** Values of a running job arrive between the changes of its row. */
const EVERY_S = 2;
/** Over how many values is averaged; 1: not at all. */
const WINDOWS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const USUAL_WINDOW = 20;

/** How curves are drawn, as the link says. @param {number} [usual] @returns {Look} */
export function lookOfCurves(usual = USUAL_WINDOW) {
  const query = place.value.query;
  return {
    window: WINDOWS.includes(Number(query.get('smooth'))) ? Number(query.get('smooth')) : usual,
    isLog: query.get('log') === '1', x: query.get('x') ?? 'step', isTable: query.get('table') === '1',
  };
}

/** @param {{ look: Look, axes: [string, string][] }} props */
export function LookControls({ look, axes }) {
  return html`<label class="field"><span class="fixed">${look.window > 1 ? `smooth over ${look.window}` : 'not smoothed'}</span><input type="range" min="0" max=${WINDOWS.length - 1} step="1"
      value=${WINDOWS.indexOf(look.window)} aria-valuetext=${`${look.window} values`}
      onInput=${(/** @type {any} */ event) => setQuery({ smooth: String(WINDOWS[Number(event.target.value)]) })} /></label>
    ${h(Select, { label: 'x axis', value: look.x, set: (x) => setQuery({ x }), options: axes })}
    <label class="check"><input type="checkbox" checked=${look.isLog} onChange=${() => setQuery({ log: look.isLog ? '' : '1' })} /> log scale</label>
    <label class="check"><input type="checkbox" checked=${look.isTable} onChange=${() => setQuery({ table: look.isTable ? '' : '1' })} /> as a table</label>`;
}

/** @param {{ job: JobView }} props */
export function CurvesTab({ job }) {
  const query = place.value.query;
  const look = lookOfCurves();
  const { data, error, reload } = /** @type {ReturnType<typeof useData<SeriesView>>} */ (
    useData(`${jobPath(job.id)}/series`, { points: 800, names: query.get('metrics') ?? '' }));
  useEffect(() => onRows((rows) => {
    if (rows.resync || rows.jobs.some((one) => one.id === job.id)) reload();
  }), [job.id]);
  useEvery(() => { if (job.started_s && !job.ended_s) reload(); }, EVERY_S);
  if (!data) return error ? h(Trouble, { error, what: 'curves' }) : html`<p class="quiet">loading…</p>`;
  if (!data.names.length) return h(Empty, { title: 'No metrics yet. A program reports some by printing them:', command: 'print("loss=0.5")' });
  const shown = new Set(data.series.map((one) => one.name));
  /** @param {string} name */
  const flip = (name) => {
    if (!shown.delete(name)) shown.add(name);
    setQuery({ metrics: [...shown].join(',') });
  };
  return html`<div class="filters">
      ${h(LookControls, { look, axes: [['step', 'step'], ['time', 'time'], ['relative', 'relative time']] })}
      ${data.names.length > 1 && html`<div class="chips" role="group" aria-label="metrics">${data.names.slice(0, 60).map((name) => html`<button type="button" key=${name}
        class="chip" aria-pressed=${String(shown.has(name))} onClick=${() => flip(name)}>${name}</button>`)}</div>`}
    </div>
    ${h(Trouble, { error, what: 'curves' })}
    <div class="curves">${data.series.slice(0, 24).map((series, at) => h(Curve, { key: series.name, job, series, view: data, look, isFirst: at < FIRST_SHOWN }))}</div>`;
}

/** @param {{ job: JobView, series: Series, view: SeriesView, look: Look, isFirst: boolean }} props */
function Curve({ job, series, view, look, isFirst }) {
  const [isSeen, setSeen] = useState(isFirst);
  const [range, setRange] = useState(/** @type {[number, number] | null} */ (null));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (isSeen || !box.current) return undefined;
    const watch = new IntersectionObserver((found) => found.some((one) => one.isIntersecting) && setSeen(true));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const zoomed = /** @type {ReturnType<typeof useData<SeriesView>>} */ (useData(range ? `${jobPath(job.id)}/series` : null,
    range ? { names: series.name, first: range[0], last: range[1], points: 800 } : {}));
  const shown = (range && zoomed.data?.series[0]) || series;
  const better = series.is_lower_better === null ? '' : series.is_lower_better ? ' ↓' : ' ↑';
  return html`<section class="card curve" ref=${box} aria-label=${`metric ${series.name}`}>
    <div class="row"><h2>${series.name}${better}</h2><span class="grow"></span>
      <span class="quiet">last ${shortNumber(numberOf(series.last))}${series.best !== null && ` · best ${shortNumber(numberOf(series.best))} @ ${grouped(series.best_step ?? 0)}`}</span>
      ${range && html`<button type="button" class="small" onClick=${() => setRange(null)}>all steps</button>`}</div>
    ${look.isTable ? h(Numbers, { series: shown }) : isSeen && h(Plot, { series: shown, view, look, zoom: setRange })}
  </section>`;
}

/** @param {{ series: Series }} props */
function Numbers({ series }) {
  const every = Math.max(1, Math.ceil(series.steps.length / 200));
  const rows = series.steps.map((step, at) => at).filter((at) => at % every === 0 || at === series.steps.length - 1);
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label=${`values of ${series.name}`}><table><caption class="hidden">${series.name}</caption>
    <thead><tr><th scope="col" class="right">step</th><th scope="col" class="right">value</th><th scope="col">time</th></tr></thead>
    <tbody>${rows.map((at) => html`<tr key=${at}><td class="right">${grouped(series.steps[at])}</td><td class="right">${shortNumber(numberOf(series.values[at]))}</td>
      <td>${clockTime(series.times_s[at])}</td></tr>`)}</tbody></table></div>`;
}

/**
 * Smooth before anything is left out: one of many values counts as many.
 * @param {number[]} values @param {number[]} steps @param {number} total @param {number} weight
 */
export function smoothed(values, steps, total, weight) {
  const span = steps.length > 1 ? steps[steps.length - 1] - steps[0] : 1;
  const gap = Math.max(1e-9, span / Math.max(1, total - 1));
  let sum = 0;
  let count = 0;
  return values.map((value, at) => {
    if (!Number.isFinite(value)) return null;
    const stands = at ? Math.max(1, (steps[at] - steps[at - 1]) / gap) : 1;
    const decay = weight ** stands;
    const own = weight < 1 ? (1 - decay) / (1 - weight) : stands;
    sum = sum * decay + value * own;
    count = count * decay + own;
    return sum / count;
  });
}

/** @param {{ series: Series, view: SeriesView, look: Look, zoom: (range: [number, number]) => void }} props */
function Plot({ series, view, look, zoom }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const data = useMemo(() => columns(series, view, look), [series, look.window, look.isLog, look.x]);
  useEffect(() => {
    const place_ = box.current;
    if (!place_) return undefined;
    const made = new uPlot(options(series, view, look, place_.clientWidth, zoom), /** @type {any} */ (data), place_);
    const watch = new ResizeObserver(() => made.setSize({ width: place_.clientWidth, height: HEIGHT }));
    watch.observe(place_);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [data, lookOfPage()]);
  return html`<div class="plot" ref=${box} role="img" aria-label=${describe(series)}></div>`;
}

const HEIGHT = 220;

/** @param {Series} series */
function describe(series) {
  const values = series.values.map(numberOf).filter(Number.isFinite);
  const trend = values.length < 2 ? 'one value' : values[values.length - 1] < values[0] ? 'falling' : 'rising';
  return `${series.name}: ${grouped(series.total)} values, last ${shortNumber(numberOf(series.last))}, best ${shortNumber(numberOf(series.best))}, ${trend}`;
}

/** The places along x, the raw values and the smoothed ones. @param {Series} series @param {SeriesView} view @param {Look} look */
export function columns(series, view, look) {
  const start = view.started_s ?? series.times_s[0] ?? 0;
  const x = look.x === 'step' ? series.steps : look.x === 'time' ? series.times_s : series.times_s.map((at) => at - start);
  const raw = series.values.map(numberOf);
  /** @param {number | null} value */
  const drawn = (value) => (value === null || !Number.isFinite(value) || (look.isLog && value <= 0) ? null : value);
  const line = look.window > 1 ? smoothed(raw, series.steps, series.total, 1 - 1 / look.window) : raw;
  return [x, raw.map(drawn), line.map(drawn)];
}

/** Grids and texts of both axes. @param {Look} look */
export function axesOfPlot(look) {
  const grid = { stroke: colour('--line'), width: 1 };
  const axis = { stroke: colour('--text-quiet'), grid, ticks: grid, font: '11px system-ui' };
  return [
    { ...axis, size: 30, values: look.x === 'relative' ? (/** @type {any} */ _plot, /** @type {number[]} */ at) => at.map(duration) : undefined },
    { ...axis, size: 62, values: (/** @type {any} */ _plot, /** @type {(number | null)[]} */ at) => at.map((value) => (value === null ? '' : shortNumber(value))) },
  ];
}

/** @param {Series} series @param {SeriesView} view @param {Look} look @param {number} width @param {(range: [number, number]) => void} zoom */
function options(series, view, look, width, zoom) {
  /** @type {any} */
  const made = {
    width: Math.max(200, width), height: HEIGHT, legend: { show: false }, padding: [12, 24, 0, 0],
    cursor: { drag: { x: true, y: false, setScale: false } },
    scales: { x: { time: look.x === 'time' }, y: { distr: look.isLog ? 3 : 1 } },
    axes: axesOfPlot(look),
    series: [{}, { stroke: colour('--raw'), width: 1, points: { show: series.steps.length < 2 } },
      { stroke: colour('--accent'), width: 2, points: { show: series.steps.length < 2 } }],
    hooks: {
      setSelect: [(/** @type {any} */ plot) => {
        const { left, width: wide } = plot.select;
        if (wide < 8) return;
        const found = [plot.posToIdx(left), plot.posToIdx(left + wide)].map((at) => series.steps[at]);
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        if (found[1] > found[0]) zoom([found[0], found[1]]);
      }],
      draw: look.x === 'step' ? [(/** @type {any} */ plot) => borders(plot, view)] : [],
    },
  };
  return made;
}

/** Draw where later attempts begin. @param {any} plot @param {SeriesView} view */
function borders(plot, view) {
  const { ctx } = plot;
  ctx.save();
  ctx.strokeStyle = colour('--text-quiet');
  ctx.fillStyle = colour('--text-quiet');
  ctx.setLineDash([4, 4]);
  ctx.textAlign = 'left';
  for (const [attempt, step] of Object.entries(view.attempts)) {
    const x = Math.round(plot.valToPos(step, 'x', true));
    if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, plot.bbox.top);
    ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
    ctx.stroke();
    ctx.fillText(`attempt ${attempt}`, x + 4, plot.bbox.top + 12);
  }
  ctx.restore();
}
