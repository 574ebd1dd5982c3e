// @ts-check
// Parts that several pages use.
import { useEffect, useRef, useState } from '../vendor/hooks.js';
import { post } from './api.js';
import { cutMiddle, grouped, progress, signOf } from './format.js';
import { h, html } from './html.js';
import { now } from './live.js';
import { jobLink } from './router.js';
import { errorText, say } from './state.js';

/** @typedef {import('./messages.d.ts').JobView} JobView */
/** @typedef {import('./api.js').ApiError} ApiError */

/** A state: sign, word and colour. @param {{ state: string, cancelling?: boolean }} props */
export function StateBadge({ state, cancelling = false }) {
  return html`<span class=${`state state-${state}`}><span class="sign" aria-hidden="true">${signOf(state)}</span>${
    cancelling ? 'cancelling' : state}</span>`;
}

/** @param {{ name: string, most?: number }} props */
export function JobName({ name, most = 44 }) {
  return html`<a class="name" href=${jobLink(name)} title=${name}>${cutMiddle(name, most)}</a>`;
}

/** @param {{ job: JobView }} props */
export function Progress({ job }) {
  const part = progress(job);
  if (part === null) return job.step === null ? null : html`<span class="quiet">step ${grouped(job.step)}</span>`;
  const percent = Math.floor(part * 100);
  return html`<span class="progress"><progress max="100" value=${percent} aria-label=${`progress of ${job.name}`}></progress
    ><span>${percent} %</span></span>`;
}

/** The command that shows or does the same. @param {{ command: string }} props */
export function Command({ command }) {
  return html`<div class="command">
    <code aria-label="the same on a terminal"><span class="prompt" aria-hidden="true">$ </span>${command}</code>
    <button type="button" class="small" onClick=${() => copy(command, 'command copied')}>copy</button>
    <button type="button" class="small" onClick=${() => copy(location.href, 'link copied')}>link</button>
  </div>`;
}

/** @param {string} text @param {string} done */
async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
    say(done);
  } catch {
    say(`this browser does not allow copying here: ${text}`, true);
  }
}

/** @param {{ title: string, children?: any, command?: string }} props */
export function Empty({ title, children, command = '' }) {
  return html`<div class="empty"><p>${title}</p>${children}${command && html`<p><code>${command}</code></p>`}</div>`;
}

/** @param {{ error: ApiError | null, what: string }} props */
export function Trouble({ error, what }) {
  if (!error) return null;
  const text = {
    0: 'connection lost; shown is the last known state',
    403: `permission denied: ${error.message}`,
    404: `${what} not found, perhaps pruned`,
  }[error.status] ?? error.message;
  return html`<div class="trouble" role="alert"><strong>${text}</strong>${error.hint && html`<span>${error.hint}</span>`}</div>`;
}

/**
 * @param {{ label: string, tabs: string[], chosen: string, choose: (name: string) => void }} props
 */
export function Tabs({ label, tabs, chosen, choose }) {
  /** @param {KeyboardEvent} event */
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = tabs[(tabs.indexOf(chosen) + step + tabs.length) % tabs.length];
    choose(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  const row = useRef(/** @type {HTMLElement | null} */ (null));
  // On a phone the row is wider than the window.
  useEffect(() => row.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' }), [chosen]);
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move} ref=${row}>${tabs.map((name) => html`
    <button type="button" role="tab" id=${`tab-${name}`} key=${name} aria-selected=${String(name === chosen)}
      aria-controls="panel" tabindex=${name === chosen ? 0 : -1} onClick=${() => choose(name)}>${name}</button>`)}</div>`;
}

/**
 * @typedef {Record<string, string>} Values
 * @typedef {{ key: string, label: string, value?: string, hint?: string }} DialogField
 * @typedef {{ title: string, text: string, names?: string[], command: (values: Values) => string, verb: string,
 *   fields?: DialogField[], isDanger?: boolean, act: (values: Values) => Promise<any> }} Question
 */

/** @type {{ current: ((question: Question) => void) | null }} */
const asker = { current: null };

/** Ask before something is changed. @param {Question} question */
export function confirm(question) {
  asker.current?.(question);
}

/** Keys go on at the beginning of the page if what had the focus is gone. */
export function focusMain() {
  const main = document.getElementById('main');
  if (!main || (document.activeElement && document.activeElement !== document.body)) return;
  main.tabIndex = -1;
  main.focus({ preventScroll: true });
}

const FOCUS_AFTER_MS = [0, 500, 1500, 3000];

/** The one dialog of the pages. */
export function ConfirmDialog() {
  const [question, setQuestion] = useState(/** @type {Question | null} */ (null));
  const [values, setValues] = useState(/** @type {Values} */ ({}));
  const [trouble, setTrouble] = useState('');
  const [isBusy, setBusy] = useState(false);
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  asker.current = (asked) => {
    setValues(Object.fromEntries((asked.fields ?? []).map((field) => [field.key, field.value ?? ''])));
    setTrouble('');
    setQuestion(asked);
  };
  useEffect(() => {
    if (question && !dialog.current?.open) dialog.current?.showModal();
    // What opened it may go: a job that was cancelled has no such button.
    if (!question) FOCUS_AFTER_MS.forEach((ms) => setTimeout(focusMain, ms));
  }, [question]);
  if (!question) return null;
  const close = () => {
    dialog.current?.close();
    setQuestion(null);
  };
  /** @param {Event} event */
  const act = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setTrouble('');
    try {
      const done = await question.act(values);
      say([...(done?.changed ?? []), ...(done?.notes ?? [])].join('; ') || `${question.verb}: done`);
      close();
    } catch (error) {
      setTrouble(errorText(error));
    } finally {
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} aria-labelledby="question" onClose=${() => setQuestion(null)}>
    <form onSubmit=${act}>
      <h2 id="question">${question.title}</h2>
      <p>${question.text}</p>
      ${question.names && html`<div class="names" tabindex="0" role="region" aria-label="names"><ul>${question.names.map((name) => html`<li key=${name}>${name}</li>`)}</ul></div>`}
      ${(question.fields ?? []).map((field) => html`<label key=${field.key} class="line">${field.label}
        <input value=${values[field.key]} placeholder=${field.hint ?? ''} autocomplete="off"
        onInput=${(/** @type {any} */ event) => setValues({ ...values, [field.key]: event.target.value })} /></label>`)}
      <p><code>${question.command(values)}</code></p>
      ${trouble && html`<p class="trouble" role="alert">${trouble}</p>`}
      <div class="buttons">
        <button type="button" onClick=${close}>keep as it is</button>
        <button type="submit" class=${question.isDanger ? 'danger' : 'primary'} aria-disabled=${isBusy || undefined}>${question.verb}</button>
      </div>
    </form>
  </dialog>`;
}

/** The time by the server's clock, once per second. */
export function useNow() {
  return now.value;
}

/** @param {string} path @param {object} [body] */
export const change = (path, body) => post(path, body);

/** @param {{ label: string, value: string, options: [string, string][], set: (value: string) => void }} props */
export function Select({ label, value, options, set }) {
  return html`<label class="field"><span>${label}</span><select value=${value}
    onChange=${(/** @type {any} */ event) => set(event.target.value)}>${options.map(([key, text]) => html`
      <option key=${key} value=${key}>${text}</option>`)}</select></label>`;
}
export { h };
