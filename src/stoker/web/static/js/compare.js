// @ts-check
// Runs side by side: metrics at their best steps, what differs, what is the same; and their curves over each other.
import { useEffect, useState } from '../vendor/hooks.js';
import { get, jobPath, numberOf } from './api.js';
import { clockTime, cutMiddle, grouped, quoted, shortId, shortNumber } from './format.js';
import { LookControls } from './curves.js';
import { CodeText } from './job.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { lookOfOverlay, Overlay, Swatch } from './overlay.js';
import { jobLink, linkTo, listText, place, readList, setQuery } from './router.js';
import { useData } from './state.js';
import { Command, Empty, Select, StateBadge, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').ComparisonView} ComparisonView */
/** @typedef {import('./messages.d.ts').ComparedValue} ComparedValue */
/** @typedef {import('./messages.d.ts').CodeDiff} CodeDiff */
/** @typedef {import('./messages.d.ts').JobPage} JobPage */
/** @typedef {import('./messages.d.ts').JobView} JobView */
/** @typedef {import('./messages.d.ts').SweepView} SweepView */

const MOST = 20;
const SECTIONS = /** @type {[string, string][]} */ ([
  ['config', 'settings'], ['code', 'code'], ['data', 'data'], ['environment', 'environment'], ['machine', 'machine'], ['cost', 'cost'],
]);
/** Facts of a run that are not metrics but what it took. */
const COSTS = /** @type {Record<string, string>} */ ({ seconds: 'time', peak_bytes: 'peak memory', peak_gpu_bytes: 'peak GPU memory' });
const METRICS_SHOWN = 12;
const SAME_SHOWN = 200;

/** What each run is called: two of one name by their ids. @param {JobView[]} jobs */
function labelsOf(jobs) {
  const names = jobs.map((job) => job.name);
  return jobs.map((job) => (names.filter((name) => name === job.name).length > 1 ? `${job.name} (${shortId(job)})` : job.name));
}

/** @param {string[]} refs */
const setJobs = (refs) => setQuery({ jobs: listText(refs) });

export function ComparePage() {
  const query = place.value.query;
  const all = [...new Set(readList(query.get('jobs')))];
  const refs = all.slice(0, MOST);
  const metric = query.get('metric') ?? '';
  const { data, error, reload } = /** @type {ReturnType<typeof useData<ComparisonView>>} */ (
    useData(refs.length ? 'v1/compare' : null, { ref: refs, metric, better: query.get('better') ?? '' }));
  const names = refs.join('\n');
  const ids = data?.jobs.map((job) => job.id).join('\n') ?? '';
  useEffect(() => onRows((rows) => {
    const known = new Set([...names.split('\n').flatMap((ref) => [ref, ref.split('/')[0]]), ...ids.split('\n')]);
    if (rows.resync || rows.jobs.some((job) => known.has(job.name) || known.has(job.id)) || rows.gone.some((id) => known.has(id))) reload();
  }), [names, ids]);
  const shown = data && data.jobs.length === refs.length ? data : null;
  const labels = shown ? labelsOf(shown.jobs) : refs;
  return html`<main id="main" class="wide"><h1>Compare <span class="quiet">${refs.length ? `${refs.length} ${refs.length > 1 ? 'runs' : 'run'}` : ''}</span></h1>
    <div class="chips" role="group" aria-label="runs">${refs.map((ref, at) => html`<button type="button" key=${ref} class="chip" aria-label=${`remove ${labels[at]}`}
      onClick=${() => setJobs(refs.filter((one) => one !== ref))}>${cutMiddle(labels[at], 40)} ×</button>`)}</div>
    ${h(Add, { refs })}
    ${all.length > refs.length && html`<p class="notice">The first ${MOST} of ${grouped(all.length)} runs are compared.</p>`}
    ${h(Trouble, { error, what: 'one of the runs' })}
    ${!refs.length && h(Empty, { title: 'Select rows in the table of jobs or of a sweep, or add names above.', command: 'stoker compare last/1 last/3' })}
    ${refs.length === 1 && h(Others, { ref_: refs[0], name: labels[0] })}
    ${refs.length > 0 && !shown && !error && html`<p class="quiet">loading…</p>`}
    ${shown && refs.length > 1 && html`${h(Facts, { view: shown, refs, labels })}${h(Curves, { view: shown, refs, labels })}`}
    ${h(Command, { command: commandOf(refs, metric) })}
  </main>`;
}

/** @param {string[]} names @param {string} metric */
function commandOf(names, metric) {
  if (names.length === 1) return `stoker jobs show ${quoted(names[0])}`;
  return ['stoker compare', ...(names.length ? names : ['last/1', 'last/3']).map(quoted), metric && `--by ${quoted(metric)}`].filter(Boolean).join(' ');
}

/** @param {{ refs: string[] }} props */
function Add({ refs }) {
  const [text, setText] = useState('');
  const [known, setKnown] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    if (!text) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      get('v1/jobs', { q: text, limit: 20 }, stop.signal).then((/** @type {JobPage} */ page) => setKnown(page.jobs.map((job) => job.name)), () => {});
    }, 250);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);
  if (refs.length >= MOST) return html`<p class="quiet">At most ${MOST} runs are compared.</p>`;
  return html`<form class="filters" onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    if (text.trim()) setJobs([...refs, text.trim()]);
    setText('');
  }}><label class="field"><span>add a run</span><input list="runs" value=${text} placeholder="name, name/3 or id" autocomplete="off"
      onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
    <datalist id="runs">${[...new Set(known)].map((name) => html`<option key=${name} value=${name} />`)}</datalist>
    <button type="submit" disabled=${!text.trim()}>add</button></form>`;
}

