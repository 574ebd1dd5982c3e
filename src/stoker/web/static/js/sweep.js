// @ts-check
// One sweep: the best and how far it is, then drawings and the table of its trials. Metric, columns, brushes and order
// are part of the link.
import { useEffect, useMemo, useState } from '../vendor/hooks.js';
import { askSweep } from './actions.js';
import { againLink } from './again.js';
import { ApiError, numberOf } from './api.js';
import { cutMiddle, duration, grouped, quoted, shortNumber, valueText } from './format.js';
import { LookControls } from './curves.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { lookOfOverlay, Overlay } from './overlay.js';
import { Parallel, shownText } from './parallel.js';
import { go, jobLink, linkTo, listText, place, readList, setQuery } from './router.js';
import { Importance, Scatters } from './scatter.js';
import { MOST_COMPARED, may, useData } from './state.js';
import {
  axisOf, bestOf, brushQuery, columnKeys, endedOf, isInside, MOST_AXES, pointText, qualities, readBrushes, usualColumns,
} from './sweep_axes.js';
import { StateBar, SWEEP_STATES } from './sweeps.js';
import { VirtualTable } from './table.js';
import { Command, Empty, Select, StateBadge, Tabs, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').SweepView} SweepView */
/** @typedef {import('./messages.d.ts').SweepTrial} SweepTrial */
/** @typedef {import('./sweep_axes.js').Axis} Axis */

const TABS = ['parallel', 'curves', 'scatter', 'importance'];
const MOST_CURVES = [5, 10, 20, 40];
const BEST_COMPARED = 4;

/** @param {{ name: string }} props */
export function SweepPage({ name }) {
  const query = place.value.query;
  const asked = { metric: query.get('metric') ?? '', better: query.get('better') ?? '' };
  const { data, error, reload } = /** @type {ReturnType<typeof useData<SweepView>>} */ (useData(`v1/sweeps/${encodeURIComponent(name)}`, asked));
  useEffect(() => onRows((rows) => {
    if (rows.resync || rows.gone.length || rows.jobs.some((job) => job.name === name || job.name.startsWith(`${name}/`))) reload();
  }), [name]);
  // Without its metric a sweep may still be there: the message says which metrics it has.
  const trouble = error?.status === 404 && asked.metric ? new ApiError(error.message, 400, error.hint) : error;
  if (!data) {
    return html`<main id="main"><h1>${cutMiddle(name, 60)}</h1>${trouble ? h(Trouble, { error: trouble, what: `sweep ${name}` }) : html`<p class="quiet">loading…</p>`}
      ${trouble && html`<p>${asked.metric ? html`<a href=${linkTo(['sweep', name])}>by another metric</a>` : html`<a href="#/sweeps">all sweeps</a>`}</p>`}</main>`;
  }
  return html`<main id="main" class="wide">${h(Head, { view: data })}
    ${h(Trouble, { error: trouble, what: `sweep ${name}` })}
    ${h(Trials, { view: data })}
    ${h(Command, { command: commandOf(data, asked) })}
  </main>`;
}

/** @param {SweepView} view @param {{ metric: string, better: string }} asked */
const commandOf = (view, asked) => ['stoker compare', quoted(view.name), asked.metric && `--by ${quoted(asked.metric)}`,
  asked.better && (asked.better === 'larger' ? '--max' : '--min')].filter(Boolean).join(' ');

/** @param {{ view: SweepView }} props */
function Head({ view }) {
  const best = bestOf(view);
  const live = ['pending', 'claimed', 'running'].reduce((sum, state) => sum + (view.jobs[state] ?? 0), 0);
  const lost = (view.jobs.failed ?? 0) + (view.jobs.cancelled ?? 0);
  const chosen = readList(place.value.query.get('state'));
  /** @param {string} state */
  const flip = (state) => setQuery({ state: listText(chosen.includes(state) ? chosen.filter((one) => one !== state) : [...chosen, state]) });
  return html`<div class="row jobhead"><h1 title=${view.name}>${cutMiddle(view.name, 60)}</h1><span class="quiet">sweep</span><span class="grow"></span>
      <span class="buttons">${lost > 0 && may('submit') && html`<button type="button" onClick=${() => askSweep('requeue', view.name, lost)}>requeue ${grouped(lost)}</button>`}
        ${live > 0 && may('submit') && html`<button type="button" class="danger" onClick=${() => askSweep('cancel', view.name, live)}>cancel</button>`}</span></div>
    <section class="card best" aria-label="best and progress"><div>
      ${best ? html`<p class="quiet">best ${view.metric} ${view.is_lower_better ? '↓' : '↑'}</p>
        <p class="value"><strong>${shortNumber(numberOf(best.metrics[view.metric]))}</strong>${best.best_step !== null && html` <span class="quiet">@ step ${grouped(best.best_step)}</span>`}</p>
        <p><a href=${jobLink(best.job)}>#${best.number}</a> ${cutMiddle(pointText(view, best), 120)}
          ${may('submit') && html` <a class="button small" href=${againLink(best.job)}>the best again with changes…</a>`}</p>`
    : html`<p class="quiet">best</p><p>${noBest(view)}</p>`}</div>
      <div><p class="quiet">${grouped(endedOf(view))} of ${grouped(view.total)} trials ended</p>
        ${h(StateBar, { jobs: view.jobs, total: view.total })}
        <div class="chips" role="group" aria-label="states">${SWEEP_STATES.filter((state) => view.jobs[state] || chosen.includes(state)).map((state) => html`<button type="button" key=${state}
          class=${`chip state-${state}`} aria-pressed=${String(chosen.includes(state))} onClick=${() => flip(state)}>${state} <span class="count">${grouped(view.jobs[state] ?? 0)}</span></button>`)}</div></div>
    </section>
    ${view.note && html`<p class="quiet">${view.note}</p>`}`;
}

/** @param {SweepView} view */
const noBest = (view) => (!view.metric ? 'no metric says how good a trial is; a program reports one by printing it: print("loss=0.5")'
  : view.trials.some((trial) => trial.place === 1) ? 'trials were measured on different data: each group has its own best'
    : `no trial has a finite ${view.metric} yet`);

/** Everything that depends on which columns and trials are shown. @param {{ view: SweepView }} props */
function Trials({ view }) {
  const query = place.value.query;
  const [focus, setFocus] = useState(0);
  const [marked, setMarked] = useState(/** @type {Set<number>} */ (new Set()));
  const all = useMemo(() => columnKeys(view), [view]);
  const cols = query.get('cols') ?? '';
  const scales = JSON.stringify([...query].filter(([key]) => key.startsWith('scale.')));
  const axes = useMemo(() => {
    const wanted = readList(cols).filter((key) => all.includes(key));
    const keys = wanted.length ? wanted : usualColumns(view);
    const metric = view.metric ? `m.${view.metric}` : '';
    if (metric && !keys.includes(metric)) keys.splice(MOST_AXES - 1, keys.length, metric);
    return keys.slice(0, MOST_AXES).map((key) => axisOf(view, key, query.get(`scale.${key}`) ?? ''));
  }, [view, cols, scales]);
  const ranges = JSON.stringify([...query].filter(([key]) => /^(min|max)\.|^state$/.test(key)));
  const brushes = useMemo(() => readBrushes(query, axes), [axes, ranges]);
  const inside = useMemo(() => {
    const states = readList(query.get('state'));
    const found = view.trials.filter((trial) => (!states.length || states.includes(trial.state)) && isInside(trial, axes, brushes));
    return new Set(found.map((trial) => trial.number));
  }, [view, axes, brushes, ranges]);
  const quality = useMemo(() => qualities(view), [view]);
  // The best of what is shown.
  const best = (bestOf(view) && view.trials.find((trial) => trial.place !== null && inside.has(trial.number))?.number) ?? 0;
  const wanted = query.get('view') ?? '';
  const tab = TABS.includes(wanted) ? wanted : TABS[0];
  /** @param {number} number */
  const mark = (number) => setMarked((before) => {
    const next = new Set(before);
    if (!next.delete(number)) next.add(number);
    return next;
  });
  /** @param {string} key @param {number} by */
  const move = (key, by) => {
    const keys = axes.map((axis) => axis.key);
    const at = keys.indexOf(key);
    [keys[at], keys[at + by]] = [keys[at + by], keys[at]];
    setQuery({ cols: listText(keys) });
  };
  const rows = useMemo(() => view.trials.filter((trial) => inside.has(trial.number)), [view, inside]);
  const metricAxis = axes.find((axis) => axis.key === `m.${view.metric}`);
  const shared = { trials: view.trials, axes, inside, quality, best, focus, setFocus, mark };
  const focused = view.trials.find((trial) => trial.number === focus);
  /** @type {Record<string, () => any>} */
  const draw = {
    parallel: () => html`<section class="card">${h(Parallel, { ...shared, brushes, change: setQuery, move, label: describe(view, axes, inside) })}</section>`,
    curves: () => h(Curves, { view, rows }),
    scatter: () => (metricAxis ? h(Scatters, { ...shared, metric: metricAxis, axes: axes.filter((axis) => !axis.isMetric) })
      : h(Empty, { title: 'No metric to draw parameters against yet.' })),
    importance: () => h(Importance, { view }),
  };
  return html`<div class="filters">
      ${view.metrics.length > 0 && h(Select, { label: 'metric', value: view.metric, set: (metric) => setQuery({ metric, better: '' }), options: metricOptions(view) })}
      ${view.metric && h(Select, { label: 'better', value: view.is_lower_better ? 'smaller' : 'larger', set: (better) => setQuery({ metric: view.metric, better }),
        options: [['smaller', '↓ smaller'], ['larger', '↑ larger']] })}
      ${h(Columns, { view, all, axes })}
      <span class="quiet" role="status">${shownText(view.trials.length, rows.length)}</span>
      ${(brushes.size > 0 || query.get('state')) && html`<button type="button" class="small" onClick=${() => setQuery({ ...clearOf(axes), state: '' })}>show all</button>`}
    </div>
    ${h(Tabs, { label: 'drawings of the sweep', tabs: TABS, chosen: tab, choose: (name) => setQuery({ view: name === TABS[0] ? '' : name }) })}
    <div id="panel" role="tabpanel" aria-labelledby=${`tab-${tab}`} tabindex="0">${view.trials.length ? draw[tab]() : null}</div>
    <p class="pointed">${focused ? html`<strong>#${focused.number}</strong> ${pointText(view, focused)}${
      view.metric && ` · ${view.metric} ${shortNumber(numberOf(focused.metrics[view.metric]))}`}` : ''}</p>
    <div class="row"><h2>Trials</h2>${h(Selection, { view, rows, marked, clear: () => setMarked(new Set()) })}</div>
    ${h(TrialTable, { view, axes, rows, marked, mark, focus, setFocus })}`;
}

