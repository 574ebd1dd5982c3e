// @ts-check
// Adapters: a leaderboard per base model, the lowest loss first, and losses against ranks.
import { useEffect } from '../vendor/hooks.js';
import { cutMiddle, grouped, shortNumber, valueText } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { modelLink } from './models.js';
import { jobLink, place, setQuery } from './router.js';
import { useData } from './state.js';
import { Command, Empty, StateBadge, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').AdapterBoard} AdapterBoard */
/** @typedef {import('./messages.d.ts').AdapterBase} AdapterBase */
/** @typedef {import('./messages.d.ts').AdapterRow} AdapterRow */

const FIRST_SHOWN = 20;
const LEAST_COMPARED = 3;
const WIDE = 420;
const HIGH = 190;
const LEFT = 52;
const BOTTOM = 30;

export function AdaptersPage() {
  const { data, error, reload } = /** @type {ReturnType<typeof useData<AdapterBoard>>} */ (useData('v1/adapters'));
  useEffect(() => onRows((rows) => {
    if (rows.resync || rows.jobs.some((job) => job.recipe === 'language/lora')) reload();
  }), []);
  const bases = data?.bases ?? [];
  const hasVal = bases.some((base) => base.adapters.some((row) => row.val_loss !== null));
  return html`<main id="main"><h1>Adapters <span class="quiet">${data ? grouped(bases.reduce((sum, base) => sum + base.total, 0)) : ''}</span></h1>
    ${h(Trouble, { error, what: 'adapters' })}
    ${!data && !error && html`<p class="quiet">loading…</p>`}
    ${data && !bases.length && h(Empty, { title: 'No adapters yet. Train some over one base model:', command: 'stoker adapters run adapters.toml' })}
    ${data?.note && html`<p class="notice">${data.note}</p>`}
    ${bases.map((base) => h(Base, { key: base.base, base }))}
    ${h(Command, { command: `stoker jobs --rank ${hasVal || !bases.length ? 'val_loss' : 'train_loss'} --recipe language/lora` })}
  </main>`;
}

/** @param {{ base: AdapterBase }} props */
function Base({ base }) {
  const isAll = place.value.query.get('all') === base.base;
  const rows = isAll ? base.adapters : base.adapters.slice(0, FIRST_SHOWN);
  const varying = [...new Set(base.adapters.flatMap((row) => Object.keys(row.parameters)))];
  const hasData = new Set(base.adapters.map((row) => row.data)).size > 1;
  const [best] = base.adapters;
  return html`<section class="card base" aria-label=${`adapters of ${base.base}`}>
    <div class="row"><h2 title=${base.base}>${cutMiddle(base.base, 70)}</h2><span class="quiet">${grouped(base.total)} adapters</span></div>
    ${best && lossOf(best) !== null && html`<p>best <a href=${jobLink(best.job)}>${cutMiddle(best.label || best.job, 50)}</a> ${best.val_loss === null ? 'train loss' : 'validation loss'} <strong>${shortNumber(lossOf(best))}</strong>${
      best.rank ? `, rank ${best.rank}` : ''}</p>`}
    <div class="losses">${h(Dots, { base })}${h(Ranks, { base })}</div>
    <div class="scroll" tabindex="0" role="region" aria-label=${`leaderboard of ${base.base}`}><table class="nowrap"><caption class="hidden">adapters of ${base.base}, the lowest loss first</caption>
      <thead><tr><th scope="col" class="right">place</th><th scope="col">adapter</th><th scope="col">state</th><th scope="col" class="right">rank</th><th scope="col" class="right">alpha</th>
        <th scope="col" class="right">val loss</th><th scope="col" class="right">train loss</th><th scope="col" class="right">epoch</th>${hasData && html`<th scope="col">data</th><th scope="col" class="right">on its data</th>`}
        ${varying.map((name) => html`<th scope="col" key=${name}>${name}</th>`)}<th scope="col">result</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.job}><td class="right">${row.place}</td>
        <th scope="row"><a href=${jobLink(row.job)} title=${row.job}>${cutMiddle(row.label || row.job, 44)}</a>${row.label && html` <span class="quiet">${cutMiddle(row.job, 30)}</span>`}</th><td>${h(StateBadge, { state: row.state })}</td>
        <td class="right">${row.rank ?? '–'}</td><td class="right">${shortNumber(row.alpha)}</td><td class="right">${shortNumber(row.val_loss)}</td><td class="right">${shortNumber(row.train_loss)}</td>
        <td class="right">${shortNumber(row.epoch)}</td>${hasData && html`<td>${cutMiddle(row.data.split('/').pop() ?? '', 30) || '–'}</td><td class="right">${row.place_on_data}</td>`}
        ${varying.map((name) => html`<td key=${name}>${row.parameters[name] === undefined || row.parameters[name] === null ? '–' : cutMiddle(valueText(row.parameters[name]), 40)}</td>`)}
        <td>${row.result ? html`<a href=${modelLink(row.result)}><code>${row.result.slice(0, 12)}</code></a>` : '–'}</td></tr>`)}</tbody></table></div>
    ${base.adapters.length > rows.length && html`<p><button type="button" class="small" onClick=${() => setQuery({ all: base.base })}>show all ${grouped(base.adapters.length)}</button></p>`}
    ${base.total > base.adapters.length && html`<p class="quiet">The best ${grouped(base.adapters.length)} of ${grouped(base.total)}.</p>`}
  </section>`;
}

/** The losses of each rank. @param {{ base: AdapterBase }} props */
function Ranks({ base }) {
  /** @type {Map<number, number[]>} */
  const found = new Map();
  for (const row of base.adapters) {
    const loss = lossOf(row);
    if (row.rank && Number.isFinite(loss)) found.set(row.rank, [...(found.get(row.rank) ?? []), Number(loss)]);
  }
  if (found.size < 2 || base.adapters.length < LEAST_COMPARED) return null;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`losses by rank of ${base.base}`}><table><caption class="hidden">losses by rank</caption>
    <thead><tr><th scope="col" class="right">rank</th><th scope="col" class="right">adapters</th><th scope="col" class="right">best loss</th><th scope="col" class="right">median</th><th scope="col" class="right">worst</th></tr></thead>
    <tbody>${[...found].sort((a, b) => a[0] - b[0]).map(([rank, losses]) => {
      losses.sort((a, b) => a - b);
      return html`<tr key=${rank}><th scope="row" class="right">${rank}</th><td class="right">${losses.length}</td><td class="right">${shortNumber(losses[0])}</td>
        <td class="right">${shortNumber(losses[Math.floor((losses.length - 1) / 2)])}</td><td class="right">${shortNumber(losses[losses.length - 1])}</td></tr>`;
    })}</tbody></table></div>`;
}