/** What one run can be compared with: the run before it, the best trials of its sweep. @param {{ ref_: string, name: string }} props */
function Others({ ref_, name: called }) {
  const [name, number] = called.split('/');
  const code = /** @type {ReturnType<typeof useData<CodeDiff>>} */ (useData(`${jobPath(ref_)}/code`));
  const sweep = /** @type {ReturnType<typeof useData<SweepView>>} */ (useData(number ? `v1/sweeps/${encodeURIComponent(name)}` : null));
  const parent = code.data?.parent;
  const trials = (sweep.data?.trials ?? []).filter((trial) => trial.job !== called && trial.place !== null).slice(0, 5);
  /** @param {string} other @param {any} text */
  const link = (other, text) => html`<a href=${linkTo(['compare'], { jobs: listText([ref_, other]) })}>${text}</a>`;
  return html`<section class="card"><h2>Compare ${cutMiddle(called, 60)} with …</h2><ul class="rows">
    ${parent && html`<li>${link(parent, cutMiddle(parent, 60))} <span class="quiet">the run before it</span></li>`}
    ${trials.map((trial) => html`<li key=${trial.job}>${link(trial.job, cutMiddle(trial.job, 60))} <span class="quiet">place ${trial.place} of its sweep · ${trial.label} · ${
      sweep.data?.metric} ${shortNumber(numberOf(trial.metrics[sweep.data?.metric ?? '']))}</span></li>`)}
    <li class="quiet">any other: add its name above</li></ul></section>`;
}