/** @param {Axis[]} axes */
const clearOf = (axes) => Object.assign({}, ...axes.map((axis) => brushQuery(axis, null)));

/** @param {SweepView} view @returns {[string, string][]} */
const metricOptions = (view) => [...new Set([view.metric, ...view.metrics])].filter(Boolean).map((name) => [name, cutMiddle(name, 40)]);

/** @param {SweepView} view @param {Axis[]} axes @param {Set<number>} inside */
function describe(view, axes, inside) {
  const best = bestOf(view);
  const text = best ? `; best ${view.metric} ${shortNumber(numberOf(best.metrics[view.metric]))} of trial ${best.number} with ${pointText(view, best)}` : '';
  return `parallel coordinates of ${shownText(view.trials.length, inside.size)} over ${axes.map((axis) => axis.name).join(', ')}${text}; the table below lists them`;
}

/** @param {{ view: SweepView, all: string[], axes: Axis[] }} props */
function Columns({ view, all, axes }) {
  const shown = axes.map((axis) => axis.key);
  /** @param {string} key */
  const flip = (key) => setQuery({ cols: listText(shown.includes(key) ? shown.filter((one) => one !== key) : [...shown, key]) });
  return html`<details class="columns"><summary>columns <span class="quiet">${shown.length} of ${all.length}</span></summary>
    <div class="card" role="group" aria-label="columns">${all.map((key) => html`<label key=${key} class="check"><input type="checkbox" checked=${shown.includes(key)}
      disabled=${key === `m.${view.metric}` || (!shown.includes(key) && shown.length >= MOST_AXES)} onChange=${() => flip(key)} />
      <span title=${key.slice(2)}>${cutMiddle(key.slice(2), 36)}</span>${key.startsWith('m.') && html` <span class="quiet">metric</span>`}</label>`)}
    ${all.length > MOST_AXES && html`<p class="quiet">at most ${MOST_AXES}</p>`}
    <button type="button" class="small" onClick=${() => setQuery({ cols: '' })}>as usual</button></div></details>`;
}

