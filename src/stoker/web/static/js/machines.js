// @ts-check
// Machines: what needs attention first, who ran what where, then each with its devices and jobs.
import { useEffect, useMemo, useState } from '../vendor/hooks.js';
import { askMachines } from './actions.js';
import { grouped, size } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { Devices, MachineFacts, MachineHead, QUIET, rank } from './machine_parts.js';
import { place, setQuery } from './router.js';
import { may, useData, useEvery } from './state.js';
import { TableSwitch } from './telemetry.js';
import { Timeline } from './timeline.js';
import { Command, Empty, Select, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').MachineView} MachineView */
/** @typedef {import('./messages.d.ts').MachineList} MachineList */
/** @typedef {import('./messages.d.ts').TimelineView} TimelineView */

const REFRESH_S = 30;
const FIRST_SHOWN = 40;
/** A longer list is not read again for each change: the stream has the rows of the machines that changed. */
const READ_WHOLE = 40;
/** @type {[string, string][]} */
export const SPANS = [['1', '1 hour'], ['12', '12 hours'], ['24', '1 day'], ['168', '7 days']];
export const USUAL_HOURS = 12;

/** How many hours back the page looks, and since when: the server's clock, in steps, so that one request serves a while. */
export function useSpan() {
  const hours = Number(SPANS.find(([value]) => value === place.value.query.get('hours'))?.[0] ?? USUAL_HOURS);
  const now_s = useNow();
  const [to_s, setTo] = useState(now_s);
  // Also when the first frame tells the server's clock.
  useEffect(() => {
    if (now_s - to_s >= REFRESH_S || now_s < to_s - 1) setTo(now_s);
  }, [Math.floor(now_s)]);
  return { hours, from_s: Math.floor(to_s - hours * 3600) };
}

/** All machines, with the rows that came by the stream since they were read. */
function useMachines() {
  const { data, error, reload } = /** @type {ReturnType<typeof useData<MachineList>>} */ (useData('v1/machines', { brief: 'true' }));
  const [changed, setChanged] = useState(/** @type {Map<string, MachineView>} */ (new Map()));
  const count = data?.machines.length ?? 0;
  useEffect(() => onRows((rows) => {
    if (rows.resync || (count <= READ_WHOLE && (rows.machines.length || rows.jobs.length))) reload();
    else if (rows.machines.length) setChanged((before) => new Map([...before, ...rows.machines.map((one) => /** @type {[string, MachineView]} */ ([one.name, one]))]));
  }), [count <= READ_WHOLE]);
  useEffect(() => setChanged((before) => (before.size ? new Map() : before)), [data]);
  useEvery(reload, REFRESH_S);
  const known = new Map((data?.machines ?? []).map((one) => [one.name, one]));
  if (data) changed.forEach((one, name) => known.set(name, one));
  return { data, error, machines: [...known.values()] };
}

export function MachinesPage() {
  const { data, error, machines } = useMachines();
  const [most, setMost] = useState(FIRST_SHOWN);
  const query = place.value.query;
  const word = (query.get('q') ?? '').toLowerCase();
  const state = query.get('state') ?? '';
  const all = machines.sort((a, b) => rank(a) - rank(b) || byName(a.name, b.name));
  const shown = all.filter((machine) => (!state || machine.state === state) && (!word || textOf(machine).includes(word)));
  return html`<main id="main"><h1>Machines <span class="quiet">${data ? grouped(all.length) : ''}</span></h1>
    ${h(Trouble, { error, what: 'machines' })}
    ${data && !all.length && h(Empty, { title: 'No machines yet. Invite one:', command: 'stoker machines invite' })}
    ${all.length > 0 && html`${h(Totals, { machines: all })}${h(Filters, { machines: all, state })}${(word || state) && h(Many, { machines: shown })}${h(Ran, { machines: shown })}`}
    ${all.length > 0 && !shown.length && h(Empty, { title: 'No machine matches this filter.' })}
    <div class="machines">${shown.slice(0, most).map((machine) => h(Machine, { key: machine.name, machine }))}</div>
    ${shown.length > most && html`<p><button type="button" onClick=${() => setMost(most + 4 * FIRST_SHOWN)}>show ${grouped(Math.min(shown.length - most, 4 * FIRST_SHOWN))} more of ${grouped(shown.length)}</button></p>`}
    ${h(Command, { command: 'stoker machines' })}
  </main>`;
}

/** @param {string} a @param {string} b */
const byName = (a, b) => a.localeCompare(b, 'en', { numeric: true });

/** @param {MachineView} machine */
const textOf = (machine) => [machine.name, machine.why, ...machine.devices.map((device) => device.name ?? ''), ...machine.holders.map((one) => one.name)].join(' ').toLowerCase();

/** The fleet in one line of numbers. @param {{ machines: MachineView[] }} props */
function Totals({ machines }) {
  const present = machines.filter((machine) => !['left', 'silent', 'gone'].includes(machine.state));
  const devices = present.flatMap((machine) => machine.devices);
  const measured = devices.map((device) => device.telemetry).filter(Boolean);
  const hottest = most(measured.map((one) => one.temperature_c));
  const watts = measured.map((one) => one.power_w).filter((value) => typeof value === 'number');
  const used = measured.filter((one) => typeof one.memory_used_bytes === 'number' && one.memory_total_bytes);
  const free = used.length ? size(used.reduce((sum, one) => sum + Math.max(0, one.memory_total_bytes - one.memory_used_bytes), 0)) : '–';
  const attention = machines.filter((machine) => rank(machine) < 2).length;
  /** @type {[string, string | number, string][]} */
  const numbers = [
    ['need attention', attention, attention ? 'failed' : ''], ['present', `${grouped(present.length)} of ${grouped(machines.length)}`, ''],
    ['devices with jobs', devices.length ? `${grouped(devices.filter((device) => device.jobs?.length).length)} of ${grouped(devices.length)}` : '–', 'running'],
    ['device memory free', free, ''], ['hottest', hottest === null ? '–' : `${Math.round(hottest)} °C`, ''],
    ['power', watts.length ? `${grouped(Math.round(watts.reduce((sum, value) => sum + value, 0)))} W` : '–', ''],
  ];
  return html`<ul class="numbers" aria-label="numbers">${numbers.map(([label, value, kind]) => html`<li key=${label} class=${kind ? `tone-${kind}` : ''}><div>
    <strong>${value}</strong><span>${label}</span></div></li>`)}</ul>`;
}

/** @param {(number | null | undefined)[]} values */
function most(values) {
  const known = /** @type {number[]} */ (values.filter((value) => typeof value === 'number'));
  return known.length ? known.reduce((a, b) => Math.max(a, b)) : null;
}

/** @param {{ machines: MachineView[], state: string }} props */
function Filters({ machines, state }) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const machine of machines) counts.set(machine.state, (counts.get(machine.state) ?? 0) + 1);
  return html`<form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <label class="field"><span>filter</span><input type="search" defaultValue=${place.value.query.get('q') ?? ''} placeholder="machine, device or job (/)"
      onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value })} /></label>
    <div class="chips" role="group" aria-label="states">${[...counts].map(([name, count]) => html`<button type="button" key=${name} class=${`chip ${QUIET.includes(name) ? '' : `machine-${name}`}`}
      aria-pressed=${String(name === state)} onClick=${() => setQuery({ state: name === state ? '' : name })}>${name} <span class="count">${grouped(count)}</span></button>`)}</div></form>`;
}

