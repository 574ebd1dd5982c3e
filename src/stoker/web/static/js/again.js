// @ts-check
// A job again with other values: its settings and its program's words as fields, what would be submitted, the question.
import { useEffect, useState } from '../vendor/hooks.js';
import { ApiError, jobPath, post } from './api.js';
import { cutMiddle, quoted } from './format.js';
import { h, html } from './html.js';
import { go, jobLink, linkTo } from './router.js';
import { useData } from './state.js';
import { Answer, Faults } from './submit.js';
import { Command, confirm, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').RepeatForm} RepeatForm */
/** @typedef {import('./messages.d.ts').RepeatView} RepeatView */
/** @typedef {{ name: string, program: string, more: string, values: Record<string, string> }} Typed */

/** @param {string} ref */
export const againLink = (ref) => linkTo(['again', ref]);

/** @param {{ ref_: string }} props */
export function AgainPage({ ref_ }) {
  const { data, error } = /** @type {ReturnType<typeof useData<RepeatForm>>} */ (useData(`${jobPath(ref_)}/again`));
  return html`<main id="main"><h1>${cutMiddle(ref_, 60)} again</h1>
    ${h(Trouble, { error, what: `job ${ref_}` })}
    ${data ? h(Form, { form: data, ref_ }) : html`${!error && html`<p class="quiet">loading…</p>`}${h(Command, { command: `stoker submit --again ${quoted(ref_)}` })}`}
  </main>`;
}

/** @param {{ form: RepeatForm, ref_: string }} props */
function Form({ form, ref_ }) {
  const [typed, setTyped] = useState(/** @type {Typed} */ ({
    name: form.name, program: form.program, more: '', values: Object.fromEntries(form.settings.map((one) => [one.path, one.text])),
  }));
  const [checked, setChecked] = useState(/** @type {{ body: object, view: RepeatView } | null} */ (null));
  const [error, setError] = useState(/** @type {ApiError | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  // What was checked is not what is typed now.
  useEffect(() => setChecked(null), [typed]);
  const body = bodyOf(form, typed);
  /** @param {Event} event */
  const check = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setError(null);
    try {
      setChecked({ body, view: await post(`${jobPath(ref_)}/again`, { ...body, dry_run: true }) });
    } catch (found) {
      setError(found instanceof ApiError ? found : new ApiError(String(found), 1));
    } finally {
      setBusy(false);
    }
  };
  const view = checked?.view;
  /** @param {string} path @param {string} text */
  const setValue = (path, text) => setTyped({ ...typed, values: { ...typed.values, [path]: text } });
  return html`<p class="quiet">Code, data and environment are those that <a href=${jobLink(ref_)}>${cutMiddle(form.job, 60)}</a> was submitted with.</p>
    ${form.notes.map((note) => html`<p key=${note} class="quiet">${note}</p>`)}
    <form class="settings" onSubmit=${check} autocomplete="off">
      ${h(Line, { label: 'name', value: typed.name, set: (name) => setTyped({ ...typed, name }) })}
      ${form.program && h(Line, { label: 'program', isWide: true, value: typed.program, set: (program) => setTyped({ ...typed, program }) })}
      ${form.settings.map((one) => h(Line, { key: one.path, label: one.path, value: typed.values[one.path], was: one.text, set: (text) => setValue(one.path, text) }))}
      ${h(Line, { label: 'other values', value: typed.more, hint: 'key=value key=value', set: (more) => setTyped({ ...typed, more }) })}
      <div class="buttons"><button type="submit" aria-disabled=${isBusy || undefined}>${form.can_submit ? 'check' : 'show the command'}</button></div>
    </form>
    ${h(Trouble, { error, what: `job ${ref_}` })}
    ${view && html`<div role="status">${view.faults.length > 0 && h(Faults, { faults: view.faults })}
      ${view.differs.length > 0 && html`<ul class="rows">${view.differs.map((line) => html`<li key=${line}><code>${cutMiddle(line, 300)}</code></li>`)}</ul>`}
      ${view.notes.map((note) => html`<p key=${note} class="quiet">${note}</p>`)}</div>
      ${view.answer && h(Answer, { answer: view.answer, verb: 'submit', ask: () => askAgain(ref_, checked.body, view) })}`}
    ${h(Command, { command: view?.command || form.command })}`;
}

/** @param {{ label: string, value: string, set: (text: string) => void, was?: string, hint?: string, isWide?: boolean }} props */
function Line({ label, value, set, was, hint = '', isWide = false }) {
  return html`<label class=${isWide ? 'line wide' : 'line'}><span>${label}${was !== undefined && was !== value && html` <span class="quiet">was ${cutMiddle(was, 40)}</span>`}</span>
    <input value=${value} placeholder=${hint} spellcheck=${false} onInput=${(/** @type {any} */ event) => set(event.target.value)} /></label>`;
}

/** Only what differs is sent. @param {RepeatForm} form @param {Typed} typed */
function bodyOf(form, typed) {
  const changes = form.settings.filter((one) => typed.values[one.path] !== one.text).map((one) => `${one.path}=${typed.values[one.path]}`);
  /** @type {Record<string, any>} */
  const body = { changes: [...changes, ...typed.more.split(/\s+/).filter(Boolean)] };
  if (typed.name.trim() !== form.name) body.name = typed.name.trim();
  if (typed.program !== form.program) body.program = typed.program;
  return body;
}

/** @param {string} ref @param {object} body @param {RepeatView} view */
function askAgain(ref, body, view) {
  confirm({
    title: `Submit ${view.job}?`,
    text: `It is ${ref} with other values.`,
    names: view.differs,
    command: () => view.command,
    verb: 'submit the job',
    act: async () => {
      const done = await post(`${jobPath(ref)}/again`, body);
      go(jobLink(done.job));
      return { changed: [`${done.job} submitted`] };
    },
  });
}
