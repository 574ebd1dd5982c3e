// @ts-check
// Sweeps: the newest ones, how far each is.
import { useEffect } from '../vendor/hooks.js';
import { ago, cutMiddle, grouped } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { linkTo, place } from './router.js';
import { useData } from './state.js';
import { Command, Empty, StateBadge, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').SweepList} SweepList */
/** @typedef {import('./messages.d.ts').SweepSummary} SweepSummary */

const MOST = 100;
export const SWEEP_STATES = ['completed', 'running', 'claimed', 'pending', 'failed', 'cancelled'];

export function SweepsPage() {
  const after = place.value.query.get('after') ?? '';
  const { data, error, reload } = /** @type {ReturnType<typeof useData<SweepList>>} */ (useData('v1/sweeps', { after, limit: MOST }));
  useEffect(() => onRows((rows) => {
    if (rows.resync || rows.jobs.length || rows.gone.length) reload();
  }), []);
  const sweeps = data?.sweeps ?? [];
  return html`<main id="main"><h1>Sweeps <span class="quiet">${data ? grouped(data.total) : ''}</span></h1>
    ${h(Trouble, { error, what: 'sweeps' })}
    ${!data && !error && html`<p class="quiet">loading…</p>`}
    ${data && !sweeps.length && h(Empty, { title: 'No sweeps yet. A comma or a range in a value makes one:', command: 'stoker run lr=log:1e-4:1e-1:8 -- python train.py --lr {lr}' })}
    ${sweeps.length > 0 && html`<div class="card scroll" tabindex="0" role="region" aria-label="sweeps"><table class="sweeps"><caption class="hidden">sweeps, the newest first</caption>
      <thead><tr><th scope="col">sweep</th><th scope="col">trials</th><th scope="col">states</th><th scope="col">recipe</th><th scope="col">user</th><th scope="col" class="right">submitted</th><th scope="col" class="right">changed</th></tr></thead>
      <tbody>${sweeps.map((sweep) => h(Row, { key: sweep.name, sweep }))}</tbody></table></div>`}
    ${data?.note && html`<p class="quiet">${data.note}</p>`}
    ${(after || data?.next) && html`<p class="buttons">${after && html`<a class="button small" href=${linkTo(['sweeps'])}>the newest</a>`}
      ${data?.next && html`<a class="button small" href=${linkTo(['sweeps'], { after: data.next })}>older ones</a>`}</p>`}
    ${h(Command, { command: 'stoker jobs' })}
  </main>`;
}

/** @param {{ sweep: SweepSummary }} props */
function Row({ sweep }) {
  const now_s = useNow();
  return html`<tr><th scope="row"><a href=${linkTo(['sweep', sweep.name])} title=${sweep.name}>${cutMiddle(sweep.name, 44)}</a></th>
    <td class="bar">${h(StateBar, { jobs: sweep.jobs, total: sweep.total })}<span class="quiet count">${grouped(endedIn(sweep.jobs))} of ${grouped(sweep.total)}</span></td>
    <td>${SWEEP_STATES.filter((state) => sweep.jobs[state]).map((state) => html`<span key=${state} class="pair">${h(StateBadge, { state })} ${grouped(sweep.jobs[state])}</span> `)}</td>
    <td>${sweep.recipe || '–'}</td><td>${sweep.submitter || '–'}</td>
    <td class="right">${ago(sweep.submitted_s, now_s)}</td><td class="right">${ago(sweep.changed_s, now_s)}</td></tr>`;
}

/** @param {Record<string, number>} jobs */
const endedIn = (jobs) => (jobs.completed ?? 0) + (jobs.failed ?? 0) + (jobs.cancelled ?? 0);

/** How many trials are in which state, as a bar; words stand beside it. @param {{ jobs: Record<string, number>, total: number }} props */
export function StateBar({ jobs, total }) {
  let left = 0;
  const parts = SWEEP_STATES.filter((state) => jobs[state]).map((state) => {
    const width = (100 * jobs[state]) / Math.max(1, total);
    left += width;
    return { state, width, left: left - width };
  });
  const text = SWEEP_STATES.filter((state) => jobs[state]).map((state) => `${grouped(jobs[state])} ${state}`).join(', ');
  return html`<svg class="statebar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${text || 'no trials'}>${parts.map((part) => html`
    <rect key=${part.state} class=${`fill-${part.state}`} x=${part.left} y="0" width=${part.width} height="8" />`)}</svg>`;
}
