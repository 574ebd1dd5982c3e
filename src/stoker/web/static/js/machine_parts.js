// @ts-check
// Parts of machines that the list and the page of one machine share: state, verbs, findings, devices, who holds what.
import { askMachine } from './actions.js';
import { useSeen } from './charts.js';
import { ago, clockTime, cutMiddle, grouped, size } from './format.js';
import { h, html } from './html.js';
import { Spark } from './spark.js';
import { jobLink, linkTo } from './router.js';
import { may } from './state.js';
import { useTelemetry } from './telemetry.js';
import { useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').MachineView} MachineView */
/** @typedef {import('./messages.d.ts').MachineHolder} MachineHolder */
/** @typedef {import('./messages.d.ts').DeviceTelemetryView} DeviceTelemetryView */

export const QUIET = ['ready', 'busy'];
const MOST_HOLDERS = 12;
const SPARK_POINTS = 60;

/** What needs attention comes first. @param {MachineView} machine */
export const rank = (machine) => (machine.symptoms.length ? 0 : QUIET.includes(machine.state) ? 2 : 1);

/** @param {string} name */
export const machineLink = (name) => linkTo(['machine', name]);

/** @param {{ machine: MachineView, isTitle?: boolean }} props */
export function MachineHead({ machine, isTitle = false }) {
  const name = isTitle ? html`<h1>${machine.name}</h1>` : html`<h2><a href=${machineLink(machine.name)}>${machine.name}</a></h2>`;
  return html`<div class="row">${name}<span class=${`chip machine-${machine.state}`}>${machine.state}</span>
    <span>${grouped(machine.held)} of ${grouped(machine.slots)} slots in use</span><span class="grow"></span>${h(Verbs, { machine })}</div>`;
}

/** @param {{ machine: MachineView }} props */
export function MachineFacts({ machine }) {
  const now_s = useNow();
  const facts = [
    machine.cores ? `${grouped(machine.cores)} cores` : '',
    machine.ram_bytes ? `${size(machine.ram_bytes)} RAM` : '',
    machine.version ? `Stoker ${machine.version}` : '',
    `seen ${ago(machine.last_seen_s, now_s)}`,
    machine.ends_s ? `leaves ${clockTime(machine.ends_s)}` : '',
  ].filter(Boolean);
  return html`<p class="quiet">${facts.join(' · ')}</p>
    ${machine.why && html`<p class="why">${machine.why}${machine.until_s ? ` until ${clockTime(machine.until_s)}` : ''}</p>`}
    ${machine.is_skewed && html`<p class="warn">Its version of Stoker differs from the coordinator's.</p>`}
    ${machine.symptoms.map((one) => html`<p key=${`${one.device}${one.symptom}`} class="warn">! ${one.message || one.symptom} <span class="quiet">${ago(one.since_s, now_s)}</span>${one.hint && html` · <code>${one.hint}</code>`}</p>`)}`;
}

/** @param {{ machine: MachineView }} props */
function Verbs({ machine }) {
  if (!may('operate')) return null;
  const verbs = QUIET.includes(machine.state) ? ['drain', 'cordon', 'pause'] : ['open'];
  return html`<span class="buttons">${verbs.map((verb) => html`<button type="button" key=${verb} class="small"
    aria-label=${`${verb} ${machine.name}`} onClick=${() => askMachine(verb, machine.name)}>${verb}</button>`)}</span>`;
}

/** The host and its devices, with memory, present values, the last hour and who holds them. @param {{ machine: MachineView }} props */
export function Devices({ machine }) {
  const [box, isSeen] = useSeen();
  const { data } = useTelemetry(isSeen ? machine.name : null, { points: SPARK_POINTS }, true);
  /** @param {string} uuid */
  const past = (uuid) => data?.devices.find((one) => one.device === uuid);
  const isHost = Object.keys(machine.host).length > 0 || !machine.devices.length;
  const ram = machine.holders.reduce((sum, one) => sum + (one.ram_bytes ?? 0), 0);
  const host = { uuid: '', telemetry: machine.host, total_bytes: machine.ram_bytes, promised_bytes: machine.holders.length ? ram : 0 };
  return html`<div ref=${box}><table class="devices" role="table"><caption class="hidden">devices of ${machine.name}</caption>
      <thead role="rowgroup"><tr role="row">${['device', 'memory', 'util', 'temp', 'power', 'throttle', 'last hour'].map((title) => html`<th role="columnheader" scope="col" key=${title}>${title}</th>`)}</tr></thead>
      <tbody role="rowgroup">${machine.devices.map((device, at) => h(Device, { key: device.uuid ?? at, machine, device, past: past(String(device.uuid ?? '')), title: String(device.name || device.model || device.kind || `device ${at}`) }))}
        ${isHost && h(Device, { key: 'host', machine, device: host, past: past(''), title: machine.devices.length ? 'host' : 'host, no accelerators' })}</tbody></table></div>`;
}

/** @param {{ machine: MachineView, device: Record<string, any>, past: DeviceTelemetryView | undefined, title: string }} props */
function Device({ machine, device, past, title }) {
  const uuid = String(device.uuid ?? '');
  return html`<tr role="row"><th role="rowheader" scope="row"><span>${title}</span>${uuid && html`<code class="quiet" title=${uuid}>${cutMiddle(uuid, 18)}</code>`}
      ${device.closed && html`<span class="warn">! ${device.closed}</span>`}</th>
    <td role="cell" data-label="memory">${h(Memory, { device })}${h(Holders, { machine, uuid })}</td>${values(device.telemetry)}
    <td role="cell" data-label="last hour">${h(Past, { past, name: `${title} of ${machine.name}` })}</td></tr>`;
}

/** @param {{ past: DeviceTelemetryView | undefined, name: string }} props */
function Past({ past, name }) {
  const found = past?.series.find((one) => one.channel === 'utilisation');
  return found ? h(Spark, { values: found.high, label: `utilisation of ${name} in the last hour`, low: 0, high: 100 }) : html`<span class="quiet">–</span>`;
}

/** What was measured last; a device that does not report a value has a dash, not a zero. @param {Record<string, any> | undefined} found */
function values(found) {
  /** @param {number | null | undefined} value @param {string} unit */
  const shown = (value, unit) => (typeof value === 'number' ? `${Math.round(value)} ${unit}` : '–');
  const limit = typeof found?.power_limit_w === 'number' ? ` of ${Math.round(found.power_limit_w)}` : '';
  const isSlowed = Boolean(found?.throttle?.length);
  return html`<td role="cell" data-label="util" class="number">${shown(found?.utilisation_percent, '%')}</td>
    <td role="cell" data-label="temp" class="number">${shown(found?.temperature_c, '°C')}</td>
    <td role="cell" data-label="power" class="number">${typeof found?.power_w === 'number' ? `${Math.round(found.power_w)}${limit} W` : '–'}</td>
    <td role="cell" data-label="throttle" class=${isSlowed ? 'warn' : ''}>${found?.throttle ? found.throttle.join(', ') || 'none' : '–'}</td>`;
}

/** @param {Record<string, any>} device */
const memoryOf = (device) => device.memory_bytes ?? device.vram_bytes ?? device.total_bytes ?? null;

/** The memory of a device: reserved by jobs, measured in use, free. @param {{ device: Record<string, any> }} props */
function Memory({ device }) {
  const found = device.telemetry ?? {};
  const total = found.memory_total_bytes ?? memoryOf(device);
  const used = found.memory_used_bytes ?? null;
  const promised = device.promised_bytes ?? null;
  const free = total !== null && used !== null ? Math.max(0, total - used) : null;
  const texts = [`${size(promised)} reserved`, `${size(used)} in use`, `${size(free)} free`];
  if (total === null && used === null) return html`<span class="quiet">–</span>`;
  /** @param {number | null} value */
  const part = (value) => (total && value ? Math.min(100, (100 * value) / total) : 0);
  return html`<div class="memory"><svg viewBox="0 0 100 12" preserveAspectRatio="none" role="img" aria-label=${`memory: ${texts.join(', ')}, of ${size(total)}`}>
      <rect class="bar-back" width="100" height="12" /><rect class="bar-promised" y="8" width=${part(promised)} height="4" />
      <rect class="bar-used" width=${part(used)} height="7" /></svg>
    <span class="quiet">${texts.join(' · ')} of ${size(total)}</span></div>`;
}

/** Who holds how much of a device; without a device, of the machine's RAM. @param {{ machine: MachineView, uuid: string }} props */
function Holders({ machine, uuid }) {
  const found = machine.holders.filter((one) => (uuid ? one.devices.includes(uuid) : !one.devices.length));
  if (!found.length) return null;
  return html`<ul class="holders" aria-label=${uuid ? 'jobs on it' : 'jobs'}>${found.slice(0, MOST_HOLDERS).map((one) => html`<li key=${one.job}>
    <a href=${jobLink(one.name)} title=${one.name}>${cutMiddle(one.name, 32)}</a> <span class="quiet">${heldText(one, uuid)}</span></li>`)}
    ${found.length > MOST_HOLDERS && html`<li class="quiet">and ${grouped(found.length - MOST_HOLDERS)} more</li>`}</ul>`;
}

/** @param {MachineHolder} one @param {string} uuid */
export function heldText(one, uuid) {
  if (!uuid) return one.ram_bytes ? `${size(one.ram_bytes)} RAM` : '–';
  return one.memory_bytes ? size(one.memory_bytes) : 'the whole device';
}
