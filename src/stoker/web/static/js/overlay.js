// @ts-check
// One metric of several runs over each other: a line per run, asked for with few requests at a time, and a table of the
// same numbers.
import { useEffect, useMemo, useRef, useState } from '../vendor/hooks.js';
import uPlot from '../vendor/uplot.js';
import { get, jobPath, numberOf } from './api.js';
import { colour, DASHES, lookOfPage, TINTS } from './canvas.js';
import { axesOfPlot, columns, lookOfCurves } from './curves.js';
import { cutMiddle, grouped, shortNumber } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { jobLink } from './router.js';
import { Empty } from './ui.js';

/** @typedef {import('./messages.d.ts').Series} Series */
/** @typedef {import('./messages.d.ts').SeriesView} SeriesView */
/** @typedef {{ ref: string, name: string, label: string, watch: string }} Run `watch`: another row whose changes mean new values, or empty */
/** @typedef {{ run: Run, at: number, view: SeriesView, series: Series }} Line */

const AT_ONCE = 4;
const POINTS = 400;
const AGAIN_MS = 2000;
const HEIGHT = 340;
const TABLE_ROWS = 60;
/** Lines over each other are told apart best as they are. */
export const lookOfOverlay = () => lookOfCurves(1);

/**
 * @param {Run[]} runs @param {string} metric @param {[number, number] | null} range
 * @returns {{ found: Map<string, SeriesView>, left: number, failed: string[] }}
 */
function useSeries(runs, metric, range) {
  const [, redraw] = useState(0);
  const kept = useRef({ key: '', found: /** @type {Map<string, SeriesView>} */ (new Map()),
    watched: /** @type {Map<string, string>} */ (new Map()), failed: /** @type {Map<string, string>} */ (new Map()), left: 0 });
  const key = JSON.stringify([metric, range]);
  const refs = runs.map((run) => `${run.ref}\t${run.watch}`).join('\n');
  useEffect(() => {
    const stop = new AbortController();
    const state = kept.current;
    if (state.key !== key) Object.assign(state, { key, found: new Map(), failed: new Map() });
    /** @type {Run[]} */
    let queue = runs.filter((run) => !state.found.has(run.ref) || state.watched.get(run.ref) !== run.watch);
    let busy = 0;
    let timer = 0;
    /** @type {Set<Run>} */
    const changed = new Set();
    const next = () => {
      state.left = queue.length + busy;
      redraw((turn) => turn + 1);
      while (busy < AT_ONCE && queue.length) {
        const [run] = queue.splice(0, 1);
        busy += 1;
        get(`${jobPath(run.ref)}/series`, { names: metric, points: POINTS, first: range?.[0], last: range?.[1] }, stop.signal).then(
          (view) => {
            state.found.set(run.ref, view);
            state.watched.set(run.ref, run.watch);
            state.failed.delete(run.ref);
          },
          (error) => { if (!stop.signal.aborted) state.failed.set(run.ref, error.message ?? String(error)); },
        ).finally(() => {
          if (stop.signal.aborted) return;
          busy -= 1;
          next();
        });
      }
    };
    next();
    const again = () => {
      timer = 0;
      queue = [...queue, ...[...changed].filter((run) => !queue.includes(run))];
      changed.clear();
      next();
    };
    const quiet = onRows((rows) => {
      for (const run of runs) if (rows.resync || rows.jobs.some((job) => [run.ref, run.name, run.watch].includes(job.name) || job.id === run.ref)) changed.add(run);
      if (changed.size && !timer) timer = setTimeout(again, AGAIN_MS);
    });
    return () => {
      quiet();
      clearTimeout(timer);
      stop.abort();
    };
  }, [key, refs]);
  return { found: kept.current.found, left: kept.current.left, failed: [...kept.current.failed.keys()] };
}

