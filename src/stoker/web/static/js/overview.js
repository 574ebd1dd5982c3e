// @ts-check
// Overview: what runs, what waits and why, what failed, which machines need attention.
import { useEffect, useState } from '../vendor/hooks.js';
import { numberOf } from './api.js';
import { askCancel, askRequeue, canCancel, canRequeue } from './actions.js';
import { ago, duration, grouped, secondsLeft, shortNumber, shortTime } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { jobLink, linkTo } from './router.js';
import { may, useData } from './state.js';
import { SubmitLink } from './submit.js';
import { Command, Empty, JobName, Progress, StateBadge, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').Overview} Overview */
/** @typedef {import('./messages.d.ts').JobView} JobView */
/** @typedef {import('./messages.d.ts').ChangedRows} ChangedRows */

/** A new overview is loaded long before as many frames have come. */
const KEPT_CHANGES = 99;

export function OverviewPage() {
  // One that was made for another screen will do: what changed since is added here.
  const loaded = /** @type {ReturnType<typeof useData<Overview>>} */ (useData('v1/overview', { max_age_s: 1 }));
  const { error, reload } = loaded;
  const [changes, setChanges] = useState(/** @type {ChangedRows[]} */ ([]));
  useEffect(() => onRows((rows) => {
    if (!rows.resync && rows.seq) setChanges((before) => [...before.slice(-KEPT_CHANGES), rows]);
    if (rows.resync || rows.jobs.length || rows.machines.length || rows.gone.length) reload();
  }), []);
  const seq = loaded.data?.seq ?? 0;
  useEffect(() => setChanges((before) => before.filter((rows) => rows.seq >= seq)), [seq]);
  const data = loaded.data && changes.reduce(withRows, loaded.data);
  if (!data) return html`<main id="main"><h1>Overview</h1>${error ? h(Trouble, { error, what: 'overview' }) : html`<p class="quiet">loading…</p>`}</main>`;
  const isEmpty = !Object.values(data.jobs).some(Boolean);
  return html`<main id="main">
    <h1>${data.name} <span class="quiet">overview</span></h1>
    ${h(Trouble, { error, what: 'overview' })}
    ${h(Numbers, { data })}
    ${data.is_fleet && may('submit') && html`<p class="row apart">${h(SubmitLink, {})}</p>`}
    ${data.settling_s > 0 && html`<p class="notice">recovering: no lease expires for ${duration(data.settling_s)}</p>`}
    ${isEmpty && h(Empty, { title: 'No jobs yet. Submit some:', command: data.is_fleet ? 'stoker submit manifest.toml' : 'stoker run -- python train.py' })}
    <div class="cards">
      <div>${h(Running, { jobs: data.running, total: data.jobs.running ?? 0 })}${h(Attention, { data })}</div>
      <div>${h(Pending, { data })}${h(Failed, { jobs: data.failed, total: data.failed_count })}</div>
    </div>
    ${h(Command, { command: 'stoker status' })}
  </main>`;
}

/**
 * The overview with what changed since: numbers and rows on the screen are right at once, new rows follow.
 * @param {Overview} data @param {ChangedRows} rows
 * @returns {Overview}
 */
function withRows(data, rows) {
  if (rows.seq < data.seq) return data;
  const changed = new Map(rows.jobs.map((job) => [job.id, job]));
  /** Progress is no event: of the same one the farther counts. @param {JobView} job */
  const newest = (job) => {
    const row = changed.get(job.id);
    const isNewer = row && (row.changed_s > job.changed_s || (row.changed_s === job.changed_s && (row.step ?? 0) > (job.step ?? 0)));
    return isNewer ? row : job;
  };
  /** @param {JobView[]} listed @param {string} state */
  const still = (listed, state) => listed.map(newest).filter((job) => job.state === state);
  const jobs = Object.keys(rows.counts).length ? rows.counts : data.jobs;
  return { ...data, seq: rows.seq, jobs, running: still(data.running, 'running'), failed: still(data.failed, 'failed') };
}

/** @param {{ data: Overview }} props */
function Numbers({ data }) {
  const { jobs } = data;
  const idle = data.devices ? `${grouped(data.idle_devices)} of ${grouped(data.devices)}` : '–';
  return html`<ul class="numbers" aria-label="numbers">
    ${number('running', jobs.running ?? 0, linkTo(['jobs'], { state: 'running' }), 'running')}
    ${number('pending', (jobs.pending ?? 0) + (jobs.claimed ?? 0), linkTo(['jobs'], { state: 'pending' }), 'pending')}
    ${number('failed in 24 h', data.failed_count, linkTo(['jobs'], { state: 'failed' }), data.failed_count ? 'failed' : '')}
    ${number('completed', jobs.completed ?? 0, linkTo(['jobs'], { state: 'completed' }), 'completed')}
    ${number('devices idle', idle, linkTo(['machines']), '')}
    ${number('all done', data.done_s ? `~${shortTime(data.done_s)}` : '–', linkTo(['jobs'], { state: 'pending' }), '')}
  </ul>`;
}

/** @param {string} label @param {number | string} value @param {string} link @param {string} kind */
const number = (label, value, link, kind) => html`<li class=${kind ? `tone-${kind}` : ''}><a href=${link}>
  <strong>${typeof value === 'number' ? grouped(value) : value}</strong><span>${label}</span></a></li>`;

/** @param {{ jobs: JobView[], total: number }} props */
function Running({ jobs, total }) {
  const now_s = useNow();
  return html`<section class="card" aria-labelledby="running"><h2 id="running">Running</h2>
    ${jobs.length ? html`<ul class="rows">${jobs.slice(0, 8).map((job) => html`<li key=${job.id}>
      <div class="row">${h(StateBadge, { state: job.state, cancelling: job.is_cancelling })} ${h(JobName, { name: job.name })}
        <span class="grow"></span>${h(Progress, { job })}</div>
      <div class="row quiet">${[job.machine, firstMetric(job), left(job, now_s)].filter(Boolean).join(' · ')}
        <span class="grow"></span>${canCancel(job) && html`<button type="button" class="small" aria-label=${`cancel ${job.name}`} onClick=${() => askCancel(job)}>cancel</button>`}</div>
    </li>`)}</ul>${more(jobs.slice(0, 8), total, 'running')}` : html`<p class="quiet">Nothing runs.</p>`}</section>`;
}

/** @param {JobView} job @param {number} now_s */
function left(job, now_s) {
  const seconds = secondsLeft(job, now_s);
  return seconds === null ? (job.started_s ? `for ${duration(now_s - job.started_s)}` : '') : `~${duration(seconds)} left`;
}

/** @param {JobView} job */
function firstMetric(job) {
  const [name] = Object.keys(job.metrics);
  return name ? `${name} ${shortNumber(numberOf(job.metrics[name]))}` : '';
}

/** @param {JobView[]} shown @param {number} total @param {string} state */
const more = (shown, total, state) => total > shown.length && html`<p><a href=${linkTo(['jobs'], { state })}>all ${grouped(total)}</a></p>`;

/** @param {{ data: Overview }} props */
function Pending({ data }) {
  return html`<section class="card" aria-labelledby="pending"><h2 id="pending">Pending by reason</h2>
    ${data.pending.length ? html`<ul class="rows">${data.pending.slice(0, 8).map((one) => html`<li key=${one.reason}>
      <div class="row"><strong class="count">${grouped(one.count)}</strong><span>${one.reason || 'no reason known yet'}</span></div>
      <div class="row quiet">${one.jobs.slice(0, 3).map((name) => html`<a key=${name} href=${jobLink(name)}>${name}</a> `)}</div>
    </li>`)}</ul>` : html`<p class="quiet">Nothing waits.</p>`}</section>`;
}

/** @param {{ jobs: JobView[], total: number }} props */
function Failed({ jobs, total }) {
  const now_s = useNow();
  return html`<section class="card" aria-labelledby="failed"><h2 id="failed">Failed lately</h2>
    ${jobs.length ? html`<ul class="rows">${jobs.slice(0, 6).map((job) => html`<li key=${job.id}>
      <div class="row">${h(StateBadge, { state: job.state })} ${h(JobName, { name: job.name })}
        <span class="quiet">${[job.machine, ago(job.ended_s, now_s)].filter(Boolean).join(' · ')}</span></div>
      <div class="row"><span class="why">${job.why}</span><span class="grow"></span>
        <a class="button small" href=${linkTo(['job', job.name], { tab: 'logs' })} aria-label=${`logs of ${job.name}`}>logs</a>
        ${canRequeue(job) && html`<button type="button" class="small" aria-label=${`requeue ${job.name}`} onClick=${() => askRequeue(job)}>requeue</button>`}</div>
    </li>`)}</ul>${more(jobs.slice(0, 6), total, 'failed')}` : html`<p class="quiet">Nothing failed in the last 24 hours.</p>`}</section>`;
}

/** @param {{ data: Overview }} props */
function Attention({ data }) {
  const now_s = useNow();
  const states = Object.entries(data.machines).filter(([, count]) => count);
  return html`<section class="card" aria-labelledby="machines"><h2 id="machines">Machines</h2>
    ${states.length ? html`<p>${states.map(([state, count]) => html`<span key=${state} class=${`chip machine-${state}`}>${grouped(count)} ${state}</span> `)}</p>`
      : h(Empty, { title: 'No machines yet. Invite one:', command: 'stoker machines invite' })}
    ${data.symptoms.length ? html`<ul class="rows">${data.symptoms.slice(0, 6).map((one) => html`<li key=${`${one.machine}${one.device}${one.symptom}`}>
      <div class="row"><strong class="warn">! ${one.machine}</strong> <span>${one.message || one.symptom}</span></div>
      <div class="row quiet">${ago(one.since_s, now_s)}${one.hint && html` · <code>${one.hint}</code>`}</div></li>`)}</ul>`
      : states.length ? html`<p class="quiet">No health findings.</p>` : null}</section>`;
}
