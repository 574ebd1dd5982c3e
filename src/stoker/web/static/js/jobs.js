// @ts-check
// Jobs: a table that filters, sorts, groups, and acts on many.
import { useEffect, useRef, useState } from '../vendor/hooks.js';
import { askMany, canCancel, canPrioritise, canRequeue } from './actions.js';
import { numberOf } from './api.js';
import { ago, cutMiddle, duration, grouped, quoted, shortNumber } from './format.js';
import { h, html } from './html.js';
import { JobRows, PAGE_ROWS } from './job_rows.js';
import { now, onRows } from './live.js';
import { go, jobLink, linkTo, listText, place, setQuery } from './router.js';
import { may, MOST_COMPARED } from './state.js';
import { SubmitLink } from './submit.js';
import { VirtualTable } from './table.js';
import { Command, Empty, Progress, Select, StateBadge, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').JobView} JobView */

const STATES = ['running', 'pending', 'claimed', 'failed', 'completed', 'cancelled'];
const FILTERS = ['state', 'q', 'submitter', 'sweep', 'machine', 'recipe', 'sort'];
/** A list that may have changed is read again after so long, or so many times as long as that takes. */
const SOONEST_MS = 1000;
const TIMES = 20;
/** @type {import('./table.js').Column[]} */
const COLUMNS = [
  { key: 'mark', title: '', className: 'c-mark' },
  { key: 'name', title: 'name', className: 'c-name', sort: 'name' },
  { key: 'state', title: 'state', className: 'c-state', sort: 'state' },
  { key: 'progress', title: 'progress or reason', className: 'c-why' },
  { key: 'machine', title: 'machine', className: 'c-machine' },
  { key: 'user', title: 'user', className: 'c-user' },
  { key: 'priority', title: 'prio', className: 'c-prio', sort: 'priority' },
  { key: 'time', title: 'time', className: 'c-time', sort: 'started' },
  { key: 'submitted', title: 'submitted', className: 'c-submitted', sort: 'submitted' },
];

/** @returns {Record<string, string>} */
const filterOf = () => Object.fromEntries(FILTERS.map((name) => [name, place.value.query.get(name) ?? '']).filter(([, value]) => value));

export function JobsPage() {
  const filter = filterOf();
  const key = JSON.stringify(filter);
  const [, redraw] = useState(0);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [marked, setMarked] = useState(/** @type {Map<string, JobView>} */ (new Map()));
  const rows = useRef(/** @type {JobRows | null} */ (null));
  /** The list that replaces it once it is loaded, or the same one. */
  const coming = useRef(/** @type {JobRows | null} */ (null));
  const lists = () => [...new Set([rows.current, coming.current])].filter((list) => list !== null);
  const now_s = useNow();
  const by = place.value.query.get('group') ?? '';
  useEffect(() => {
    let timer = 0;
    let tookMs = 0;
    /** @param {number} first @param {number} last */
    const load = (first, last) => {
      const begun = Date.now();
      const made = new JobRows(filter, () => {
        if (rows.current !== made) {
          // All that is in view comes first, so that nothing blinks.
          if (made.missing().length) return;
          if (rows.current) rows.current.isClosed = true;
          rows.current = made;
          tookMs = Date.now() - begun;
        }
        setError(null);
        redraw((turn) => turn + 1);
      }, setError, now.value - 1);
      coming.current = made;
      made.view(first, last);
    };
    load(0, 1);
    const again = () => {
      timer ||= setTimeout(() => {
        timer = 0;
        if (document.hidden || coming.current?.isBusy) {
          again();
          return;
        }
        const { first = 0, wanted = 0 } = rows.current ?? {};
        load(first * PAGE_ROWS, (wanted + 1) * PAGE_ROWS);
      }, Math.max(SOONEST_MS, tookMs * TIMES));
    };
    const stop = onRows((changed) => {
      const moved = lists().map((list) => list.change(changed.jobs, changed.counts));
      if (changed.resync || changed.gone.length || moved.includes(true)) again();
      setMarked((before) => {
        const known = changed.jobs.filter((job) => before.has(job.id));
        return known.length ? new Map([...before, ...byId(known)]) : before;
      });
    });
    return () => {
      clearTimeout(timer);
      lists().forEach((list) => { list.isClosed = true; });
      stop();
    };
  }, [key]);
  const table = rows.current;
  const shown = table ? arranged(table, by) : { count: 0, at: () => null };
  /** @param {number} index */
  const mark = (index) => {
    const found = shown.at(index);
    if (!found || typeof found === 'string') return;
    setMarked((before) => {
      const next = new Map(before);
      if (!next.delete(found.id)) next.set(found.id, found);
      return next;
    });
  };
  /** @param {number} index */
  const cells = (index) => {
    const found = shown.at(index);
    if (!found) return null;
    if (typeof found === 'string') return ['', html`<strong>${found}</strong>`, '', '', '', '', '', '', ''];
    return rowOf(found, now_s, marked.has(found.id), () => mark(index));
  };
  /** @param {number} index */
  const parts = (index) => {
    const found = shown.at(index);
    return found && typeof found !== 'string' ? [found, now_s, marked.has(found.id)] : [found];
  };
  const loaded = table && may('submit') ? table.loaded() : [];
  const hasFilter = FILTERS.some((name) => name !== 'sort' && filter[name]);
  return html`<main id="main" class="wide"><div class="row"><h1>Jobs <span class="quiet">${table ? grouped(table.count) : ''}</span></h1><span class="grow"></span>${h(SubmitLink, {})}</div>
    ${h(Filters, { counts: table?.counts ?? {} })}
    ${loaded.some((job) => !marked.has(job.id)) && html`<p class="buttons"><button type="button" class="small"
      onClick=${() => setMarked(new Map([...marked, ...byId(loaded)]))}>select the ${grouped(loaded.length)} loaded jobs</button></p>`}
    ${h(Trouble, { error, what: 'jobs' })}
    ${marked.size > 0 && h(Bulk, { jobs: [...marked.values()], loaded: table?.loaded() ?? [], clear: () => setMarked(new Map()) })}
    ${table && !table.count ? h(Empty, hasFilter ? { title: 'No job matches this filter.', children: html`<p><a href="#/jobs">all jobs</a></p>` }
      : { title: 'No jobs yet. Submit some:', command: 'stoker submit manifest.toml' })
    : h(VirtualTable, {
      label: 'jobs', columns: COLUMNS, count: shown.count, sort: filter.sort ?? 'submitted', row: cells, parts,
      setSort: (sort) => setQuery({ sort: sort === 'submitted' ? '' : sort }),
      rowClass: (index) => (typeof shown.at(index) === 'string' ? 'group' : ''),
      onView: (first, last) => lists().forEach((list) => list.view(first, last)),
      onOpen: (index) => {
        const found = shown.at(index);
        if (found && typeof found !== 'string') go(jobLink(found.name));
      },
      onMark: mark,
    })}
    ${h(Command, { command: commandOf(filter) })}
  </main>`;
}

/**
 * The rows as shown: with a line before each group if they are grouped, of those that are loaded.
 * @param {JobRows} table
 * @param {string} by
 * @returns {{ count: number, at: (index: number) => JobView | string | null }}
 */
function arranged(table, by) {
  if (!by) return { count: table.count, at: (index) => table.row(index) };
  /** @type {Map<string, JobView[]>} */
  const groups = new Map();
  for (const job of table.loaded()) {
    const name = by === 'user' ? job.submitter || 'unknown' : job.name.split('/')[0];
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name)?.push(job);
  }
  /** @type {(JobView | string)[]} */
  const lines = [];
  for (const [name, jobs] of groups) {
    const states = STATES.map((state) => [state, jobs.filter((job) => job.state === state).length]).filter(([, count]) => count);
    lines.push(`${name} — ${states.map(([state, count]) => `${count} ${state}`).join(', ')}`, ...jobs);
  }
  return { count: lines.length + (table.isAll ? 0 : 1), at: (index) => lines[index] ?? null };
}

