// @ts-check
// What an attempt used over time: what its machine recorded meanwhile, of the devices that it held and of the host.
import { clockTime, duration, size } from './format.js';
import { h, html } from './html.js';
import { machineLink } from './machine_parts.js';
import { place, setQuery } from './router.js';
import { TableSwitch, TelemetryCharts, useTelemetry, POINTS } from './telemetry.js';
import { Empty, Select, Trouble, useNow } from './ui.js';

/** @typedef {import('./messages.d.ts').JobDetails} JobDetails */
/** @typedef {import('./messages.d.ts').AttemptView} AttemptView */

const STEP_S = 30;
const LEAST_S = 60;

/** @param {{ details: JobDetails }} props */
export function ResourcesTab({ details }) {
  const { attempts } = details;
  const asked = Number(place.value.query.get('attempt'));
  const attempt = attempts.find((one) => one.number === asked) ?? attempts[attempts.length - 1];
  if (!attempt) return h(Empty, { title: 'Not granted to a machine yet.' });
  return html`<div class="filters">
      ${attempts.length > 1 && h(Select, { label: 'attempt', value: String(attempt.number), set: (value) => setQuery({ attempt: value }),
        options: attempts.map((one) => /** @type {[string, string]} */ ([String(one.number), `${one.number}: ${one.machine}`])) })}${h(TableSwitch, {})}</div>
    ${h(Peaks, { attempt })}${h(OverTime, { key: attempt.number, attempt })}`;
}

/** @param {{ attempt: AttemptView }} props */
function Peaks({ attempt }) {
  const { peak_bytes: ram, peak_gpu_bytes: device } = attempt.facts ?? {};
  if (typeof ram !== 'number' && typeof device !== 'number') return null;
  return html`<p>measured of the job's own processes: peak RAM <strong>${size(ram)}</strong>, peak device memory <strong>${size(device)}</strong></p>`;
}

/** @param {{ attempt: AttemptView }} props */
function OverTime({ attempt }) {
  const now_s = useNow();
  const begin = attempt.started_s ?? attempt.granted_s;
  const isLive = !attempt.ended_s;
  // In steps, so that one request serves a while.
  const end = Math.max(attempt.ended_s ?? Math.ceil(now_s / STEP_S) * STEP_S, begin + LEAST_S);
  const { data, error } = useTelemetry(attempt.machine || null, { from: Math.floor(begin / 10) * 10, to: Math.ceil(end), points: POINTS }, isLive);
  const own = new Set(['', ...attempt.devices]);
  const isRecorded = data?.devices.some((device) => own.has(device.device) && device.times_s.length);
  return html`<p class="quiet">Recorded by <a href=${machineLink(attempt.machine)}>${attempt.machine}</a> from ${clockTime(begin)} ${isLive ? 'until now' : `for ${duration(end - begin)}`}:
      the whole host${attempt.devices.length ? ' and the devices that the job held' : ''}, with whatever else ran there.</p>
    ${h(Trouble, { error, what: `telemetry of ${attempt.machine}` })}
    ${data && (isRecorded ? h(TelemetryCharts, { view: data, isTable: place.value.query.get('table') === '1', only: (device) => own.has(device) })
      : h(Empty, { title: isLive ? 'Nothing is recorded yet: a worker reports twice a minute.' : 'The machine recorded nothing in this time.',
        children: html`<p>A worker records while it runs; rows of 10 s are kept for a day, of 5 min for 90 days.</p>` }))}`;
}