/** @param {{ view: SweepView, rows: SweepTrial[] }} props */
function Curves({ view, rows }) {
  const query = place.value.query;
  const most = MOST_CURVES.includes(Number(query.get('top'))) ? Number(query.get('top')) : MOST_CURVES[1];
  const begun = rows.filter((trial) => trial.state !== 'pending' && trial.state !== 'claimed');
  const metric = query.get('curve') || view.metric;
  const look = lookOfOverlay();
  if (!metric) return h(Empty, { title: 'No metrics yet. A program reports some by printing them:', command: 'print("loss=0.5")' });
  const runs = begun.slice(0, most).map((trial) => ({ ref: trial.job, name: trial.job, label: pointText(view, trial), watch: trial.state === 'running' ? view.name : '' }));
  return html`<div class="filters">
      ${h(Select, { label: 'curve', value: metric, set: (curve) => setQuery({ curve: curve === view.metric ? '' : curve }), options: metricOptions(view) })}
      ${h(Select, { label: 'the best', value: String(most), set: (top) => setQuery({ top }), options: MOST_CURVES.map((count) => /** @type {[string, string]} */ ([String(count), String(count)])) })}
      ${h(LookControls, { look, axes: [['step', 'step'], ['relative', 'relative time']] })}
      <span class="quiet">${begun.length > runs.length ? `${runs.length} of ${grouped(begun.length)} trials: the best by ${view.metric}` : `${runs.length} trials`}</span></div>
    ${runs.length ? h(Overlay, { runs, metric }) : h(Empty, { title: 'No trial that is shown has begun.' })}`;
}