/** @param {{ view: ComparisonView, refs: string[], labels: string[] }} props */
function Facts({ view, refs, labels }) {
  const facts = [...view.facts.filter((fact) => fact.section !== 'metrics'),
    ...view.facts.filter((fact) => fact.section === 'metrics' && fact.name in COSTS).map((fact) => ({ ...fact, section: 'cost', name: COSTS[fact.name] })),
    ...ofMachines(view.jobs)];
  const same = facts.filter((fact) => !fact.differs);
  const differing = SECTIONS.map(([section, title]) => ({ title, facts: facts.filter((fact) => fact.section === section && fact.differs) })).filter((one) => one.facts.length);
  const code = differing.some((one) => one.title === 'code') && refs.length === 2;
  const wide = refs.length + 1;
  return html`<div class="card scroll" tabindex="0" role="region" aria-label="comparison"><table class="facts"><caption class="hidden">runs side by side, what differs first</caption>
      <thead><tr><th scope="col"><span class="hidden">fact</span></th>${view.jobs.map((job, at) => html`<th scope="col" key=${refs[at]}>${h(Swatch, { at })} <a href=${jobLink(refs[at])} title=${labels[at]}>${cutMiddle(labels[at], 32)}</a>
        <div>${h(StateBadge, { state: job.state, cancelling: job.is_cancelling })}</div>${job.label && html`<div class="quiet">${cutMiddle(job.label, 48)}</div>`}</th>`)}</tr></thead>
      ${h(Metrics, { view })}
      ${differing.map(({ title, facts: own }) => html`<tbody key=${title}><tr class="section"><th scope="rowgroup" colspan=${wide}>${title} <span class="quiet">${grouped(own.length)} ${own.length > 1 ? 'differ' : 'differs'}</span></th></tr>
        ${own.map((fact) => h(FactRow, { key: fact.name, fact }))}</tbody>`)}
      ${!differing.length && html`<tbody><tr><td colspan=${wide}>Nothing but the metrics differs.</td></tr></tbody>`}</table></div>
    ${code && h(CodeBetween, { refs })}
    ${same.length > 0 && html`<details class="card same"><summary>${grouped(same.length)} the same</summary><div class="scroll" tabindex="0" role="region" aria-label="the same in all"><table>
      <caption class="hidden">the same in all runs</caption><thead><tr><th scope="col">part</th><th scope="col">name</th><th scope="col">value</th></tr></thead>
      <tbody>${same.slice(0, SAME_SHOWN).map((fact) => html`<tr key=${`${fact.section} ${fact.name}`}><td>${titleOf(fact.section)}</td><th scope="row"><code>${cutMiddle(fact.name, 80)}</code></th>
        <td><code>${cutMiddle(fact.values[0] ?? '', 200)}</code></td></tr>`)}</tbody></table></div>
      ${same.length > SAME_SHOWN && html`<p class="quiet">${grouped(same.length - SAME_SHOWN)} more are the same.</p>`}</details>`}`;
}

/** @param {string} section */
const titleOf = (section) => SECTIONS.find(([name]) => name === section)?.[1] ?? section;

/** @param {{ fact: ComparedValue }} props */
function FactRow({ fact }) {
  const shown = shortened(fact.values);
  return html`<tr><th scope="row"><code title=${fact.name}>${cutMiddle(fact.name, 60)}</code></th>${fact.values.map((value, at) => html`<td key=${at}>${
    value === '' ? html`<span class="quiet">–</span>` : html`<code title=${value}>${shown[at]}</code>`}</td>`)}</tr>`;
}

/** Values as far as they differ: numbers with few digits, texts without their middle. @param {string[]} values */
function shortened(values) {
  const shorter = values.map((value) => (value.length > 10 && /^-?[\d.]+(e-?\d+)?$/.test(value) ? String(Number(Number(value).toPrecision(6))) : cutMiddle(value, 120)));
  return new Set(shorter).size === new Set(values).size ? shorter : values;
}

/** Where runs ran, as facts beside those of the server. @param {JobView[]} jobs @returns {ComparedValue[]} */
function ofMachines(jobs) {
  /** @type {[string, (job: JobView) => string][]} */
  const columns = [
    ['machine', (job) => job.machine], ['devices', (job) => job.devices.join(', ')], ['user', (job) => job.submitter],
    ['attempts', (job) => (job.attempt ? String(job.attempt) : '')], ['started', (job) => (job.started_s ? clockTime(job.started_s) : '')],
  ];
  return columns.map(([name, of]) => ({ section: 'machine', name, values: jobs.map(of), differs: new Set(jobs.map(of)).size > 1 }));
}