/** @param {{ runs: Run[], metric: string }} props */
export function Overlay({ runs, metric }) {
  const [range, setRange] = useState(/** @type {[number, number] | null} */ (null));
  const [hidden, setHidden] = useState(/** @type {Set<string>} */ (new Set()));
  const [strong, setStrong] = useState('');
  const look = lookOfOverlay();
  const { found, left, failed } = useSeries(runs, metric, range);
  useEffect(() => setRange(null), [metric]);
  /** @type {Line[]} */
  const lines = [];
  runs.forEach((run, at) => {
    const view = found.get(run.ref);
    const series = view?.series.find((one) => one.name === metric) ?? (view?.series.length === 1 ? view.series[0] : undefined);
    if (view && series?.steps.length) lines.push({ run, at, view, series });
  });
  const without = runs.filter((run) => found.has(run.ref) && !lines.some((line) => line.run === run)).length;
  const shown = lines.filter((line) => !hidden.has(line.run.ref));
  /** @param {string} ref */
  const flip = (ref) => {
    const next = new Set(hidden);
    if (!next.delete(ref)) next.add(ref);
    setHidden(next);
  };
  const notes = [left ? `loading ${grouped(left)}` : '', without ? `${grouped(without)} without values of it` : '', failed.length ? `${grouped(failed.length)} can't be read` : ''].filter(Boolean);
  return html`<section class="card curve" aria-label=${`${metric} of ${runs.length} runs`}>
    <div class="row"><h2>${metric}</h2><span class="quiet" role="status">${notes.join(' · ')}</span><span class="grow"></span>
      ${range && html`<button type="button" class="small" onClick=${() => setRange(null)}>all steps</button>`}</div>
    ${!lines.length && !left && h(Empty, { title: 'None of them has a curve of this metric yet.' })}
    ${shown.length > 0 && (look.isTable ? h(OverlayTable, { lines: shown, metric }) : h(OverlayPlot, { lines: shown, look, strong, setStrong, zoom: setRange, metric }))}
    <ul class="tints" aria-label="lines">${lines.map(({ run, at, series }) => html`<li key=${run.ref} class=${strong === run.ref ? 'strong' : ''}
        onMouseEnter=${() => setStrong(run.ref)} onMouseLeave=${() => setStrong('')}>
      <label class="check"><input type="checkbox" checked=${!hidden.has(run.ref)} onChange=${() => flip(run.ref)} onFocus=${() => setStrong(run.ref)} onBlur=${() => setStrong('')} />
        ${h(Swatch, { at })}<span class="hidden">show ${run.name}</span></label>
      <a href=${jobLink(run.ref)} title=${run.label || run.name}>${cutMiddle(run.name, 32)}</a>
      <span class="quiet">${cutMiddle(run.label, 60)}</span><span class="grow"></span>
      <span class="quiet count">last ${shortNumber(numberOf(series.last))}${series.best !== null && ` · best ${shortNumber(numberOf(series.best))} @ ${grouped(series.best_step ?? 0)}`}</span></li>`)}</ul>
  </section>`;
}

/** The sign of a line: its colour and dashes. @param {{ at: number }} props */
export function Swatch({ at }) {
  const dash = DASHES[Math.floor(at / TINTS) % DASHES.length];
  return html`<svg class=${`swatch tint-${at % TINTS}`} width="26" height="10" aria-hidden="true"><line x1="1" y1="5" x2="25" y2="5" stroke-dasharray=${dash.join(' ')} /></svg>`;
}

/** @param {{ lines: Line[], look: ReturnType<typeof lookOfCurves>, strong: string, setStrong: (ref: string) => void, zoom: (range: [number, number]) => void, metric: string }} props */
function OverlayPlot({ lines, look, strong, setStrong, zoom, metric }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const key = lines.map((line) => `${line.run.ref} ${line.series.total} ${line.series.last_step} ${line.series.steps[0]}`).join('\n');
  const data = useMemo(() => aligned(lines.map((line) => columns(line.series, line.view, look)), look.window > 1), [key, look.window, look.isLog, look.x]);
  useEffect(() => {
    const place = box.current;
    if (!place) return undefined;
    const made = new uPlot(options(lines, look, place.clientWidth, zoom, setStrong), /** @type {any} */ (data), place);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: HEIGHT }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [data, lookOfPage()]);
  useEffect(() => {
    const at = lines.findIndex((line) => line.run.ref === strong);
    plot.current?.setSeries(at < 0 ? null : at + 1, { focus: true });
  }, [strong, data]);
  return html`<div class="plot tall" ref=${box} role="img" aria-label=${describe(lines, metric)}></div>`;
}

/**
 * Lines with different places along x as columns with the same ones: undefined where a line has no value of its own.
 * Behind the lines come the values that they smooth, if they do.
 * @param {(number | null)[][][]} lines
 * @param {boolean} withRaw
 */
