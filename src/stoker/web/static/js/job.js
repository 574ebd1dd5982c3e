// @ts-check
// One job: state, reason and actions; below them tabs, each of which loads what it shows.
import { useEffect, useState } from '../vendor/hooks.js';
import { askCancel, askPriority, askRequeue, canCancel, canPrioritise, canRequeue } from './actions.js';
import { againLink } from './again.js';
import { jobPath, urlOf } from './api.js';
import { clockTime, cutMiddle, duration, grouped, quoted, secondsLeft, size, valueText } from './format.js';
import { CardTab } from './card.js';
import { CurvesTab } from './curves.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { LogsTab } from './logs.js';
import { ResourcesTab } from './resources.js';
import { linkTo, listText, place, setQuery } from './router.js';
import { StagesTab } from './stages.js';
import { may, useData } from './state.js';
import { Command, Empty, Progress, StateBadge, Tabs, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').JobDetails} JobDetails */
/** @typedef {import('./messages.d.ts').JobView} JobView */
/** @typedef {import('./messages.d.ts').JobExplanation} JobExplanation */
/** @typedef {import('./messages.d.ts').ConfigView} ConfigView */
/** @typedef {import('./messages.d.ts').CodeDiff} CodeDiff */
/** @typedef {import('./messages.d.ts').FileList} FileList */
/** @typedef {import('./messages.d.ts').ResultFiles} ResultFiles */

/** Each tab, and the command that prints the same. @type {Record<string, [(job: JobDetails) => any, (name: string) => string]>} */
const TABS = {
  curves: [(details) => h(CurvesTab, { job: details.job }), (name) => `stoker compare ${name}`],
  logs: [(details) => h(LogsTab, { job: details.job }), (name) => `stoker logs -f ${name}`],
  stages: [(details) => h(StagesTab, { job: details.job }), (name) => `stoker explain ${name}`],
  resources: [(details) => h(ResourcesTab, { details }), (name) => `stoker jobs show ${name}`],
  config: [(details) => h(ConfigTab, { details }), (name) => `stoker jobs show ${name}`],
  code: [(details) => h(CodeText, { ref_: details.job.id }), (name) => `stoker jobs show ${name}`],
  files: [(details) => h(FilesTab, { job: details.job }), (name) => `stoker get ${name}`],
  explain: [(details) => h(ExplainTab, { job: details.job }), (name) => `stoker explain ${name}`],
  'model-card': [(details) => h(CardTab, { job: details.job }), (name) => `stoker get ${name}`],
  attempts: [(details) => h(AttemptsTab, { details }), (name) => `stoker jobs show ${name}`],
};

/** @param {{ ref_: string }} props */
export function JobPage({ ref_ }) {
  const { data, error, reload } = /** @type {ReturnType<typeof useData<JobDetails>>} */ (useData(jobPath(ref_)));
  const [fresh, setFresh] = useState(/** @type {JobView | null} */ (null));
  const id = data?.job.id ?? '';
  useEffect(() => onRows((rows) => {
    const found = rows.jobs.find((job) => job.id === id || job.name === ref_);
    if (found) setFresh(found);
    // A trial of a job of this machine has no row of its own.
    const isOfJob = rows.jobs.some((job) => id.startsWith(`${job.id}/`));
    if (rows.resync || isOfJob || rows.gone.includes(id) || (found && (found.state !== data?.job.state || found.attempt !== data?.job.attempt))) reload();
  }), [id, data]);
  if (!data) {
    return html`<main id="main"><h1>${cutMiddle(ref_, 60)}</h1>${error ? h(Trouble, { error, what: `job ${ref_}` }) : html`<p class="quiet">loading…</p>`}
      ${error?.status === 404 && html`<p><a href="#/jobs">all jobs</a></p>`}</main>`;
  }
  const job = fresh && fresh.changed_s >= data.job.changed_s ? fresh : data.job;
  const names = Object.keys(TABS);
  const asked = place.value.query.get('tab') ?? '';
  const tab = names.includes(asked) ? asked : 'curves';
  const [show, command] = TABS[tab];
  return html`<main id="main">${h(JobHead, { job, ref_ })}
    ${h(Trouble, { error, what: `job ${ref_}` })}
    ${h(Tabs, { label: 'parts of the job', tabs: names, chosen: tab, choose: (name) => setQuery({ tab: name === 'curves' ? '' : name }) })}
    <div id="panel" role="tabpanel" aria-labelledby=${`tab-${tab}`} tabindex="0">${show({ ...data, job })}</div>
    ${h(Command, { command: command(quoted(job.name)) })}
  </main>`;
}

/** A trial, or a whole sweep of this machine, which counts its trials. @param {JobView} job */
const isOfSweep = (job) => /\/\d+$/.test(job.name) || /^[\d,]+ of [\d,]+ trials$/.test(job.label);

/** @param {{ job: JobView, ref_: string }} props */
function JobHead({ job, ref_ }) {
  const now_s = useNow();
  const left_s = secondsLeft(job, now_s);
  const facts = [
    job.label, job.recipe, job.machine, job.devices.length ? cutMiddle(job.devices.join(', '), 40) : '',
    job.attempt > 1 ? `attempt ${job.attempt}` : '', job.submitter && `by ${job.submitter}`,
    job.started_s && `${job.ended_s ? 'took' : 'for'} ${duration((job.ended_s ?? now_s) - job.started_s)}`,
    left_s !== null && `~${duration(left_s)} left`,
  ].filter(Boolean);
  return html`<div class="row jobhead"><h1 title=${job.name}>${cutMiddle(job.name, 60)}</h1>
      ${h(StateBadge, { state: job.state, cancelling: job.is_cancelling })}${h(Progress, { job })}<span class="grow"></span>
      <span class="buttons">
        ${isOfSweep(job) && html`<a class="button" href=${linkTo(['sweep', job.name.split('/')[0]])}>sweep</a>`}
        <a class="button" href=${linkTo(['compare'], { jobs: listText([ref_]) })}>compare…</a>
        ${may('submit') && html`<a class="button" href=${againLink(ref_)}>again with changes…</a>`}
        ${canPrioritise(job) && html`<button type="button" onClick=${() => askPriority(job)}>priority ${job.priority}</button>`}
        ${canRequeue(job) && html`<button type="button" onClick=${() => askRequeue(job)}>requeue</button>`}
        ${canCancel(job) && html`<button type="button" class="danger" onClick=${() => askCancel(job)}>cancel</button>`}
      </span></div>
    <p class="quiet">${facts.join(' · ')}</p>
    ${job.why && html`<p class=${job.state === 'failed' ? 'why bad' : 'why'}>${job.why}</p>`}
    ${job.says && job.says !== job.why && html`<p class="quiet">${job.says}</p>`}`;
}

/** @param {{ details: JobDetails }} props */
function ConfigTab({ details }) {
  const { data, error } = /** @type {ReturnType<typeof useData<ConfigView>>} */ (useData(`${jobPath(details.job.id)}/config`));
  const [text, setText] = useState('');
  const settings = data?.settings ?? plainSettings(details.spec);
  const shown = settings.filter((one) => `${one.path} ${valueText(one.value)}`.toLowerCase().includes(text.toLowerCase()));
  return html`${error && error.status !== 404 && h(Trouble, { error, what: 'configuration' })}
    <label class="field"><span>filter</span><input type="search" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
    ${!settings.length ? h(Empty, { title: 'This job has no settings.' }) : html`<div class="scroll" tabindex="0" role="region" aria-label=${`configuration`}><table><caption class="hidden">configuration</caption>
      <thead><tr><th scope="col">setting</th><th scope="col">value</th><th scope="col">origin</th></tr></thead>
      <tbody>${shown.slice(0, 1000).map((one) => html`<tr key=${one.path}><th scope="row"><code>${one.path}</code></th>
        <td><code>${cutMiddle(valueText(one.value), 300)}</code></td>
        <td>${one.origin}${one.layers.length > 1 && html`<span class="quiet"> over ${one.layers.slice(0, -1).map(([layer, value]) => `${layer}: ${valueText(value)}`).join('; ')}</span>`}</td></tr>`)}</tbody></table></div>`}`;
}

/** @param {Record<string, unknown>} spec @returns {import('./messages.d.ts').SettingView[]} */
function plainSettings(spec) {
  const args = /** @type {Record<string, unknown>} */ (spec?.args ?? {});
  return Object.entries(args).map(([path, value]) => ({ path, value, origin: '', layers: [] }));
}

/** How the code of a job differs from that of another, or of the run before it. @param {{ ref_: string, parent?: string }} props */
export function CodeText({ ref_, parent }) {
  const { data, error } = /** @type {ReturnType<typeof useData<CodeDiff>>} */ (useData(`${jobPath(ref_)}/code`, { parent }));
  if (!data) return error ? h(Trouble, { error, what: 'code' }) : html`<p class="quiet">loading…</p>`;
  const lines = data.text ? data.text.split('\n') : [];
  return html`<p>${data.parent ? html`Changes since ${data.parent}: ${data.files.length} files` : data.note || 'There is no earlier run to compare with.'}</p>
    ${lines.length > 0 && html`<pre class="diff" tabindex="0" aria-label="difference of the code">${lines.map((line, at) => html`<span key=${at} class=${diffKind(line)}>${line}${'\n'}</span>`)}</pre>`}
    ${data.is_cut && html`<p class="quiet">The rest is cut.</p>`}`;
}

/** @param {string} line */
const diffKind = (line) => (line.startsWith('@@') ? 'at' : /^(\+\+\+|---)/.test(line) ? 'head' : line.startsWith('+') ? 'plus' : line.startsWith('-') ? 'minus' : '');

/** @param {{ job: JobView }} props */
function FilesTab({ job }) {
  const folder = `${jobPath(job.id)}/files`;
  const { data, error } = /** @type {ReturnType<typeof useData<FileList>>} */ (useData(folder));
  const result = /** @type {ReturnType<typeof useData<ResultFiles>>} */ (useData(job.result ? `${jobPath(job.id)}/result` : null));
  const made = result.data;
  if (!data && !made) return error ? h(Trouble, { error, what: 'files' }) : html`<p class="quiet">loading…</p>`;
  const files = (data?.files ?? []).map((file) => ({ ...file, link: urlOf(`${folder}/${escaped(file.path)}`, { limit: 0 }).href }));
  const results = (made?.files ?? []).map((file) => ({ ...file, link: urlOf(`v1/objects/${file.sha256}`, { name: file.path }).href }));
  if (!files.length && !results.length) return h(Empty, { title: 'No files yet.', command: `stoker get ${quoted(job.name)}` });
  return html`${result.error && result.error.status !== 404 && h(Trouble, { error: result.error, what: 'result' })}
    ${made && h(Files, { title: `Result (${size(made.size_bytes)})`, files: results, count: made.count })}
    ${data && h(Files, { title: `Logs and metrics of attempt ${data.attempt}`, files, count: files.length })}`;
}

/** @param {string} path */
const escaped = (path) => path.split('/').map(encodeURIComponent).join('/');

/** @param {{ title: string, count: number, files: { path: string, size_bytes: number, link: string }[] }} props */
function Files({ title, count, files }) {
  const shown = files.slice(0, 2000);
  if (!count) return html`<h2>${title}</h2><p class="quiet">no files</p>`;
  return html`<h2>${title}</h2><div class="scroll" tabindex="0" role="region" aria-label=${title}><table><caption class="hidden">${title}</caption>
    <thead><tr><th scope="col">file</th><th scope="col" class="right">size</th></tr></thead>
    <tbody>${shown.map((file) => html`<tr key=${file.path}><td><a download=${file.path.split('/').pop()} href=${file.link}><code>${file.path}</code></a></td>
      <td class="right">${size(file.size_bytes)}</td></tr>`)}</tbody></table></div>
    ${count > shown.length && html`<p class="quiet">and ${grouped(count - shown.length)} more</p>`}`;
}

/** @param {{ job: JobView }} props */
function ExplainTab({ job }) {
  const { data, error, reload } = /** @type {ReturnType<typeof useData<JobExplanation>>} */ (useData(`${jobPath(job.id)}/explain`));
  useEffect(() => reload(), [job.state]);
  if (!data) return error ? h(Trouble, { error, what: 'explanation' }) : html`<p class="quiet">loading…</p>`;
  return html`<p class="verdict">${data.verdict}</p>
    ${Object.entries(data.after).map(([name, state]) => html`<p key=${name}>waits for <a href=${linkTo(['job', name])}>${name}</a> (${state})</p>`)}
    ${(data.lines ?? data.changes).map((text) => html`<p key=${text}>${text}</p>`)}
    ${data.rows?.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="machines"><table><caption class="hidden">machines</caption><thead><tr><th scope="col">machine</th><th scope="col">device</th><th scope="col" class="right">score</th><th scope="col">why</th></tr></thead>
      <tbody>${data.rows.map((row, at) => html`<tr key=${at}><th scope="row">${row.machine}</th><td>${row.device}</td><td class="right">${row.score}</td><td>${row.why}</td></tr>`)}</tbody></table></div>`}`;
}

/** @param {{ details: JobDetails }} props */
function AttemptsTab({ details }) {
  if (!details.attempts.length) return h(Empty, { title: 'Not granted to a machine yet.' });
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`attempts`}><table><caption class="hidden">attempts</caption><thead><tr><th scope="col">attempt</th><th scope="col">machine</th><th scope="col">granted</th>
    <th scope="col">took</th><th scope="col">ending</th><th scope="col">cause and message</th></tr></thead>
    <tbody>${[...details.attempts].reverse().map((one) => html`<tr key=${one.number}><th scope="row">${one.number}</th><td>${one.machine}</td>
      <td>${clockTime(one.granted_s)}</td><td>${one.started_s && one.ended_s ? duration(one.ended_s - one.started_s) : '–'}</td>
      <td>${one.ending || 'running'}</td><td>${[one.cause, one.message, one.hint].filter(Boolean).join(' — ')}${
        one.exit_code !== null && one.exit_code !== undefined ? ` (exit code ${one.exit_code})` : ''}</td></tr>`)}</tbody></table></div>`;
}
