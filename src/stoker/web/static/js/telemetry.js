// @ts-check
// Telemetry of one machine over a span of time: a chart per channel, a line per device. What a device does not report
// has no line, and what was not measured is a gap.
import { useMemo } from '../vendor/hooks.js';
import { TimeChart } from './charts.js';
import { cutMiddle } from './format.js';
import { h, html } from './html.js';
import { place, setQuery } from './router.js';
import { useData, useEvery } from './state.js';

/** @typedef {import('./messages.d.ts').TelemetryView} TelemetryView */
/** @typedef {import('./messages.d.ts').DeviceTelemetryView} DeviceTelemetryView */
/** @typedef {import('./charts.js').Line} Line */

const CHANNELS = ['utilisation', 'memory', 'power', 'temperature', 'clock'];
const TITLES = /** @type {Record<string, string>} */ ({
  utilisation: 'Utilisation', memory: 'Memory in use', power: 'Power', temperature: 'Temperature', clock: 'Clock',
});
const REFRESH_S = 10;
export const POINTS = 300;

/**
 * Load telemetry, again and again if its end is now.
 * @param {string | null} machine null: load nothing
 * @param {{ from?: number, to?: number, points?: number }} query
 * @param {boolean} isLive
 */
export function useTelemetry(machine, query, isLive) {
  const loaded = /** @type {ReturnType<typeof useData<TelemetryView>>} */ (
    useData(machine === null ? null : `v1/machines/${encodeURIComponent(machine)}/telemetry`, query));
  useEvery(() => isLive && machine !== null && loaded.reload(), REFRESH_S);
  return loaded;
}

/** What people call a device. @param {DeviceTelemetryView} device */
export const deviceName = (device) => (device.device ? device.name || cutMiddle(device.device, 18) : 'host');

/** Name several devices of one kind apart. @param {DeviceTelemetryView[]} devices */
export function deviceNames(devices) {
  const names = devices.map(deviceName);
  const counts = new Map();
  return names.map((name) => {
    if (names.filter((other) => other === name).length < 2) return name;
    counts.set(name, (counts.get(name) ?? -1) + 1);
    return `${name} #${counts.get(name)}`;
  });
}

/** @param {{ view: TelemetryView, isTable: boolean, only?: (device: string) => boolean }} props */
export function TelemetryCharts({ view, isTable, only = () => true }) {
  const devices = useMemo(() => {
    const names = deviceNames(view.devices);
    return view.devices.map((device, at) => ({ device, name: names[at], at })).filter(({ device }) => only(device.device));
  }, [view]);
  const charts = CHANNELS.map((channel) => ({ channel, lines: linesOf(devices, channel) })).filter(({ lines }) => lines.length);
  return html`<div class="charts">${charts.map(({ channel, lines }) => h(TimeChart, {
    key: channel, title: TITLES[channel], unit: unitOf(devices, channel), lines, from: view.from_s, to: view.to_s, period: view.period_s,
    bounds: ['utilisation', 'memory'].includes(channel) ? [0, 100] : channel === 'temperature' ? [null, null] : [0, null], isTable,
  }))}</div>`;
}

/** @param {{ device: DeviceTelemetryView, name: string, at: number }[]} devices @param {string} channel @returns {Line[]} */
function linesOf(devices, channel) {
  return devices.flatMap(({ device, name, at }) => device.series.filter((one) => one.channel === channel)
    .map((one) => ({ label: name, at, times: device.times_s, low: one.low, mean: one.mean, high: one.high })));
}

/** @param {{ device: DeviceTelemetryView }[]} devices @param {string} channel */
const unitOf = (devices, channel) => devices.flatMap(({ device }) => device.series).find((one) => one.channel === channel)?.unit ?? '';

/** The switch between charts and the same numbers, which is part of the link. */
export function TableSwitch() {
  const isTable = place.value.query.get('table') === '1';
  return html`<label class="check"><input type="checkbox" checked=${isTable} onChange=${() => setQuery({ table: isTable ? '' : '1' })} /> as a table</label>`;
}
