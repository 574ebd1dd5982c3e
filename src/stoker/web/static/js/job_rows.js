// @ts-check
// The rows of the table of jobs: pages of the server, loaded where the table is looked at, a bounded number of them.
import { get } from './api.js';

/** @typedef {import('./messages.d.ts').JobView} JobView */
/** @typedef {import('./messages.d.ts').JobPage} JobPage */

/** The server's `marks` are as far apart. */
export const PAGE_ROWS = 200;
const MOST_PAGES = 25;
/** Fields of a job that change its place in each order. @type {Record<string, (keyof JobView)[]>} */
const SORTED_BY = { started: ['started_s'], ended: ['state', 'ended_s'], priority: ['priority'], state: ['state'] };

export class JobRows {
  /**
   * @param {Record<string, string>} filter
   * @param {() => void} onChange
   * @param {(error: any) => void} onError
   * @param {number} began_s by the server's clock: a job that was submitted later is not in the list
   */
  constructor(filter, onChange, onError, began_s) {
    this.filter = filter;
    this.began_s = began_s;
    this.onChange = onChange;
    this.onError = onError;
    /** @type {Map<number, JobView[]>} */
    this.pages = new Map();
    /** Where each page begins. @type {Map<number, string>} */
    this.cursors = new Map([[0, '']]);
    /** @type {Map<string, [number, number]>} */
    this.places = new Map();
    /** @type {Record<string, number>} */
    this.counts = {};
    this.known = 0;
    this.isAll = false;
    /** @type {number | null} */
    this.total = null;
    this.wanted = 0;
    this.isBusy = false;
    this.isClosed = false;
  }

  /** How many rows the table has, as far as known. */
  get count() {
    return this.total ?? this.known + (this.isAll ? 0 : PAGE_ROWS);
  }

  /** @param {number} index @returns {JobView | null} */
  row(index) {
    return this.pages.get(Math.floor(index / PAGE_ROWS))?.[index % PAGE_ROWS] ?? null;
  }

  /** Load what is in view. @param {number} first @param {number} last */
  view(first, last) {
    this.wanted = Math.floor(Math.max(0, last - 1) / PAGE_ROWS);
    this.first = Math.floor(first / PAGE_ROWS);
    void this.load();
  }

  async load() {
    if (this.isBusy || this.isClosed) return;
    this.isBusy = true;
    try {
      for (;;) {
        const pages = this.missing();
        if (!pages.length) return;
        await Promise.all(pages.map((page) => this.loadPage(page)));
        if (this.isClosed) return;
      }
    } catch (error) {
      this.onError(error);
    } finally {
      this.isBusy = false;
    }
  }

  /** The pages to load next, of those in view. */
  missing() {
    const pages = new Set();
    for (let page = this.first ?? 0; page <= this.wanted; page += 1) {
      if (this.pages.has(page) || page * PAGE_ROWS >= this.count) continue;
      // Without marks pages are chained: from the nearest one before it that is known.
      let known = page;
      while (!this.cursors.has(known)) known -= 1;
      pages.add(known);
    }
    return [...pages];
  }

  /**
   * Load a page until it is full: of a filter that the server has to search for, one answer has what it found in time.
   * @param {number} page
   */
  async loadPage(page) {
    /** @type {JobView[]} */
    const jobs = [];
    let after = this.cursors.get(page);
    for (;;) {
      const marks = page || jobs.length ? '' : 'true';
      /** @type {JobPage} */
      const found = await get('v1/jobs', { ...this.filter, after, limit: PAGE_ROWS - jobs.length, marks });
      if (this.isClosed) return;
      found.jobs.forEach((job, at) => this.places.set(job.id, [page, jobs.length + at]));
      jobs.push(...found.jobs);
      const isWhole = !found.next || jobs.length >= PAGE_ROWS;
      this.take(page, jobs, found, isWhole);
      if (isWhole) return;
      after = found.next;
    }
  }

  /** @param {number} page @param {JobView[]} jobs @param {JobPage} found @param {boolean} isWhole */
  take(page, jobs, found, isWhole) {
    this.pages.delete(page);
    this.pages.set(page, jobs);
    found.marks.forEach((cursor, at) => this.cursors.set(at + 1, cursor));
    if (!found.next) this.isAll = true;
    else if (isWhole) this.cursors.set(page + 1, found.next);
    const end = page * PAGE_ROWS + jobs.length;
    this.known = Math.max(this.known, end);
    if (found.counts && Object.keys(found.counts).length) this.counts = found.counts;
    const all = sumOf(found.counts, this.filter.state);
    this.total = !found.next ? end : all !== null && all >= end ? all : found.total ?? this.total;
    this.forget(page);
    this.onChange();
  }

  /** Keep few pages, the nearest to what is in view. @param {number} page */
  forget(page) {
    while (this.pages.size > MOST_PAGES) {
      const [far] = [...this.pages.keys()].sort((a, b) => Math.abs(b - page) - Math.abs(a - page));
      for (const job of this.pages.get(far) ?? []) this.places.delete(job.id);
      this.pages.delete(far);
    }
  }

  /**
   * Put changed rows in place, and the new numbers by state; return true if the list may be another one now.
   * @param {JobView[]} jobs
   * @param {Record<string, number>} counts of all jobs
   */
  change(jobs, counts) {
    let isOther = false;
    let isChanged = false;
    for (const job of jobs) {
      const at = this.places.get(job.id);
      const page = at && this.pages.get(at[0]);
      const before = at && page ? page[at[1]] : null;
      if (at && page) {
        page[at[1]] = job;
        isChanged = true;
      }
      isOther ||= before ? this.isMoved(before, job) : this.isMoved(null, job) || job.submitted_s >= this.began_s;
    }
    if (!this.isFiltered && Object.keys(counts).length) {
      isChanged ||= Object.entries(counts).some(([state, count]) => this.counts[state] !== count);
      this.counts = counts;
    }
    if (isChanged) this.onChange();
    return isOther;
  }

  /** True if more than states are filtered: numbers of all jobs say nothing then. */
  get isFiltered() {
    return Object.keys(this.filter).some((name) => name !== 'state' && name !== 'sort');
  }

  /** True if a change moves a job in this list, into it or out of it. @param {JobView | null} before @param {JobView} job */
  isMoved(before, job) {
    /** @param {keyof JobView} name */
    const differs = (name) => before === null || before[name] !== job[name];
    const { state, machine, sort = '' } = this.filter;
    return Boolean((state && differs('state')) || (machine && differs('machine')) || (SORTED_BY[sort.replace('-', '')] ?? []).some(differs));
  }

  /** Every row that is loaded, in order. */
  loaded() {
    return [...this.pages.entries()].sort((a, b) => a[0] - b[0]).flatMap(([, jobs]) => jobs);
  }
}

/** @param {Record<string, number> | undefined} counts @param {string | undefined} states */
function sumOf(counts, states) {
  if (!counts || !Object.keys(counts).length) return null;
  const wanted = states ? states.split(',') : Object.keys(counts);
  return wanted.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
}