/** Change all machines that match the filter. @param {{ machines: MachineView[] }} props */
function Many({ machines }) {
  if (machines.length < 2 || !may('operate')) return null;
  const open = machines.filter((machine) => QUIET.includes(machine.state)).map((machine) => machine.name);
  const closed = machines.filter((machine) => ['drained', 'cordoned', 'paused'].includes(machine.state)).map((machine) => machine.name);
  return html`<div class="bulk" role="group" aria-label="all that match"><strong>${grouped(machines.length)} match</strong>
    ${open.length > 0 && ['drain', 'cordon', 'pause'].map((verb) => html`<button type="button" key=${verb} class="small" onClick=${() => askMachines(verb, open)}>${verb} ${grouped(open.length)}</button>`)}
    ${closed.length > 0 && html`<button type="button" class="small" onClick=${() => askMachines('open', closed)}>open ${grouped(closed.length)}</button>`}</div>`;
}

/** @param {{ machines: MachineView[] }} props */
function Ran({ machines }) {
  const { hours, from_s } = useSpan();
  const { data, error } = /** @type {ReturnType<typeof useData<TimelineView>>} */ (useData('v1/machines/timeline', { from: from_s }));
  const names = useMemo(() => machines.map((machine) => machine.name).sort(byName), [machines.map((machine) => machine.name).join('\n')]);
  const shown = useMemo(() => {
    const known = new Set(names);
    return data && { ...data, spans: data.spans.filter((span) => known.has(span.machine)) };
  }, [data, names]);
  return html`<section class="card" aria-labelledby="ran"><div class="row"><h2 id="ran">Who ran what where</h2><span class="grow"></span>
      ${h(Select, { label: 'last', value: String(hours), options: SPANS, set: (value) => setQuery({ hours: value === String(USUAL_HOURS) ? '' : value }) })}${h(TableSwitch, {})}</div>
    ${h(Trouble, { error, what: 'timeline' })}
    ${shown && (shown.spans.length ? h(Timeline, { view: shown, order: names, isTable: place.value.query.get('table') === '1' })
      : html`<p class="quiet">Nothing ran here in this time.</p>`)}</section>`;
}

/** @param {{ machine: MachineView }} props */
function Machine({ machine }) {
  // Others change far more often than this one.
  return useMemo(() => html`<section class="card machine" aria-label=${`machine ${machine.name}`}>
    ${h(MachineHead, { machine })}${h(MachineFacts, { machine })}${h(Devices, { machine })}</section>`, [machine]);
}