/** @param {JobView} job @param {number} now_s @param {boolean} isMarked @param {() => void} mark */
function rowOf(job, now_s, isMarked, mark) {
  const [metric] = Object.keys(job.metrics);
  const value = metric ? `${metric} ${shortNumber(numberOf(job.metrics[metric]))}` : '';
  const used = job.started_s ? duration((job.ended_s ?? now_s) - job.started_s) : '–';
  // Tab leaves the table; inside it keys move: j, k, Enter, x.
  return [
    html`<label class="mark"><input type="checkbox" tabindex="-1" checked=${isMarked} onChange=${mark} aria-label=${`select ${job.name}`} /></label>`,
    html`<a href=${jobLink(job.name)} tabindex="-1" title=${job.name}>${cutMiddle(job.name, 40)}</a>${job.label && html` <span class="quiet">${job.label}</span>`}`,
    // Called, not placed as components: of these there are many, and none has a state of its own.
    StateBadge({ state: job.state, cancelling: job.is_cancelling }),
    job.state === 'running' ? html`${Progress({ job })} <span class="quiet">${value}</span>`
      : html`<span title=${job.why || job.says}>${job.why || value}</span>`,
    job.machine || '–', job.submitter || '–', String(job.priority), used, ago(job.submitted_s, now_s),
  ];
}

