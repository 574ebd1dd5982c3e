// @ts-check
// Simulation: when is all done if machines are added, leave or attempts fail, beside today. The change is part of the link.
import { useEffect, useRef, useState } from '../vendor/hooks.js';
import { ApiError, post } from './api.js';
import { TimeChart } from './charts.js';
import { clockTime, duration, grouped, quoted, shortTime } from './format.js';
import { h, html } from './html.js';
import { jobLink, place, setQuery } from './router.js';
import { Command, Empty, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').SimulationView} SimulationView */
/** @typedef {import('./messages.d.ts').SimulationForecast} SimulationForecast */
/** @typedef {import('./messages.d.ts').SimulatedStart} SimulatedStart */
/** @typedef {{ add: { like: string, count: number }[], remove: string[], after_h: number, fail: number }} Change */

const MOST_COUNT = 1000;
const MOST_FAIL = 90;
const MOST_ADDS = 20;
const FIRST_JOBS = 25;

/** @returns {Change} */
function changeOf() {
  const query = place.value.query;
  const add = (query.get('add') ?? '').split(',').filter(Boolean).slice(0, MOST_ADDS).map((text) => {
    const at = text.lastIndexOf(':');
    const count = Number(text.slice(at + 1));
    return at > 0 && Number.isInteger(count) ? { like: text.slice(0, at), count: Math.max(1, Math.min(MOST_COUNT, count)) } : { like: text, count: 1 };
  });
  const fail = Number(query.get('fail') ?? 0);
  const after_h = Number(query.get('after') ?? 0);
  return { add, remove: (query.get('leave') ?? '').split(',').filter(Boolean), after_h: after_h >= 0 ? after_h : 0, fail: fail >= 0 && fail <= MOST_FAIL ? fail : 0 };
}

/** @param {Partial<Change>} part */
function setChange(part) {
  const next = { ...changeOf(), ...part };
  setQuery({
    add: next.add.map((one) => `${one.like}:${one.count}`).join(','), leave: next.remove.join(','),
    after: next.after_h && next.remove.length ? String(next.after_h) : '', fail: next.fail ? String(next.fail) : '',
  });
}

/** @param {Change} change */
function commandOf({ add, remove, after_h, fail }) {
  const words = ['stoker admin simulate --live'];
  if (add.length) words.push(`--add ${quoted(add.map((one) => `${one.like}:${one.count}`).join(','))}`);
  if (remove.length) words.push(`--leave ${quoted(remove.map((name) => (after_h ? `${name}:${after_h}h` : name)).join(','))}`);
  if (fail) words.push(`--fail ${fail / 100}`);
  return words.join(' ');
}

export function SimulationPage() {
  const [view, setView] = useState(/** @type {SimulationView | null} */ (null));
  const [error, setError] = useState(/** @type {ApiError | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  const [turn, setTurn] = useState(0);
  // One at a time: the coordinator refuses more than two of a user.
  const before = useRef(Promise.resolve());
  const change = changeOf();
  const key = JSON.stringify(change);
  useEffect(() => {
    let isOver = false;
    const ask = async () => {
      // Something else is asked for by now.
      if (isOver) return;
      try {
        const found = await post('v1/simulate', { add: change.add, remove: change.remove, remove_after_s: change.after_h * 3600, fail: change.fail / 100 });
        if (!isOver) {
          setView(found);
          setError(null);
        }
      } catch (trouble) {
        if (!isOver) setError(trouble instanceof ApiError ? trouble : new ApiError(String(trouble), 0));
      }
      if (!isOver) setBusy(false);
    };
    setBusy(true);
    before.current = before.current.then(ask);
    return () => { isOver = true; };
  }, [key, turn]);
  const isChanged = Boolean(change.add.length || change.remove.length || change.fail);
  return html`<main id="main"><h1>Simulation</h1>
    <p class="quiet">When is all done if machines are added or leave? The scheduler decides over the present queue in simulated time; nothing is started.</p>
    ${h(Trouble, { error, what: 'schedule' })}
    ${!view && !error && html`<p class="quiet">simulating…</p>`}
    ${view && html`${h(Form, { view, change })}
      <div aria-live="polite" aria-busy=${String(isBusy)} class=${isBusy ? 'busy' : ''}>${h(Answer, { view, isChanged })}</div>
      ${h(Waiting, { view })}${h(Waits, { view })}${h(Starts, { view })}
      <p class="quiet">As of ${clockTime(view.at_s)}. <button type="button" class="small" disabled=${isBusy} onClick=${() => setTurn(turn + 1)}>simulate again</button></p>`}
    ${h(Command, { command: commandOf(change) })}
  </main>`;
}

/** @param {{ view: SimulationView, change: Change }} props */
function Form({ view, change }) {
  const [like, setLike] = useState('');
  const [count, setCount] = useState('1');
  const [leaver, setLeaver] = useState('');
  const machines = view.kinds.slice(0, view.now.machines);
  const isKnown = view.kinds.includes(like.trim());
  /** @param {Event} event */
  const add = (event) => {
    event.preventDefault();
    const number = Math.round(Number(count));
    if (!isKnown || !(number >= 1 && number <= MOST_COUNT)) return;
    const others = change.add.filter((one) => one.like !== like.trim());
    setChange({ add: [...others, { like: like.trim(), count: number }].slice(-MOST_ADDS) });
    setLike('');
    setCount('1');
  };
  /** @param {Event} event */
  const leave = (event) => {
    event.preventDefault();
    if (!machines.includes(leaver)) return;
    setChange({ remove: [...new Set([...change.remove, leaver])] });
    setLeaver('');
  };
  return html`<section class="card what-if" aria-labelledby="what-if"><h2 id="what-if">What if</h2>
    <datalist id="kinds">${view.kinds.map((kind) => html`<option key=${kind} value=${kind}></option>`)}</datalist>
    <datalist id="leavers">${machines.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
    <form class="filters" onSubmit=${add}><label class="field"><span>add machines like</span><input list="kinds" value=${like} autocomplete="off" placeholder="a machine, or rtx-4090"
        aria-invalid=${like && !isKnown ? 'true' : undefined} onInput=${(/** @type {any} */ event) => setLike(event.target.value)} /></label>
      <label class="field"><span>×</span><input type="number" min="1" max=${MOST_COUNT} class="narrow" aria-label="how many" value=${count} onInput=${(/** @type {any} */ event) => setCount(event.target.value)} /></label>
      <button type="submit" disabled=${!isKnown}>add</button>${chips(change.add.map((one) => [`${one.count} × ${one.like}`, () => setChange({ add: change.add.filter((other) => other !== one) })]))}</form>
    <form class="filters" onSubmit=${leave}><label class="field"><span>machine that leaves</span><input list="leavers" value=${leaver} autocomplete="off" placeholder="name of a machine"
        onInput=${(/** @type {any} */ event) => setLeaver(event.target.value)} /></label>
      <button type="submit" disabled=${!machines.includes(leaver)}>leaves</button>
      ${change.remove.length > 0 && html`<label class="field"><span>after hours</span><input type="number" min="0" max="8760" step="any" class="narrow" value=${change.after_h} onChange=${(/** @type {any} */ event) => setChange({ after_h: Math.max(0, Number(event.target.value) || 0) })} /></label>`}
      ${chips(change.remove.map((name) => [name, () => setChange({ remove: change.remove.filter((other) => other !== name) })]))}</form>
    <div class="filters"><label class="field"><span>attempts that fail, %</span><input type="number" min="0" max=${MOST_FAIL} step="any" class="narrow" value=${change.fail}
      onChange=${(/** @type {any} */ event) => setChange({ fail: Math.min(MOST_FAIL, Math.max(0, Number(event.target.value) || 0)) })} /></label></div></section>`;
}

/** @param {[string, () => void][]} found */
const chips = (found) => html`<span class="chips">${found.map(([text, remove]) => html`<button type="button" key=${text} class="chip" aria-label=${`remove ${text}`} onClick=${remove}>${text} ×</button>`)}</span>`;

/** @param {SimulationForecast} forecast @param {number} at_s */
const lastsText = (forecast, at_s) => (forecast.done_s === null ? 'not all' : duration(forecast.done_s - at_s));

/** @param {{ view: SimulationView, isChanged: boolean }} props */
function Answer({ view, isChanged }) {
  const { now, changed } = view;
  if (!now.jobs && !now.unfinished) return h(Empty, { title: 'Nothing waits or runs. Submit some jobs:', command: 'stoker submit manifest.toml' });
  return html`<div class="answers">${h(Forecast, { title: 'as it is', forecast: now, at_s: view.at_s })}
      ${changed && isChanged && h(Forecast, { title: 'with the change', forecast: changed, at_s: view.at_s, isMain: true })}
      ${changed && isChanged && h(Difference, { now, changed })}</div>
    ${(now.is_guess || changed?.is_guess) && html`<p class="quiet">Durations of some jobs are unknown: these times are guesses.</p>`}
    ${view.blocked > 0 && html`<p class="quiet">${grouped(view.blocked)} pending jobs wait for others, and are not simulated.</p>`}
    ${view.note && html`<p class="quiet">${view.note}</p>`}`;
}

/** @param {{ title: string, forecast: SimulationForecast, at_s: number, isMain?: boolean }} props */
function Forecast({ title, forecast, at_s, isMain = false }) {
  return html`<section class=${`card answer${isMain ? ' main' : ''}`} aria-label=${title}><span class="quiet">${title}</span>
    <strong>${forecast.done_s === null ? 'never all' : shortTime(forecast.done_s)}</strong>
    <span>${forecast.done_s === null ? html`<span class="warn">${grouped(forecast.unfinished)} jobs fit no machine</span>` : `all done in ${lastsText(forecast, at_s)}`}</span>
    <span class="quiet">${grouped(forecast.machines)} machines · ${grouped(forecast.jobs)} jobs${forecast.failures ? ` · ${grouped(forecast.failures)} attempts fail` : ''}</span>
    ${forecast.omitted > 0 && html`<span class="warn">without ${grouped(forecast.omitted)} ${forecast.omitted === 1 ? 'job that fits' : 'jobs that fit'} no machine, even an idle one</span>`}</section>`;
}

/** @param {{ now: SimulationForecast, changed: SimulationForecast }} props */
function Difference({ now, changed }) {
  if (now.done_s === null || changed.done_s === null) {
    const fewer = now.unfinished - changed.unfinished;
    return html`<section class="card answer" aria-label="difference"><span class="quiet">difference</span><strong>${fewer === 0 ? '–' : grouped(Math.abs(fewer))}</strong>
      <span>${fewer === 0 ? 'as many jobs fit no machine' : fewer > 0 ? 'more jobs find a machine' : 'fewer jobs find a machine'}</span></section>`;
  }
  const saved = now.done_s - changed.done_s;
  const word = Math.abs(saved) < 1 ? 'the same time' : saved > 0 ? 'earlier' : 'later';
  return html`<section class="card answer" aria-label="difference"><span class="quiet">difference</span><strong class=${saved >= 1 ? 'good' : saved <= -1 ? 'bad' : ''}>${Math.abs(saved) < 1 ? '±0' : duration(Math.abs(saved))}</strong><span>${word}</span></section>`;
}

/** Jobs that wait, over time. @param {{ view: SimulationView }} props */
function Waiting({ view }) {
  const isTable = place.value.query.get('table') === '1';
  /** @param {SimulationForecast} forecast @param {string} label @param {number} at */
  const lineOf = (forecast, label, at) => {
    const values = /** @type {(number | null)[]} */ (forecast.waiting);
    return { label, at, times: values.map((_one, step) => view.at_s + step * forecast.step_s), low: values, mean: values, high: values };
  };
  const lines = [lineOf(view.now, 'as it is', 0), ...(view.changed ? [lineOf(view.changed, 'with the change', 1)] : [])].filter((line) => line.times.length > 1);
  if (!lines.length || !lines.some((line) => line.mean.some(Boolean))) return null;
  const to = Math.max(...lines.map((line) => line.times[line.times.length - 1]));
  const period = Math.max(view.now.step_s, view.changed?.step_s ?? 0);
  return html`<label class="check above"><input type="checkbox" checked=${isTable} onChange=${() => setQuery({ table: isTable ? '' : '1' })} /> as a table</label>
    ${h(TimeChart, { title: 'Jobs that wait', unit: '', lines, from: view.at_s, to, period, bounds: [0, null], isTable })}`;
}

/** @param {{ view: SimulationView }} props */
function Waits({ view }) {
  const rows = view.now.waits;
  if (!rows.length) return null;
  return html`<section class="card above" aria-labelledby="waits"><h2 id="waits">How long jobs wait</h2><div class="scroll" tabindex="0" role="region" aria-label="waiting times"><table class="nowrap"><caption class="hidden">waiting times by priority</caption>
    <thead><tr><th scope="col">priority</th><th scope="col" class="right">jobs</th><th scope="col" class="right">median</th><th scope="col" class="right">95 %</th><th scope="col" class="right">longest</th>${view.changed && html`<th scope="col" class="right">median then</th><th scope="col" class="right">95 % then</th><th scope="col" class="right">longest then</th>`}</tr></thead>
    <tbody>${rows.map((row) => {
      const then = view.changed?.waits.find((one) => one.priority === row.priority);
      return html`<tr key=${row.priority}><th scope="row">${row.priority}</th><td class="right">${grouped(row.jobs)}</td><td class="right">${duration(row.median_s)}</td><td class="right">${duration(row.p95_s)}</td><td class="right">${duration(row.max_s)}</td>
        ${view.changed && html`<td class="right">${duration(then?.median_s)}</td><td class="right">${duration(then?.p95_s)}</td><td class="right">${duration(then?.max_s)}</td>`}</tr>`;
    })}</tbody></table></div></section>`;
}

/** @param {{ view: SimulationView }} props */
function Starts({ view }) {
  const [most, setMost] = useState(FIRST_JOBS);
  if (!view.jobs.length) return null;
  /** @param {SimulatedStart | null} start */
  const text = (start) => (!start || start.starts_s === null ? 'never' : `${shortTime(start.starts_s)}${start.is_guess ? ' ?' : ''}`);
  return html`<section class="card above" aria-labelledby="starts"><h2 id="starts">Next jobs</h2><div class="scroll" tabindex="0" role="region" aria-label="table of the next jobs"><table class="nowrap"><caption class="hidden">the next jobs with machine and start</caption>
    <thead><tr><th scope="col">job</th><th scope="col">machine</th><th scope="col">starts</th>${view.changed && html`<th scope="col">machine then</th><th scope="col">starts then</th>`}</tr></thead>
    <tbody>${view.jobs.slice(0, most).map((one) => html`<tr key=${one.job}><th scope="row"><a href=${jobLink(one.job)}>${one.job}</a></th><td>${one.now.machine || '–'}</td><td>${text(one.now)}</td>
      ${view.changed && html`<td>${one.changed?.machine || '–'}</td><td>${text(one.changed)}</td>`}</tr>`)}</tbody></table></div>
    ${view.jobs.length > most && html`<p><button type="button" class="small" onClick=${() => setMost(most + 100)}>show more of ${grouped(view.jobs.length)}</button></p>`}</section>`;
}
