// @ts-check
// One machine: its devices, telemetry over time, health, who holds what, and what ran there.
import { useEffect } from '../vendor/hooks.js';
import { ago, clockTime, cutMiddle, duration, quoted, size, valueText } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { Devices, MachineFacts, MachineHead, heldText } from './machine_parts.js';
import { SPANS, USUAL_HOURS, useSpan } from './machines.js';
import { jobLink, place, setQuery } from './router.js';
import { useData } from './state.js';
import { POINTS, TableSwitch, TelemetryCharts, deviceNames, useTelemetry } from './telemetry.js';
import { Timeline } from './timeline.js';
import { Command, Empty, Select, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').MachineView} MachineView */
/** @typedef {import('./messages.d.ts').TelemetryView} TelemetryView */
/** @typedef {import('./messages.d.ts').TimelineView} TimelineView */

/** @param {{ name: string }} props */
export function MachinePage({ name }) {
  const path = `v1/machines/${encodeURIComponent(name)}`;
  const { data, error, reload } = /** @type {ReturnType<typeof useData<MachineView>>} */ (useData(path));
  useEffect(() => onRows((rows) => {
    if (rows.resync || rows.machines.some((machine) => machine.name === name) || rows.jobs.some((job) => job.machine === name)) reload();
  }), [name]);
  const { hours, from_s } = useSpan();
  const telemetry = useTelemetry(data ? name : null, { from: from_s, points: POINTS }, true);
  if (!data) {
    return html`<main id="main"><h1>${cutMiddle(name, 60)}</h1>${error ? h(Trouble, { error, what: `machine ${name}` }) : html`<p class="quiet">loading…</p>`}
      ${error && html`<p><a href="#/machines">all machines</a></p>`}</main>`;
  }
  const isTable = place.value.query.get('table') === '1';
  return html`<main id="main"><p class="crumb"><a href="#/machines">Machines</a> ›</p>
    ${h(MachineHead, { machine: data, isTitle: true })}${h(MachineFacts, { machine: data })}
    ${h(Trouble, { error, what: `machine ${name}` })}
    <section class="card" aria-labelledby="devices"><h2 id="devices">Devices</h2>${h(Devices, { machine: data })}</section>
    <div class="filters above">${h(Select, { label: 'last', value: String(hours), options: SPANS, set: (value) => setQuery({ hours: value === String(USUAL_HOURS) ? '' : value }) })}${h(TableSwitch, {})}
      ${telemetry.data?.reported_s && h(Reported, { at_s: telemetry.data.reported_s })}</div>
    ${h(Trouble, { error: telemetry.error, what: 'telemetry' })}
    ${telemetry.data && h(OverTime, { view: telemetry.data, isTable })}
    ${h(Ran, { machine: data, view: telemetry.data, from_s, isTable })}
    <div class="cards">${h(Holding, { machine: data })}${h(Health, { machine: data, view: telemetry.data })}</div>
    ${h(Command, { command: `stoker machines show ${quoted(name)}` })}
  </main>`;
}

/** @param {{ at_s: number }} props */
const Reported = ({ at_s }) => html`<span class="quiet">reported ${ago(at_s, useNow())}</span>`;

/** @param {{ view: TelemetryView, isTable: boolean }} props */
function OverTime({ view, isTable }) {
  const hasRows = view.devices.some((device) => device.times_s.length);
  if (!hasRows) return h(Empty, { title: 'Nothing was recorded in this time. A worker records once a second:', command: 'stoker work' });
  return h(TelemetryCharts, { view, isTable });
}

/** What ran, a row per device. @param {{ machine: MachineView, view: TelemetryView | null, from_s: number, isTable: boolean }} props */
function Ran({ machine, view, from_s, isTable }) {
  const { data, error } = /** @type {ReturnType<typeof useData<TimelineView>>} */ (useData('v1/machines/timeline', { from: from_s, machine: machine.name }));
  const uuids = machine.devices.map((device) => String(device.uuid ?? ''));
  const names = view ? deviceNames(view.devices) : [];
  /** @param {string} row */
  const labelOf = (row) => {
    if (!row) return 'processors';
    const at = view?.devices.findIndex((device) => device.device === row) ?? -1;
    return at >= 0 ? names[at] : String(machine.devices.find((device) => device.uuid === row)?.name ?? row);
  };
  return html`<section class="card" aria-labelledby="ran"><h2 id="ran">What ran here</h2>${h(Trouble, { error, what: 'timeline' })}
    ${data && (data.spans.length ? h(Timeline, { view: data, order: uuids, isTable, labelOf, rowsOf: (span) => (span.devices.length ? span.devices : ['']) })
      : html`<p class="quiet">Nothing ran here in this time.</p>`)}</section>`;
}

/** @param {{ machine: MachineView }} props */
function Holding({ machine }) {
  const now_s = useNow();
  return html`<section class="card" aria-labelledby="holding"><h2 id="holding">Who holds what</h2>
    ${machine.holders.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="jobs on this machine"><table><caption class="hidden">jobs on this machine</caption>
      <thead><tr><th scope="col">job</th><th scope="col">devices</th><th scope="col" class="right">device memory</th><th scope="col" class="right">RAM</th><th scope="col" class="right">for</th></tr></thead>
      <tbody>${machine.holders.map((one) => html`<tr key=${one.job}><th scope="row"><a href=${jobLink(one.name)}>${cutMiddle(one.name, 40)}</a></th>
        <td>${one.devices.length ? one.devices.map((uuid) => cutMiddle(uuid, 14)).join(', ') : 'processors'}${one.is_shared ? ' (shared)' : ''}</td>
        <td class="right">${one.devices.length ? heldText(one, one.devices[0]) : '–'}</td><td class="right">${size(one.ram_bytes)}</td>
        <td class="right">${one.started_s ? duration(now_s - one.started_s) : '–'}</td></tr>`)}</tbody></table></div>` : html`<p class="quiet">No job holds anything here.</p>`}</section>`;
}

/** @param {{ machine: MachineView, view: TelemetryView | null }} props */
function Health({ machine, view }) {
  const findings = /** @type {Record<string, any>[]} */ (machine.report?.findings ?? []).filter((one) => one && one.verdict !== 'ok');
  const alerts = [...(view?.alerts ?? [])].sort((a, b) => b.severity - a.severity);
  const isWell = !machine.symptoms.length && !findings.length && !alerts.length && !machine.drift.length;
  return html`<section class="card" aria-labelledby="health"><h2 id="health">Health</h2>
    ${isWell && html`<p class="quiet">No findings, no alerts.</p>`}
    <ul class="rows">${alerts.map((one) => html`<li key=${`${one.device}${one.kind}`}><strong class=${one.severity > 20 ? 'warn' : ''}>! ${one.kind}</strong> ${one.message} <span class="quiet">severity ${one.severity}, for ${duration(one.for_s)}</span></li>`)}
      ${machine.symptoms.map((one) => html`<li key=${`${one.device}${one.symptom}`}><strong class="warn">! ${one.symptom}</strong> ${one.message} <span class="quiet">since ${clockTime(one.since_s)}</span>${one.hint && html` · <code>${one.hint}</code>`}</li>`)}
      ${findings.map((one, at) => html`<li key=${at}><strong class="warn">! ${valueText(one.code ?? one.name ?? 'finding')}</strong> ${valueText(one.message ?? '')}${one.hint && html` · <code>${valueText(one.hint)}</code>`}</li>`)}
      ${machine.drift.map((text) => html`<li key=${text}><strong class="warn">! differs from the cluster file</strong> ${text}</li>`)}</ul></section>`;
}