/** @param {AdapterRow} row */
const lossOf = (row) => row.val_loss ?? row.train_loss;

/** Losses against ranks; the table has the same numbers. @param {{ base: AdapterBase }} props */
function Dots({ base }) {
  const rows = base.adapters.filter((row) => row.rank && Number.isFinite(lossOf(row)));
  const ranks = [...new Set(rows.map((row) => Number(row.rank)))].sort((a, b) => a - b);
  if (rows.length < LEAST_COMPARED || ranks.length < 2) return null;
  const losses = rows.map((row) => Number(lossOf(row)));
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  /** @param {number} rank */
  const x = (rank) => LEFT + 16 + (ranks.indexOf(rank) / (ranks.length - 1)) * (WIDE - LEFT - 32);
  /** @param {number} loss */
  const y = (loss) => HIGH - BOTTOM - 10 - ((loss - low) / Math.max(1e-12, high - low)) * (HIGH - BOTTOM - 26);
  return html`<svg class="dots" viewBox=${`0 0 ${WIDE} ${HIGH}`} role="img" aria-label=${`loss against rank of ${rows.length} adapters: from ${shortNumber(low)} to ${shortNumber(high)}; the table has the numbers`}>
    <line class="axis" x1=${LEFT} y1=${HIGH - BOTTOM} x2=${WIDE} y2=${HIGH - BOTTOM} />
    ${[low, high].map((value) => html`<text key=${value} class="tick end" x=${LEFT - 6} y=${y(value) + 4}>${shortNumber(value)}</text>`)}
    ${ranks.map((rank) => html`<text key=${rank} class="tick middle" x=${x(rank)} y=${HIGH - BOTTOM + 16}>${rank}</text>`)}
    <text class="tick middle" x=${(LEFT + WIDE) / 2} y=${HIGH - 1}>rank</text><text class="tick" x=${LEFT + 4} y="10">loss</text>
    ${rows.map((row) => html`<circle key=${row.job} class=${row.place === 1 ? 'dot best' : 'dot'} cx=${x(Number(row.rank))} cy=${y(Number(lossOf(row)))} r=${row.place === 1 ? 6 : 4.5}><title>${`${row.label || row.job}: rank ${row.rank}, loss ${shortNumber(lossOf(row))}`}</title></circle>`)}
  </svg>`;
}
