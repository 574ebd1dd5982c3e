// @ts-check
// Models: results by digest, the newest first; and one result with everything that it was made from, back to data and code.
import { useEffect, useState } from '../vendor/hooks.js';
import { ApiError, get, numberOf } from './api.js';
import { ago, clockTime, cutMiddle, grouped, quoted, shortNumber, size } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { jobLink, linkTo, place, setQuery } from './router.js';
import { useData } from './state.js';
import { Command, Empty, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').ModelPage} ModelList */
/** @typedef {import('./messages.d.ts').ModelRow} ModelRow */
/** @typedef {import('./messages.d.ts').LineageInput} LineageInput */
/** @typedef {{ kind: string, title: string, second: string, link: string, layer: number, place: number }} Node */

const PAGE = 50;
const MOST_DEEP = 4;
const MOST_PARENTS = 12;
const MOST_INPUTS = 6;
const SHOWN_DIGITS = 12;

/** @param {string} digest */
export const modelLink = (digest) => linkTo(['model', digest]);

export function ModelsPage() {
  const [rows, setRows] = useState(/** @type {ModelRow[] | null} */ (null));
  const [next, setNext] = useState('');
  const [error, setError] = useState(/** @type {ApiError | null} */ (null));
  const now_s = useNow();
  const word = (place.value.query.get('q') ?? '').toLowerCase();
  /** @param {string} after */
  const load = async (after) => {
    try {
      const found = /** @type {ModelList} */ (await get('v1/models', { after, limit: PAGE }));
      setRows((before) => [...(after ? before ?? [] : []), ...found.models]);
      setNext(found.next);
      setError(null);
    } catch (trouble) {
      setError(trouble instanceof ApiError ? trouble : new ApiError(String(trouble), 0));
    }
  };
  useEffect(() => { void load(''); }, []);
  const isFirst = (rows?.length ?? 0) <= PAGE;
  useEffect(() => onRows((changed) => {
    if (isFirst && (changed.resync || changed.jobs.some((job) => job.result))) void load('');
  }), [isFirst]);
  const shown = (rows ?? []).filter((row) => !word || [row.digest, row.name, row.label, row.recipe, row.submitter, ...row.data.map((one) => one.name)].join(' ').toLowerCase().includes(word));
  return html`<main id="main"><h1>Models</h1>${h(Trouble, { error, what: 'models' })}
    ${!rows && !error && html`<p class="quiet">loading…</p>`}
    ${rows && !rows.length && h(Empty, { title: 'No results yet. A job that completes has one:', command: 'stoker submit manifest.toml' })}
    ${rows && rows.length > 0 && html`<form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label class="field"><span>filter</span><input type="search" defaultValue=${place.value.query.get('q') ?? ''} placeholder="digest, job, recipe or data (/)"
        onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value })} /></label><span class="quiet" role="status">${grouped(shown.length)} of ${grouped(rows.length)} loaded</span></form>
    ${!shown.length && h(Empty, { title: 'No loaded result matches this filter.' })}
    ${shown.length > 0 && html`<div class="card scroll" tabindex="0" role="region" aria-label="results"><table class="nowrap"><caption class="hidden">results, the newest first</caption>
      <thead><tr><th scope="col">digest</th><th scope="col">job</th><th scope="col">recipe</th><th scope="col">metrics</th><th scope="col">data</th><th scope="col" class="right">size</th><th scope="col" class="right">made</th></tr></thead>
      <tbody>${shown.map((row) => html`<tr key=${`${row.digest} ${row.job} ${row.name}`}><th scope="row"><a href=${modelLink(row.digest)}><code>${row.digest.slice(0, SHOWN_DIGITS)}</code></a>${h(Marks, { row })}</th>
        <td><a href=${jobLink(row.name)} title=${row.name}>${cutMiddle(row.name, 36)}</a>${row.label && html` <span class="quiet">${cutMiddle(row.label, 40)}</span>`}</td><td>${row.recipe}</td>
        <td>${metricsText(row, 2) || '–'}</td><td>${row.data.length ? cutMiddle(row.data.map((one) => one.name).join(', '), 40) : '–'}</td>
        <td class="right">${size(row.size_bytes)}</td><td class="right" title=${clockTime(row.made_s)}>${ago(row.made_s, now_s)}</td></tr>`)}</tbody></table></div>`}`}
    ${next && html`<p><button type="button" onClick=${() => load(next)}>older results</button></p>`}
    ${h(Command, { command: 'stoker jobs --status completed' })}
  </main>`;
}

/** @param {{ row: ModelRow }} props */
const Marks = ({ row }) => html`${row.is_pinned && html` <span class="chip">pinned</span>`}${row.is_pruned && html` <span class="chip machine-cordoned">pruned</span>`}`;

/** @param {ModelRow} row @param {number} most */
const metricsText = (row, most) => Object.entries(row.metrics).slice(0, most).map(([name, value]) => `${name} ${shortNumber(numberOf(value))}`).join(' · ');