/** What can be done with trials of the table. @param {{ view: SweepView, rows: SweepTrial[], marked: Set<number>, clear: () => void }} props */
function Selection({ view, rows, marked, clear }) {
  const chosen = view.trials.filter((trial) => marked.has(trial.number)).map((trial) => trial.job);
  const bests = rows.filter((trial) => trial.place !== null).slice(0, BEST_COMPARED).map((trial) => trial.job);
  if (chosen.length) {
    return html`<span class="bulk inline" role="group" aria-label="selected trials"><strong>${grouped(chosen.length)} selected</strong>
      ${chosen.length <= MOST_COMPARED ? html`<a class="button small" href=${linkTo(['compare'], { jobs: listText(chosen) })}>${chosen.length > 1 ? `compare ${chosen.length}` : 'compare…'}</a>`
        : html`<span class="quiet">at most ${MOST_COMPARED} can be compared</span>`}
      <button type="button" class="small" onClick=${clear}>clear</button></span>`;
  }
  return html`<span class="quiet">select some to compare them</span>${bests.length > 1 && html`<a class="button small" href=${linkTo(['compare'], { jobs: listText(bests) })}>compare the best ${bests.length}</a>`}`;
}

/**
 * @param {{ view: SweepView, axes: Axis[], rows: SweepTrial[], marked: Set<number>, mark: (number: number) => void,
 *   focus: number, setFocus: (number: number) => void }} props
 */