/** @param {{ counts: Record<string, number> }} props */
function Filters({ counts }) {
  const query = place.value.query;
  const chosen = new Set((query.get('state') ?? '').split(',').filter(Boolean));
  const timer = useRef(0);
  /** @param {string} state */
  const flip = (state) => {
    if (!chosen.delete(state)) chosen.add(state);
    setQuery({ state: [...chosen].join(',') });
  };
  return html`<form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <label class="field"><span>name</span><input type="search" defaultValue=${query.get('q') ?? ''} placeholder="part of a name (/)"
      onInput=${(/** @type {any} */ event) => {
        clearTimeout(timer.current);
        timer.current = setTimeout(() => setQuery({ q: event.target.value }), 250);
      }} /></label>
    <div class="chips" role="group" aria-label="states">${STATES.map((state) => html`<button type="button" key=${state}
      class=${`chip state-${state}`} aria-pressed=${String(chosen.has(state))} onClick=${() => flip(state)}>${state}${
        counts[state] !== undefined ? html` <span class="count">${grouped(counts[state])}</span>` : ''}</button>`)}</div>
    ${h(Select, { label: 'group', value: query.get('group') ?? '', set: (group) => setQuery({ group }),
      options: [['', 'none'], ['sweep', 'by sweep'], ['user', 'by user']] })}
    ${['submitter', 'sweep', 'machine', 'recipe'].filter((name) => query.get(name)).map((name) => html`<button type="button" key=${name}
      class="chip" onClick=${() => setQuery({ [name]: '' })} aria-label=${`remove the filter ${name}`}>${name}: ${query.get(name)} ×</button>`)}
  </form>`;
}

/** @param {JobView[]} jobs @returns {[string, JobView][]} */
const byId = (jobs) => jobs.map((job) => [job.id, job]);

/** @param {{ jobs: JobView[], loaded: JobView[], clear: () => void }} props */
function Bulk({ jobs, loaded, clear }) {
  // A name means its newest job.
  /** @param {JobView} job */
  const refOf = (job) => (loaded.some((other) => other.name === job.name && other.id !== job.id) ? job.id : job.name);
  const stop = jobs.filter(canCancel);
  const start = jobs.filter(canRequeue);
  const order = jobs.filter(canPrioritise);
  return html`<div class="bulk" role="group" aria-label="selected jobs"><strong>${grouped(jobs.length)} selected</strong>
    ${stop.length > 0 && html`<button type="button" class="small" onClick=${() => askMany('cancel', stop, clear)}>cancel ${stop.length}</button>`}
    ${start.length > 0 && html`<button type="button" class="small" onClick=${() => askMany('requeue', start, clear)}>requeue ${start.length}</button>`}
    ${order.length > 0 && html`<button type="button" class="small" onClick=${() => askMany('priority', order, clear)}>priority of ${order.length}</button>`}
    ${jobs.length <= MOST_COMPARED && html`<a class="button small" href=${linkTo(['compare'], { jobs: listText(jobs.map(refOf)) })}>${jobs.length > 1 ? `compare ${jobs.length}` : 'compare…'}</a>`}
    <button type="button" class="small" onClick=${clear}>clear</button></div>`;
}

/** @param {Record<string, string>} filter */
function commandOf(filter) {
  const words = ['stoker jobs'];
  for (const [name, value] of Object.entries(filter)) {
    if (name === 'state') words.push(`--status ${quoted(value)}`);
    if (name === 'recipe') words.push(`--recipe ${quoted(value)}`);
    if (name === 'machine') words.push(`--machine ${quoted(value)}`);
  }
  return words.join(' ');
}