/** @param {{ digest: string }} props */
export function ModelPage({ digest }) {
  const { data, error } = /** @type {ReturnType<typeof useData<ModelList>>} */ (useData('v1/models', { digest, limit: 20 }));
  const row = data?.models[0];
  const parents = useParents(row ?? null);
  const now_s = useNow();
  if (!data || !row) {
    return html`<main id="main"><h1>Model <code>${cutMiddle(digest, 24)}</code></h1>${error ? h(Trouble, { error, what: 'result' }) : data ? h(Empty, { title: 'No result has this digest; perhaps it was pruned.' }) : html`<p class="quiet">loading…</p>`}
      <p><a href="#/models">all results</a></p></main>`;
  }
  const others = data.models.slice(1).filter((one) => one.digest === row.digest);
  const facts = [row.label, row.recipe, row.machine && `on ${row.machine}`, row.submitter && `by ${row.submitter}`, `${size(row.size_bytes)}`, `made ${ago(row.made_s, now_s)}`].filter(Boolean);
  return html`<main id="main"><p class="crumb"><a href="#/models">Models</a> ›</p>
    <div class="row"><h1><code>${row.digest.slice(0, SHOWN_DIGITS)}</code></h1>${h(Marks, { row })}</div>
    <p>made by <a href=${jobLink(row.name)}>${row.name}</a>${row.attempt > 1 ? `, attempt ${row.attempt}` : ''} <a class="button small" href=${linkTo(['job', row.name], { tab: 'model-card' })}>model card</a></p>
    <p class="quiet">${facts.join(' · ')}</p>
    ${row.is_pruned && html`<p class="why">Its bytes were deleted; what it was made from is still known.</p>`}
    ${others.length > 0 && html`<p>The same bytes were made by ${others.slice(0, 6).map((one) => html`<a key=${one.job} class="chip" href=${jobLink(one.name)}>${cutMiddle(one.name, 30)}</a> `)}</p>`}
    <section class="card" aria-labelledby="lineage"><h2 id="lineage">Made from</h2>${h(Lineage, { row, parents })}</section>
    <div class="cards">${h(Inputs, { title: 'Data', inputs: row.data, none: 'No data by digest is known.' })}${h(Inputs, { title: 'Code', inputs: row.code, none: 'No code by digest is known.' })}
      ${h(Inputs, { title: 'Earlier results', inputs: row.parents, none: 'It needed no other result.' })}
      <section class="card" aria-labelledby="more"><h2 id="more">Facts</h2><dl class="details">
        <dt>digest</dt><dd><code>${row.digest}</code></dd>${row.commit && html`<dt>commit</dt><dd><code>${row.commit}</code></dd>`}
        <dt>environment</dt><dd>${row.environment || 'the machine’s own interpreter'}</dd>
        ${Object.entries(row.metrics).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${shortNumber(numberOf(value))}</dd>`)}</dl></section></div>
    ${h(Command, { command: `stoker get ${quoted(row.name)}` })}
  </main>`;
}

/** @param {{ title: string, inputs: LineageInput[], none: string }} props */
function Inputs({ title, inputs, none }) {
  return html`<section class="card" aria-label=${title}><h2>${title}</h2>${inputs.length ? html`<ul class="rows">${inputs.map((one) => html`<li key=${`${one.name} ${one.digest}`}>
    ${one.job ? html`<a href=${one.digest ? modelLink(one.digest) : jobLink(one.name)}>${one.name}</a>` : one.name} <code class="quiet" title=${one.digest}>${cutMiddle(one.digest, 24)}</code></li>`)}</ul>` : html`<p class="quiet">${none}</p>`}</section>`;
}

/**
 * Load the results that one was made from, and those that these were made from, a few steps back.
 * @param {ModelRow | null} row
 */
function useParents(row) {
  const [found, setFound] = useState(/** @type {Map<string, ModelRow>} */ (new Map()));
  useEffect(() => {
    if (!row) return undefined;
    const stop = new AbortController();
    const walk = async () => {
      /** @type {Map<string, ModelRow>} */
      const known = new Map();
      let wanted = row.parents;
      for (let deep = 0; deep < MOST_DEEP && wanted.length && known.size < MOST_PARENTS; deep += 1) {
        const asked = wanted.filter((one) => one.digest && !known.has(one.digest)).slice(0, MOST_PARENTS - known.size);
        const pages = /** @type {ModelList[]} */ (await Promise.all(asked.map((one) => get('v1/models', { job: one.job, limit: 5 }, stop.signal))));
        const rows = pages.flatMap((page, at) => page.models.filter((one) => one.digest === asked[at].digest).slice(0, 1));
        rows.forEach((one) => known.set(one.digest, one));
        setFound(new Map(known));
        wanted = rows.flatMap((one) => one.parents);
      }
    };
    walk().catch(() => {});
    return () => stop.abort();
  }, [row?.digest]);
  return found;
}

const WIDE = 190;
const HIGH = 44;
const GAP_X = 44;
const GAP_Y = 12;

/** The graph of what a result was made from; the lists below have the same. @param {{ row: ModelRow, parents: Map<string, ModelRow> }} props */
function Lineage({ row, parents }) {
  const { nodes, edges } = graphOf(row, parents);
  const layers = Math.max(...nodes.map((node) => node.layer)) + 1;
  const places = Math.max(...nodes.map((node) => node.place)) + 1;
  const [width, height] = [layers * (WIDE + GAP_X) - GAP_X + 4, places * (HIGH + GAP_Y) - GAP_Y + 4];
  /** @param {Node} node */
  const left = (node) => 2 + (layers - 1 - node.layer) * (WIDE + GAP_X);
  /** @param {Node} node */
  const top = (node) => 2 + node.place * (HIGH + GAP_Y);
  return html`<div class="scroll graph" tabindex="0" role="region" aria-label="graph of what it was made from"><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label=${`made from ${nodes.length - 1} things; the lists below name them`}>
    ${edges.map(([from, to], at) => {
      const [x1, y1, x2, y2] = [left(nodes[from]) + WIDE, top(nodes[from]) + HIGH / 2, left(nodes[to]), top(nodes[to]) + HIGH / 2];
      return html`<path key=${at} class="edge" d=${`M${x1} ${y1} C${x1 + GAP_X / 2} ${y1} ${x2 - GAP_X / 2} ${y2} ${x2} ${y2}`} />`;
    })}
    ${nodes.map((node, at) => {
      const box = html`<rect x=${left(node)} y=${top(node)} width=${WIDE} height=${HIGH} rx="6" /><text x=${left(node) + 10} y=${top(node) + 18}>${cutMiddle(node.title, 23)}</text>
        <text class="second" x=${left(node) + 10} y=${top(node) + 34}>${cutMiddle(node.second, 26)}</text>`;
      return html`<g key=${at} class=${`stage made-${node.kind}`}>${node.link ? html`<a href=${node.link}>${box}</a>` : box}</g>`;
    })}</svg></div>`;
}

/** @param {ModelRow} row @param {Map<string, ModelRow>} parents @returns {{ nodes: Node[], edges: [number, number][] }} */
function graphOf(row, parents) {
  /** @type {Node[]} */
  const nodes = [];
  /** @type {[number, number][]} */
  const edges = [];
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @param {string} key @param {Pick<Node, 'kind' | 'title' | 'second' | 'link'>} node @param {number | null} to @returns {[number, boolean]} */
  const add = (key, node, to) => {
    const before = known.get(key);
    const at = before ?? nodes.push({ ...node, layer: 0, place: 0 }) - 1;
    known.set(key, at);
    if (to !== null) edges.push([at, to]);
    return [at, before === undefined];
  };
  /** @param {LineageInput[]} inputs @param {string} kind @param {number} to */
  const addInputs = (inputs, kind, to) => {
    inputs.slice(0, MOST_INPUTS).forEach((one) => add(`${kind} ${one.digest} ${one.name}`, { kind, title: one.name || kind, second: `${kind} ${one.digest.slice(0, SHOWN_DIGITS)}`, link: '' }, to));
    const left = inputs.length - MOST_INPUTS;
    if (left > 0) add(`more ${kind} ${to}`, { kind, title: `and ${left} more`, second: kind, link: '' }, to);
  };
  /** @param {ModelRow} one @param {number | null} to */
  const walk = (one, to) => {
    const [at, isNew] = add(`model ${one.digest}`, { kind: 'model', title: one.name, second: `result ${one.digest.slice(0, SHOWN_DIGITS)}`, link: to === null ? '' : modelLink(one.digest) }, to);
    if (!isNew) return;
    for (const parent of one.parents.slice(0, MOST_INPUTS)) {
      const found = parents.get(parent.digest);
      if (found) walk(found, at);
      else add(`job ${parent.job}`, { kind: 'model', title: parent.name, second: parent.digest ? `result ${parent.digest.slice(0, SHOWN_DIGITS)}` : 'has no result', link: jobLink(parent.name) }, at);
    }
    addInputs(one.data, 'data', at);
    addInputs(one.code, 'code', at);
  };
  walk(row, null);
  arrange(nodes, edges);
  return { nodes, edges };
}

/** Put each node behind everything that was made from it, and near that. @param {Node[]} nodes @param {[number, number][]} edges */
function arrange(nodes, edges) {
  for (let turn = 0; turn < nodes.length; turn += 1) {
    let isSettled = true;
    for (const [from, to] of edges) {
      // A layer beyond the number of nodes would be a circle, which jobs can't be.
      if (nodes[from].layer > nodes[to].layer || nodes[to].layer + 1 > nodes.length) continue;
      nodes[from].layer = nodes[to].layer + 1;
      isSettled = false;
    }
    if (isSettled) break;
  }
  for (let layer = 1; nodes.some((node) => node.layer === layer); layer += 1) {
    const own = nodes.map((node, at) => ({ node, at })).filter(({ node }) => node.layer === layer);
    const wish = new Map(own.map(({ at }) => {
      const places = edges.filter(([from]) => from === at).map(([, to]) => nodes[to].place);
      return [at, places.reduce((sum, place_) => sum + place_, 0) / Math.max(1, places.length)];
    }));
    own.sort((a, b) => (wish.get(a.at) ?? 0) - (wish.get(b.at) ?? 0)).forEach(({ node }, place_) => { node.place = place_; });
  }
}
