// @ts-check
// A manifest that is dropped or chosen: what it would submit, what is wrong with it, and the question whether to.
import { signal } from '../vendor/signals.js';
import { useEffect, useState } from '../vendor/hooks.js';
import { ApiError, post } from './api.js';
import { cutMiddle, grouped, quoted } from './format.js';
import { h, html } from './html.js';
import { go, linkTo, page } from './router.js';
import { may, say } from './state.js';
import { Command, confirm, Empty, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').ManifestView} ManifestView */
/** @typedef {import('./messages.d.ts').FaultView} FaultView */
/** @typedef {import('./messages.d.ts').SubmissionResponse} SubmissionResponse */

const ENDS = ['.toml', '.yaml', '.yml'];
const MOST_BYTES = 2 * 1024 * 1024;
const MOST_SHOWN = 200;
const DROPPED_ON = new Set(['overview', 'jobs', 'submit']);

/** @type {import('../vendor/signals.js').Signal<{ name: string, text: string } | null>} */
const manifest = signal(null);

/** @param {File} file */
async function take(file) {
  if (!ENDS.some((end) => file.name.endsWith(end))) say(`${file.name} is no manifest: its name ends in ${ENDS.join(', ')}`, true);
  else if (file.size > MOST_BYTES) say(`${file.name} is larger than 2 MiB: stoker submit ${quoted(file.name)}`, true);
  else {
    manifest.value = { name: file.name, text: await file.text() };
    if (page.value !== 'submit') go(linkTo(['submit']));
  }
}

/** Take files that are dropped on pages with jobs. @returns {() => void} */
export function listenToDrops() {
  /** @param {boolean} isOver */
  const mark = (isOver) => document.documentElement.classList.toggle('dropping', isOver);
  /** @param {DragEvent} event */
  const listen = (event) => {
    const types = event.dataTransfer?.types ?? [];
    if (!types.includes('Files') || !DROPPED_ON.has(page.value) || !may('submit')) return;
    event.preventDefault();
    mark(event.type === 'dragover');
    const [file, ...more] = event.type === 'drop' ? event.dataTransfer?.files ?? [] : [];
    if (more.length) say('one manifest at a time', true);
    else if (file) take(file);
  };
  /** @type {[keyof DocumentEventMap, any][]} */
  const heard = [['dragover', listen], ['drop', listen], ['dragleave', () => mark(false)]];
  heard.forEach(([kind, call]) => document.addEventListener(kind, call));
  return () => heard.forEach(([kind, call]) => document.removeEventListener(kind, call));
}

/** The way to this page by keys and by touch. */
export const SubmitLink = () => may('submit') && html`<a class="button" href=${linkTo(['submit'])}>submit a manifest…</a>`;

export function SubmitPage() {
  const given = manifest.value;
  const [state, setState] = useState(/** @type {{ of: any, view: ManifestView | null, error: ApiError | null }} */ ({ of: null, view: null, error: null }));
  useEffect(() => {
    if (!given) return;
    post('v1/manifests', { ...given, dry_run: true }).then(
      (view) => setState({ of: given, view, error: null }),
      (error) => setState({ of: given, view: null, error: error instanceof ApiError ? error : new ApiError(String(error), 1) }),
    );
  }, [given]);
  const isChecked = given !== null && state.of === given;
  const view = isChecked ? state.view : null;
  const name = given?.name ?? 'manifest.toml';
  return html`<main id="main"><h1>Submit a manifest</h1>
    ${may('submit') ? html`<p><label class="file">manifest <input type="file" accept=${ENDS.join(',')} onChange=${(/** @type {any} */ event) => {
      if (event.target.files[0]) take(event.target.files[0]);
      event.target.value = '';
    }} /></label> <span class="quiet">or drop one here: TOML or YAML. It is checked first, and nothing is submitted before you confirm.</span></p>`
    : h(Empty, { title: 'Submitting needs the role submit.' })}
    ${given && html`<h2>${cutMiddle(name, 60)}</h2>`}
    ${given && !isChecked && html`<p class="quiet" role="status">checking…</p>`}
    ${isChecked && h(Trouble, { error: state.error, what: name })}
    ${view && given && h(Checked, { view, given })}
    ${h(Command, { command: view?.command || `stoker submit ${quoted(name)}` })}
  </main>`;
}

/** @param {{ view: ManifestView, given: { name: string, text: string } }} props */
function Checked({ view, given }) {
  const kept = view.entries.filter((entry) => entry.why_not);
  return html`${view.fault_count > 0 && html`<p class="bad" role="status">${grouped(view.fault_count)} ${view.fault_count === 1 ? 'error' : 'errors'}: nothing can be submitted</p>${h(Faults, { faults: view.faults })}`}
    ${kept.length > 0 && html`<p class="warn" role="status">${kept.length === 1 ? `${kept[0].name} needs` : `${grouped(kept.length)} jobs need`} more than this file:
      a browser sends no code, data or environment. Type the command below in the folder of ${given.name}.</p>`}
    ${view.notes.map((note) => html`<p key=${note} class="quiet">${note}</p>`)}
    ${view.answer && h(Answer, { answer: view.answer, verb: 'submit', ask: () => askSubmit(view, given) })}
    <div class="scroll" tabindex="0" role="region" aria-label="jobs of the manifest"><table><caption class="hidden">jobs of the manifest</caption>
      <thead><tr><th scope="col">job</th><th scope="col">line</th><th scope="col">runs</th><th scope="col">jobs</th><th scope="col">can be submitted here</th></tr></thead>
      <tbody>${view.entries.slice(0, MOST_SHOWN).map((entry, at) => html`<tr key=${at}><th scope="row">${cutMiddle(entry.name || '(no name)', 60)}</th><td>${entry.line}</td>
        <td><code>${cutMiddle(entry.does, 80)}</code></td><td>${grouped(entry.count)}</td>
        <td>${entry.faults ? html`<span class="bad">✗ ${grouped(entry.faults)} ${entry.faults === 1 ? 'error' : 'errors'}</span>` : entry.why_not ? html`<span class="warn">no: ${entry.why_not}</span>` : 'yes'}</td></tr>`)}</tbody></table></div>
    ${view.entries.length + view.more > MOST_SHOWN && html`<p class="quiet">… and ${grouped(view.entries.length + view.more - MOST_SHOWN)} more</p>`}`;
}

/** Errors, each with its line and key. @param {{ faults: FaultView[] }} props */
export function Faults({ faults }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="errors"><table><caption class="hidden">errors</caption>
    <thead><tr><th scope="col">line</th><th scope="col">key</th><th scope="col">error</th></tr></thead>
    <tbody>${faults.map((fault, at) => html`<tr key=${at}><td>${fault.line || '–'}</td><th scope="row"><code>${cutMiddle(fault.key, 60)}</code></th>
      <td>${fault.message}${fault.hint && html`<span class="quiet"> (${fault.hint})</span>`}${fault.shown && html`<pre>${fault.shown}</pre>`}</td></tr>`)}</tbody></table></div>`;
}

/** What a submission changes, and the button that asks. @param {{ answer: SubmissionResponse, verb: string, ask: () => void }} props */
export function Answer({ answer, verb, ask }) {
  const moving = movingOf(answer);
  return html`<section class="card" aria-label="what is submitted"><p class="row"><strong>${Object.entries(answer.counts).filter(([, count]) => count).map(([word, count]) => `${grouped(count)} ${word}`).join(', ') || 'no jobs'}</strong>
      <span class="grow"></span>${moving > 0 ? html`<button type="button" class="primary" onClick=${ask}>${verb} ${grouped(moving)} ${moving === 1 ? 'job' : 'jobs'}…</button>` : html`<span class="quiet">nothing would change</span>`}</p>
    <ul class="rows">${answer.jobs.slice(0, MOST_SHOWN).map((job) => html`<li key=${job.id}><strong>${cutMiddle(job.number ? `${job.name}/${job.number}` : job.name, 60)}</strong> ${job.outcome}
      <span class="quiet">${job.changes.length ? ` ${job.changes.join(', ')}` : ''}${job.forecast ? ` · ${job.forecast}` : ''}</span></li>`)}</ul>
    ${answer.jobs.length > MOST_SHOWN && html`<p class="quiet">… and ${grouped(answer.jobs.length - MOST_SHOWN)} more</p>`}
    ${answer.vanished.length > 0 && html`<p class="quiet">not in this file any more, and still pending: ${answer.vanished.slice(0, 20).join(', ')}</p>`}</section>`;
}

/** @param {SubmissionResponse} answer */
const movingOf = (answer) => answer.jobs.filter((job) => ['new', 'changed', 'requeued'].includes(job.outcome)).length;

/** @param {ManifestView} view @param {{ name: string, text: string }} given */
function askSubmit(view, given) {
  const jobs = view.answer?.jobs ?? [];
  const count = view.answer ? movingOf(view.answer) : 0;
  const what = `${grouped(count)} ${count === 1 ? 'job' : 'jobs'}`;
  confirm({
    title: `Submit ${what}?`,
    text: `They are the jobs of ${given.name}.`,
    names: jobs.slice(0, MOST_SHOWN).map((job) => (job.number ? `${job.name}/${job.number}` : job.name)),
    command: () => view.command,
    verb: `submit ${what}`,
    act: async () => {
      await post('v1/manifests', given);
      manifest.value = null;
      go(linkTo(['jobs']));
      return { changed: [`${what} submitted`] };
    },
  });
}