/** Metrics of each run at its best step; the best of each row is marked if it is known which is better. @param {{ view: ComparisonView }} props */
function Metrics({ view }) {
  const [isAll, setAll] = useState(false);
  const names = [...new Set(view.bests.flatMap((best) => Object.keys(best.metrics)))];
  const ordered = [view.metric, ...names.filter((name) => name !== view.metric)].filter(Boolean);
  const shown = isAll ? ordered : ordered.slice(0, METRICS_SHOWN);
  const two = view.jobs.length === 2;
  const wide = view.jobs.length + 1;
  if (!ordered.length) return html`<tbody><tr class="section"><th scope="rowgroup" colspan=${wide}>metrics</th></tr><tr><td colspan=${wide} class="quiet">none of them has reported a metric</td></tr></tbody>`;
  return html`<tbody><tr class="section"><th scope="rowgroup" colspan=${wide}>metrics <span class="quiet">${
      view.metric ? `at the best step by ${view.metric}, ${view.is_lower_better ? 'smaller' : 'larger'} is better` : 'the last values'}</span></th></tr>
    ${view.metric && html`<tr><th scope="row">best step</th>${view.bests.map((best, at) => html`<td key=${at}>${best.step === null ? html`<span class="quiet">last value</span>` : grouped(best.step)}</td>`)}</tr>`}
    ${shown.map((name) => {
      const values = view.bests.map((best) => (name in best.metrics ? numberOf(best.metrics[name]) : NaN));
      const finite = values.filter(Number.isFinite);
      const top = name === view.metric && finite.length > 1 ? Math[view.is_lower_better ? 'min' : 'max'](...finite) : NaN;
      return html`<tr key=${name}><th scope="row"><code title=${name}>${cutMiddle(name, 60)}</code></th>${values.map((value, at) => html`<td key=${at} class=${value === top ? 'top' : ''}>${
        name in view.bests[at].metrics ? shortNumber(value) : html`<span class="quiet">–</span>`}${value === top ? html` <span class="quiet">best</span>` : ''}${
        two && at === 1 && html` <span class="quiet">${changeOf(values)}</span>`}</td>`)}</tr>`;
    })}
    ${ordered.length > shown.length && html`<tr><td colspan=${wide}><button type="button" class="small" onClick=${() => setAll(true)}>${grouped(ordered.length - shown.length)} more metrics</button></td></tr>`}</tbody>`;
}

/** How much the second value is above the first. @param {number[]} values */
function changeOf([from, to]) {
  if (!Number.isFinite(from) || !Number.isFinite(to) || from === to) return '';
  const sign = to > from ? '+' : '−';
  const part = from ? ` (${sign}${Number(Math.abs(((to - from) / from) * 100).toPrecision(3))} %)` : '';
  return `${sign}${shortNumber(Math.abs(to - from))}${part}`;
}

/** @param {{ refs: string[] }} props */
function CodeBetween({ refs }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="card same" onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}><summary>how the code differs</summary>
    ${isOpen && h(CodeText, { ref_: refs[1], parent: refs[0] })}</details>`;
}

/** @param {{ view: ComparisonView, refs: string[], labels: string[] }} props */
function Curves({ view, refs, labels }) {
  const asked = place.value.query.get('curve') ?? '';
  const metric = view.metrics.includes(asked) ? asked : view.metrics.includes(view.metric) ? view.metric : view.metrics[0];
  if (!metric) return html`<p class="quiet">No metric has a curve in more than one of them.</p>`;
  const options = view.metrics.map((name) => /** @type {[string, string]} */ ([name, cutMiddle(name, 40)]));
  const runs = refs.map((ref, at) => ({ ref, name: labels[at], label: view.jobs[at].label, watch: view.jobs[at].state === 'running' ? view.jobs[at].name : '' }));
  return html`<div class="filters"><h2>Curves</h2>${h(Select, { label: 'metric', value: metric, set: (curve) => setQuery({ curve }), options })}
      ${h(LookControls, { look: lookOfOverlay(), axes: [['step', 'step'], ['relative', 'relative time']] })}</div>
    ${h(Overlay, { runs, metric })}`;
}