function aligned(lines, withRaw) {
  const all = [...new Set(lines.flatMap(([x]) => /** @type {number[]} */ (x)))].sort((a, b) => a - b);
  const places = new Map(all.map((x, at) => [x, at]));
  /** @param {number} kind */
  const columnsOf = (kind) => lines.map((line) => {
    const column = new Array(all.length).fill(undefined);
    line[0].forEach((one, at) => { column[places.get(/** @type {number} */ (one)) ?? 0] = line[kind][at]; });
    return column;
  });
  return [all, ...columnsOf(2), ...(withRaw ? columnsOf(1) : [])];
}

/**
 * @param {Line[]} lines @param {ReturnType<typeof lookOfCurves>} look @param {number} width
 * @param {(range: [number, number]) => void} zoom @param {(ref: string) => void} setStrong
 */
function options(lines, look, width, zoom, setStrong) {
  /** @type {any} */
  const made = {
    width: Math.max(200, width), height: HEIGHT, legend: { show: false }, padding: [12, 24, 0, 0], focus: { alpha: 0.2 },
    cursor: { drag: { x: true, y: false, setScale: false }, focus: { prox: 24 }, points: { show: false } },
    scales: { x: { time: false }, y: { distr: look.isLog ? 3 : 1 } },
    axes: axesOfPlot(look),
    series: [{}, ...lines.map((line) => ({
      stroke: colour(`--tint-${line.at % TINTS}`), width: 1.8, dash: DASHES[Math.floor(line.at / TINTS) % DASHES.length],
      points: { show: line.series.steps.length < 2 },
    })), ...(look.window > 1 ? lines.map((line) => ({ stroke: `${colour(`--tint-${line.at % TINTS}`)}40`, width: 1, points: { show: false } })) : [])],
    hooks: {
      setSelect: [(/** @type {any} */ plot) => {
        const { left, width: wide } = plot.select;
        if (wide < 8) return;
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        const [from, to] = [left, left + wide].map((at) => plot.posToVal(at, 'x'));
        const steps = look.x === 'step' ? [Math.floor(from), Math.ceil(to)] : null;
        if (steps && steps[1] > steps[0]) zoom([Math.max(0, steps[0]), steps[1]]);
      }],
      setSeries: [(/** @type {any} */ _plot, /** @type {number | null} */ at) => setStrong(at ? lines[(at - 1) % lines.length].run.ref : '')],
    },
  };
  return made;
}

/** @param {Line[]} lines @param {string} metric */
function describe(lines, metric) {
  const lasts = lines.map((line) => numberOf(line.series.last)).filter(Number.isFinite);
  const bests = lines.filter((line) => Number.isFinite(numberOf(line.series.best)));
  const isLower = bests[0]?.series.is_lower_better !== false;
  bests.sort((a, b) => (numberOf(a.series.best) - numberOf(b.series.best)) * (isLower ? 1 : -1));
  const falling = lines.filter(({ series }) => numberOf(series.values[series.values.length - 1]) < numberOf(series.values[0])).length;
  const best = bests[0] ? `, best ${shortNumber(numberOf(bests[0].series.best))} of ${bests[0].run.name}` : '';
  return `${metric} of ${lines.length} runs: last ${shortNumber(Math.min(...lasts))} to ${shortNumber(Math.max(...lasts))}${best}, ${falling} falling, ${lines.length - falling} rising`;
}

/** @param {{ lines: Line[], metric: string }} props */
function OverlayTable({ lines, metric }) {
  const steps = [...new Set(lines.flatMap((line) => line.series.steps))].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(steps.length / TABLE_ROWS));
  const rows = steps.filter((_, at) => at % every === 0 || at === steps.length - 1);
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label=${`values of ${metric}`}><table><caption class="hidden">${metric} by step; the last value up to each</caption>
    <thead><tr><th scope="col" class="right">step</th>${lines.map((line) => html`<th scope="col" class="right" key=${line.run.ref} title=${line.run.label}>${cutMiddle(line.run.name, 24)}</th>`)}</tr></thead>
    <tbody>${rows.map((step) => html`<tr key=${step}><th scope="row" class="right">${grouped(step)}</th>${lines.map((line) => html`<td class="right" key=${line.run.ref}>${valueUpTo(line.series, step)}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** @param {Series} series @param {number} step */
function valueUpTo(series, step) {
  let [low, high] = [0, series.steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (series.steps[middle] <= step) low = middle + 1;
    else high = middle;
  }
  return low ? shortNumber(numberOf(series.values[low - 1])) : '–';
}