function TrialTable({ view, axes, rows, marked, mark, focus, setFocus }) {
  const sort = place.value.query.get('sort') ?? '-place';
  const parameters = axes.filter((axis) => !axis.isMetric);
  const metrics = [...axes.filter((axis) => axis.isMetric)].sort((a, b) => Number(b.name === view.metric) - Number(a.name === view.metric));
  const sorted = useMemo(() => inOrder(rows, sort, axes), [rows, sort, axes]);
  const { columns, tracks, width } = useMemo(() => columnsOf(view, parameters, metrics), [axes, view.metric, view.is_lower_better]);
  /** @param {number} index */
  const cells = (index) => {
    const trial = sorted[index];
    return trial ? [
      html`<label class="mark"><input type="checkbox" checked=${marked.has(trial.number)} onChange=${() => mark(trial.number)} aria-label=${`select trial ${trial.number}`} /></label>`,
      trial.place ?? '–', html`<a href=${jobLink(trial.job)} title=${trial.label}>#${trial.number}</a>`, h(StateBadge, { state: trial.state }),
      ...parameters.map((axis) => cellText(trial.parameters[axis.name])),
      ...metrics.map((axis) => (axis.name in trial.metrics ? shortNumber(numberOf(trial.metrics[axis.name])) : '–')),
      trial.best_step !== null ? grouped(trial.best_step) : trial.step === null ? '–' : `${grouped(trial.step)} now`, duration(trial.seconds),
    ] : null;
  };
  if (!sorted.length) return h(Empty, { title: 'No trial is inside the brushes and states.' });
  return h(VirtualTable, {
    label: `trials of ${view.name}`, columns, count: sorted.length, sort, row: cells, tracks, width,
    parts: (index) => [sorted[index], sorted[index] && marked.has(sorted[index].number)],
    setSort: (key) => setQuery({ sort: key === '-place' ? '' : key }),
    rowClass: (index) => `${sorted[index]?.number === focus ? 'focus' : ''}${sorted[index]?.place === 1 ? ' first' : ''}`,
    onOpen: (index) => sorted[index] && go(jobLink(sorted[index].job)),
    onMark: (index) => sorted[index] && mark(sorted[index].number),
    onPoint: (index) => setFocus(sorted[index]?.number ?? 0),
  });
}

/** The columns of the table, each as wide as its title and its values need. @param {SweepView} view @param {Axis[]} parameters @param {Axis[]} metrics */
function columnsOf(view, parameters, metrics) {
  /** @type {import('./table.js').Column[]} */
  const columns = [
    { key: 'mark', title: '', className: 'c-mark' },
    { key: 'place', title: 'place', className: 'c-number', sort: 'place' },
    { key: 'trial', title: 'trial', className: 'c-trial', sort: 'number' },
    { key: 'state', title: 'state', className: 'c-state', sort: 'state' },
    ...parameters.map((axis) => ({ key: axis.key, title: cutMiddle(axis.name, 18), className: axis.isNumber ? 'c-number' : 'c-text', sort: axis.key })),
    ...metrics.map((axis) => ({ key: axis.key, title: cutMiddle(axis.name, 18) + (axis.name === view.metric ? (view.is_lower_better ? ' ↓' : ' ↑') : ''), className: 'c-number', sort: axis.key })),
    { key: 'step', title: 'best step', className: 'c-number', sort: 'step' },
    { key: 'seconds', title: 'took', className: 'c-number', sort: 'seconds' },
  ];
  const widths = columns.map((column, at) => [28, 58, 68, 112][at] ?? Math.max(column.className === 'c-text' ? 100 : 80, 22 + 8 * column.title.length));
  const tracks = widths.map((width, at) => (at < 4 ? `${width}px` : `minmax(${width}px, 1fr)`)).join(' ');
  return { columns, tracks, width: widths.reduce((sum, one) => sum + one + 9, 24) };
}

/** @param {unknown} value */
function cellText(value) {
  if (value === null || value === undefined) return '–';
  const text = typeof value === 'object' ? shortNumber(numberOf(/** @type {any} */ (value))) : typeof value === 'number' ? shortNumber(value) : valueText(value);
  return html`<span title=${text}>${text}</span>`;
}

/** @param {SweepTrial[]} rows @param {string} sort @param {Axis[]} axes */
function inOrder(rows, sort, axes) {
  const isUp = sort.startsWith('-');
  const key = isUp ? sort.slice(1) : sort;
  const axis = axes.find((one) => one.key === key);
  const of = axis?.of ?? (/** @type {Record<string, (trial: SweepTrial) => number>} */ ({
    place: (trial) => trial.place ?? NaN, number: (trial) => trial.number, state: (trial) => SWEEP_STATES.indexOf(trial.state),
    step: (trial) => trial.best_step ?? trial.step ?? NaN, seconds: (trial) => trial.seconds ?? NaN,
  })[key]);
  if (!of) return rows;
  const values = new Map(rows.map((trial) => [trial, of(trial)]));
  // Those without a value stay behind, in either direction.
  return [...rows].sort((a, b) => {
    const [x, y] = [values.get(a) ?? NaN, values.get(b) ?? NaN];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y));
    return isUp ? x - y : y - x;
  });
}
