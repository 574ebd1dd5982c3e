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
  command: () => `stoker cancel ${quoted(job.name)}`,
  verb: 'cancel the job',
  isDanger: true,
  act: () => change(`${jobPath(job.id)}/cancel`),
});

/** @param {JobView} job */
export const askRequeue = (job) => confirm({
  title: `Start ${job.name} again?`,
  text: `${job.name} has ended (${job.state}). A new attempt is queued.`,
  command: () => `stoker jobs requeue ${quoted(job.name)}`,
  verb: 'requeue the job',
  act: () => change(`${jobPath(job.id)}/requeue`),
});

/** @param {JobView} job */
export const askPriority = (job) => confirm({
  title: `Priority of ${job.name}`,
  text: `It has priority ${job.priority}. Jobs with a higher priority start first.`,
  command: ({ priority }) => `stoker jobs priority ${quoted(job.name)} ${priority.trim() || 'NUMBER'}`,
  verb: 'set the priority',
  fields: [{ key: 'priority', label: 'priority', value: String(job.priority) }],
  act: ({ priority }) => change(`${jobPath(job.id)}/priority`, { priority: wholeNumber(priority) }),
});

/** @param {'cancel' | 'requeue'} verb @param {string} name @param {number} count of the trials that it is about */
export const askSweep = (verb, name, count) => confirm({
  title: verb === 'cancel' ? `Cancel the sweep ${name}?` : `Start trials of ${name} again?`,
  text: verb === 'cancel' ? `${grouped(count)} trials run or wait. Their work since the last checkpoint is lost.`
    : `${grouped(count)} trials failed or were cancelled. A new attempt of each is queued.`,
  command: () => `stoker ${verb === 'cancel' ? 'cancel' : 'jobs requeue'} ${quoted(name)}`,
  verb: verb === 'cancel' ? 'cancel the sweep' : `requeue ${grouped(count)} trials`,
  isDanger: verb === 'cancel',
  act: () => change(`${jobPath(name)}/${verb}`),
});

/** @param {string} text */
function wholeNumber(text) {
  if (!/^-?\d{1,6}$/.test(text.trim())) throw new Error(`${text || 'nothing'} is not a whole number`);
  return Number(text);
}

const MANY = /** @type {Record<string, [title: string, command: string]>} */ ({
  cancel: ['Cancel', 'stoker cancel'],
  requeue: ['Requeue', 'stoker jobs requeue'],
  priority: ['Priority of', 'stoker jobs priority'],
});

/** @param {'cancel' | 'requeue' | 'priority'} verb @param {JobView[]} jobs @param {() => void} after */
export function askMany(verb, jobs, after) {
  const [title, command] = MANY[verb];
  const names = jobs.map((job) => job.name);
  const isPriority = verb === 'priority';
  /** @param {string} text */
  const priorityOf = (text) => (isPriority ? { priority: wholeNumber(text) } : {});
  confirm({
    title: `${title} ${grouped(jobs.length)} jobs${isPriority ? '' : '?'}`,
    text: verb === 'cancel' ? 'Their work since the last checkpoint is lost.' : isPriority ? 'Jobs with a higher priority start first.' : 'A new attempt of each is queued.',
    names,
    // Of very many the first: the rest is the same word by word.
    command: ({ priority }) => [command, ...names.slice(0, 20).map(quoted), names.length > 20 ? '…' : '',
      isPriority ? priority.trim() || 'NUMBER' : ''].filter(Boolean).join(' '),
    verb: isPriority ? `set the priority of ${grouped(jobs.length)} jobs` : `${verb} ${grouped(jobs.length)} jobs`,
    fields: isPriority ? [{ key: 'priority', label: 'priority', value: String(jobs[0]?.priority ?? 0) }] : [],
    isDanger: verb === 'cancel',
    act: async ({ priority }) => {
      const done = await change(`v1/jobs/${verb}`, { jobs: jobs.map((job) => job.id), ...priorityOf(priority ?? '') });
      after();
      return done;
    },
  });
}

const MACHINE_TEXTS = /** @type {Record<string, string>} */ ({
  drain: 'Running jobs finish; no new ones start there.',
  cordon: 'No new jobs start there until it is opened.',
  pause: 'Running jobs return to the queue, and no new ones start.',
  open: 'Jobs start there again.',
});
const SECONDS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86400 });

/** @param {string} text such as 30m or 2h; empty: no end @returns {number | undefined} */
function secondsOf(text) {
  if (!text.trim()) return undefined;
  const found = /^(\d+(?:\.\d+)?)\s*([smhd])$/.exec(text.trim());
  if (!found || !Number(found[1])) throw new Error(`${text} is not a duration such as 30m or 2h`);
  return Number(found[1]) * SECONDS[found[2]];
}

/** @param {string} verb @param {string} name */
export const askMachine = (verb, name) => askMachines(verb, [name]);

/** @param {string} verb @param {string[]} names */
export function askMachines(verb, names) {
  const isOne = names.length === 1;
  const what = isOne ? names[0] : `${grouped(names.length)} machines`;
  confirm({
    title: `${verb[0].toUpperCase()}${verb.slice(1)} ${what}?`,
    text: MACHINE_TEXTS[verb],
    names: isOne ? undefined : names,
    command: ({ why, life }) => names.slice(0, 20).map((name) => [`stoker machines ${verb}`, quoted(name), ...(why ? ['--why', quoted(why)] : []),
      ...(life?.trim() ? ['--for', quoted(life.trim())] : [])].join(' ')).join(' && '),
    verb: `${verb} ${what}`,
    fields: verb === 'open' ? [] : [
      { key: 'why', label: 'reason', hint: 'shown to everyone' }, { key: 'life', label: 'for', hint: '30m, 2h; empty: until opened' }],
    isDanger: verb === 'pause',
    act: async ({ why, life }) => {
      const body = verb === 'open' ? {} : { why, for_s: secondsOf(life) };
      const done = [];
      for (const name of names) done.push(await change(`v1/machines/${encodeURIComponent(name)}/${verb}`, body));
      return { changed: done.flatMap((one) => one.changed ?? []), notes: done.flatMap((one) => one.notes ?? []) };
    },
  });
}
