// @ts-check
// Logs of a job: the last lines first, followed until one scrolls up, searched by the server. Lines are text nodes.
import { useEffect, useLayoutEffect, useRef, useState } from '../vendor/hooks.js';
import { get, jobPath } from './api.js';
import { grouped } from './format.js';
import { h, html } from './html.js';
import { place, setQuery } from './router.js';
import { Empty, Select, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').LogPage} LogPage */
/** @typedef {import('./messages.d.ts').LogLineView} LogLineView */

const PAGE_LINES = 500;
/** Of a page that follows another one. */
const FOLLOWED_LINES = 2000;
const MOST_LINES = 4000;
const EVERY_MS = 1000;
const SOON_MS = 100;
/** A search reads the whole output. */
const SEARCH_EVERY_MS = 5000;

/** @param {{ job: import('./messages.d.ts').JobView }} props */
export function LogsTab({ job }) {
  const query = place.value.query;
  const node = query.get('stage') ?? '';
  const search = query.get('search') ?? '';
  const [lines, setLines] = useState(/** @type {LogLineView[]} */ ([]));
  const [page, setPage] = useState(/** @type {LogPage | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isFollowing, setFollowing] = useState(true);
  const [oldest, setOldest] = useState(Infinity);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const timer = useRef(0);
  const path = `${jobPath(job.id)}/log`;
  useEffect(() => {
    const stop = new AbortController();
    // Of an earlier coordinator: the number of the next line.
    let start = /** @type {number | undefined} */ (undefined);
    let after = '';
    let pause = 0;
    setLines([]);
    setOldest(Infinity);
    setPage(null);
    const load = async () => {
      let hasMore = false;
      try {
        /** @type {LogPage} */
        const found = await get(path, { node, search, start: search ? undefined : start, after, limit: after ? FOLLOWED_LINES : PAGE_LINES }, stop.signal);
        setError(null);
        setPage(found);
        if (search || start === undefined || found.is_anew) setLines(found.lines);
        else if (found.lines.length) setLines((before) => [...before, ...found.lines].slice(-MOST_LINES));
        const last = found.lines[found.lines.length - 1];
        start = last ? last.number + 1 : start ?? found.total;
        after = found.next;
        hasMore = !search && last !== undefined && last.number + 1 < found.total;
        if (found.is_over && !hasMore) return;
      } catch (trouble) {
        if (stop.signal.aborted) return;
        setError(trouble);
      }
      pause = setTimeout(load, search ? SEARCH_EVERY_MS : hasMore ? SOON_MS : EVERY_MS);
    };
    void load();
    return () => {
      stop.abort();
      clearTimeout(pause);
    };
  }, [path, node, search, job.attempt, job.state]);
  useLayoutEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, page, isFollowing]);
  const older = async () => {
    const first = Math.min(lines[0]?.number ?? 0, oldest);
    const start = Math.max(page?.first ?? 0, first - PAGE_LINES);
    try {
      const found = /** @type {LogPage} */ (await get(path, { node, start, limit: first - start }));
      setFollowing(false);
      // As many as were asked for before some of them were dropped.
      setOldest(start);
      setLines((before) => [...found.lines, ...before].slice(0, MOST_LINES));
    } catch (trouble) {
      setError(trouble);
    }
  };
  const onScroll = () => {
    const element = box.current;
    if (element) setFollowing(element.scrollHeight - element.scrollTop - element.clientHeight < 40);
  };
  const hasOlder = !search && lines.length > 0 && Math.min(lines[0].number, oldest) > (page?.first ?? 0);
  const unfinished = page?.unfinished ?? [];
  return html`<div class="filters">
      <label class="field"><span>search</span><input type="search" defaultValue=${search} onInput=${(/** @type {any} */ event) => {
        clearTimeout(timer.current);
        timer.current = setTimeout(() => setQuery({ search: event.target.value }), 300);
      }} /></label>
      ${(page?.nodes.length ?? 0) > 1 && h(Select, { label: 'stage', value: node, set: (stage) => setQuery({ stage }),
        options: [['', 'all'], .../** @type {[string, string][]} */ ((page?.nodes ?? []).map((name) => [name, name]))] })}
      <label class="check"><input type="checkbox" checked=${isFollowing} onChange=${() => setFollowing(!isFollowing)} /> follow</label>
      <span class="quiet" role="status">${page && (search ? `${grouped(page.matches ?? lines.length)} matching lines` : `${grouped(page.total - page.first)} lines`)}${
        page?.is_over ? ', complete' : ''}${page?.note ? ` · ${page.note}` : ''}</span></div>
    ${h(Trouble, { error, what: 'log' })}
    ${page && !lines.length && !unfinished.length ? h(Empty, { title: search ? 'No line holds this text.' : 'Nothing printed yet.' }) : html`<div class="log" ref=${box} tabindex="0" role="log"
      aria-label=${`output of ${job.name}`} aria-live="off" onScroll=${onScroll}>
      ${hasOlder && html`<button type="button" class="small" onClick=${older}>older lines</button>`}
      ${lines.map((line) => h(LogLine, { key: `${line.node} ${line.number}`, line, withNode: !node && (page?.nodes.length ?? 0) > 1 }))}
      ${unfinished.map((line, at) => h(LogLine, { key: `unfinished ${at}`, line, withNode: !node && (page?.nodes.length ?? 0) > 1 }))}</div>`}`;
}

/** @param {{ line: LogLineView, withNode: boolean }} props */
function LogLine({ line, withNode }) {
  return html`<div class="logline"><span class="number" aria-hidden="true">${line.number}</span>${withNode && html`<span class="node">${line.node}</span>`}<span class="text">${line.text}${
    line.is_cut && html`<span class="quiet"> … cut: the file has all of it</span>`}</span></div>`;
}
