// @ts-check
// Changes to jobs and machines: each asks first, and names the thing and the command that does the same.
import { jobPath } from './api.js';
import { grouped, quoted } from './format.js';
import { may } from './state.js';
import { change, confirm } from './ui.js';

/** @typedef {import('./messages.d.ts').JobView} JobView */

const ENDED = new Set(['completed', 'failed', 'cancelled']);

/** @param {JobView} job */
export const canCancel = (job) => may('submit') && !ENDED.has(job.state) && !job.is_cancelling;
/** @param {JobView} job */
export const canRequeue = (job) => may('submit') && ENDED.has(job.state);
/** @param {JobView} job */
export const canPrioritise = (job) => may('submit') && job.state === 'pending';

/** @param {JobView} job */
export const askCancel = (job) => confirm({
  title: `Cancel ${job.name}?`,
  text: `${job.name} is ${job.state}${job.machine ? ` on ${job.machine}` : ''}. Its work since the last checkpoint is lost.`,
  command: `stoker cancel ${quoted(job.name)}`,
  verb: 'cancel the job',
  isDanger: true,
  act: () => change(`${jobPath(job.id)}/cancel`),
});

/** @param {JobView} job */
export const askRequeue = (job) => confirm({
  title: `Start ${job.name} again?`,
  text: `${job.name} has ended (${job.state}). A new attempt is queued.`,
  command: `stoker jobs requeue ${quoted(job.name)}`,
  verb: 'requeue the job',
  act: () => change(`${jobPath(job.id)}/requeue`),
});

/** @param {JobView} job */
export const askPriority = (job) => confirm({
  title: `Priority of ${job.name}`,
  text: `It has priority ${job.priority}. Jobs with a higher priority start first.`,
  command: `stoker jobs priority ${quoted(job.name)} NUMBER`,
  verb: 'set the priority',
  input: 'priority',
  value: String(job.priority),
  act: (value) => change(`${jobPath(job.id)}/priority`, { priority: wholeNumber(value) }),
});

/** @param {string} text */
function wholeNumber(text) {
  if (!/^-?\d{1,6}$/.test(text.trim())) throw new Error(`${text} is not a whole number`);
  return Number(text);
}

/** @param {'cancel' | 'requeue'} verb @param {JobView[]} jobs */
export const askMany = (verb, jobs) => confirm({
  title: `${verb === 'cancel' ? 'Cancel' : 'Requeue'} ${grouped(jobs.length)} jobs?`,
  text: `${jobs.slice(0, 6).map((job) => job.name).join(', ')}${jobs.length > 6 ? ` and ${jobs.length - 6} more` : ''}`,
  command: `stoker ${verb === 'cancel' ? 'cancel' : 'jobs requeue'} ${jobs.slice(0, 3).map((job) => quoted(job.name)).join(' ')}${
    jobs.length > 3 ? ' …' : ''}`,
  verb: `${verb} ${grouped(jobs.length)} jobs`,
  isDanger: verb === 'cancel',
  act: () => change(`v1/jobs/${verb}`, { jobs: jobs.map((job) => job.id) }),
});

const MACHINE_TEXTS = /** @type {Record<string, string>} */ ({
  drain: 'Running jobs finish; no new ones start there.',
  cordon: 'No new jobs start there until it is opened.',
  pause: 'Running jobs return to the queue, and no new ones start.',
  open: 'Jobs start there again.',
});

/** @param {string} verb @param {string} name */
export const askMachine = (verb, name) => confirm({
  title: `${verb[0].toUpperCase()}${verb.slice(1)} ${name}?`,
  text: MACHINE_TEXTS[verb],
  command: verb === 'pause' ? `stoker pause   (on ${name})` : `stoker machines ${verb} ${quoted(name)}`,
  verb: `${verb} ${name}`,
  input: verb === 'open' ? undefined : 'reason',
  isDanger: verb === 'pause',
  act: (why) => change(`v1/machines/${encodeURIComponent(name)}/${verb}`, verb === 'open' ? {} : { why }),
});
