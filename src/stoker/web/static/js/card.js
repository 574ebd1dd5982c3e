// @ts-check
// The model card of a job's result: a text that the job wrote, shown as text.
import { useEffect } from '../vendor/hooks.js';
import { jobPath } from './api.js';
import { quoted } from './format.js';
import { h, html } from './html.js';
import { markdown } from './markdown.js';
import { modelLink } from './models.js';
import { useData } from './state.js';
import { Empty, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').ResultCard} ResultCard */

/** @param {{ job: import('./messages.d.ts').JobView }} props */
export function CardTab({ job }) {
  const { data, error, reload } = /** @type {ReturnType<typeof useData<ResultCard>>} */ (useData(`${jobPath(job.id === job.name ? job.id : job.name)}/card`));
  useEffect(() => reload(), [job.state, job.result]);
  if (!data) return error ? h(Trouble, { error, what: 'model card' }) : html`<p class="quiet">loading…</p>`;
  if (!data.text) return h(Empty, { title: data.note || 'The result has no model card.', command: job.result ? `stoker get ${quoted(job.name)}` : '' });
  return html`<p class="quiet">${data.path} of the result ${data.digest && html`<a href=${modelLink(data.digest)}><code>${data.digest.slice(0, 12)}</code></a>`}</p>
    <article class="card prose" aria-label="model card">${markdown(data.text)}</article>
    ${data.is_cut && html`<p class="quiet">The rest is cut: <code>stoker get ${quoted(job.name)}</code> copies all of it.</p>`}`;
}
