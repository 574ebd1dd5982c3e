// @ts-check
// Machines: what needs attention first, then each with its devices and jobs.
import { useEffect } from '../vendor/hooks.js';
import { askMachine } from './actions.js';
import { ago, clockTime, cutMiddle, grouped, size } from './format.js';
import { h, html } from './html.js';
import { onRows } from './live.js';
import { jobLink } from './router.js';
import { may, useData } from './state.js';
import { Command, Empty, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').MachineView} MachineView */
/** @typedef {import('./messages.d.ts').MachineList} MachineList */

const QUIET = ['ready', 'busy'];

export function MachinesPage() {
  const { data, error, reload } = /** @type {ReturnType<typeof useData<MachineList>>} */ (useData('v1/machines'));
  useEffect(() => onRows((rows) => {
    if (rows.resync || rows.machines.length || rows.jobs.length) reload();
  }), []);
  const machines = [...(data?.machines ?? [])].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  return html`<main id="main"><h1>Machines</h1>
    ${h(Trouble, { error, what: 'machines' })}
    ${data && !machines.length && h(Empty, { title: 'No machines yet. Invite one:', command: 'stoker machines invite' })}
    <div class="machines">${machines.map((machine) => h(Machine, { key: machine.name, machine }))}</div>
    ${h(Command, { command: 'stoker machines' })}
  </main>`;
}

/** @param {MachineView} machine */
const rank = (machine) => (machine.symptoms.length ? 0 : QUIET.includes(machine.state) ? 2 : 1);

/** @param {{ machine: MachineView }} props */
function Machine({ machine }) {
  const now_s = useNow();
  const facts = [
    machine.cores ? `${grouped(machine.cores)} cores` : '',
    machine.ram_bytes ? `${size(machine.ram_bytes)} RAM` : '',
    machine.version ? `Stoker ${machine.version}` : '',
    `seen ${ago(machine.last_seen_s, now_s)}`,
  ].filter(Boolean);
  return html`<section class="card" aria-label=${`machine ${machine.name}`}>
    <div class="row"><h2>${machine.name}</h2><span class=${`chip machine-${machine.state}`}>${machine.state}</span>
      <span>${grouped(machine.held)} of ${grouped(machine.slots)} slots in use</span><span class="grow"></span>${h(Verbs, { machine })}</div>
    <p class="quiet">${facts.join(' · ')}</p>
    ${machine.why && html`<p class="why">${machine.why}${machine.until_s ? ` until ${clockTime(machine.until_s)}` : ''}</p>`}
    ${machine.is_skewed && html`<p class="warn">Its version of Stoker differs from the coordinator's.</p>`}
    ${machine.symptoms.map((one) => html`<p key=${one.symptom} class="warn">! ${one.message || one.symptom}${one.hint && html` · <code>${one.hint}</code>`}</p>`)}
    ${machine.devices.length ? html`<div class="scroll" tabindex="0" role="region" aria-label=${`devices of ${machine.name}`}><table><caption class="hidden">devices of ${machine.name}</caption>
      <thead><tr><th scope="col">device</th><th scope="col">kind</th><th scope="col" class="right">memory</th>
        <th scope="col" class="right">used</th><th scope="col" class="right">util</th><th scope="col" class="right">temperature</th><th scope="col" class="right">power</th><th scope="col">throttle</th></tr></thead>
      <tbody>${machine.devices.map((device, at) => html`<tr key=${device.uuid ?? at}>
        <td><code title=${device.uuid ?? ''}>${cutMiddle(String(device.uuid ?? at), 22)}</code></td>
        <td>${String(device.name ?? device.model ?? device.kind ?? '–')}</td>
        <td class="right">${size(memoryOf(device))}</td>${measured(device.telemetry)}</tr>`)}</tbody></table></div>` : html`<p class="quiet">no accelerators</p>`}
    ${machine.jobs.length ? html`<p>runs ${machine.jobs.slice(0, 12).map((name) => html`<a key=${name} class="chip" href=${jobLink(name)}>${cutMiddle(name, 30)}</a> `)}${
      machine.jobs.length > 12 ? `and ${machine.jobs.length - 12} more` : ''}</p>` : null}
  </section>`;
}

/** What was measured last; a device that does not report a value has a dash, not a zero. @param {Record<string, any> | undefined} found */
function measured(found) {
  /** @param {number | null | undefined} value @param {string} unit */
  const shown = (value, unit) => (typeof value === 'number' ? `${Math.round(value)} ${unit}` : '–');
  const limit = typeof found?.power_limit_w === 'number' ? ` of ${Math.round(found.power_limit_w)}` : '';
  return html`<td class="right">${size(found?.memory_used_bytes ?? null)}</td><td class="right">${shown(found?.utilisation_percent, '%')}</td>
    <td class="right">${shown(found?.temperature_c, '°C')}</td><td class="right">${typeof found?.power_w === 'number' ? `${Math.round(found.power_w)}${limit} W` : '–'}</td>
    <td>${found?.throttle ? found.throttle.join(', ') || 'none' : '–'}</td>`;
}

/** @param {Record<string, any>} device */
const memoryOf = (device) => device.memory_bytes ?? device.vram_bytes ?? device.total_bytes ?? null;

/** @param {{ machine: MachineView }} props */
function Verbs({ machine }) {
  if (!may('operate')) return null;
  const verbs = QUIET.includes(machine.state) ? ['drain', 'cordon', 'pause'] : ['open'];
  return html`<span class="buttons">${verbs.map((verb) => html`<button type="button" key=${verb} class="small"
    aria-label=${`${verb} ${machine.name}`} onClick=${() => askMachine(verb, machine.name)}>${verb}</button>`)}</span>`;
}
