// @ts-check
// Numbers, times and names as text. Pure.

const SIGNS = /** @type {Record<string, string>} */ ({
  pending: '·', claimed: '◌', running: '▶', completed: '✓', failed: '✗', cancelled: '⊘',
});

/** @param {string} state */
export const signOf = (state) => SIGNS[state] ?? '?';

/** @param {number | null | undefined} value */
export function shortNumber(value) {
  if (value === null || value === undefined) return '–';
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '−inf';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return Number(value.toPrecision(3)).toExponential().replace('e+', 'e');
  return Number.isInteger(value) ? grouped(value) : String(Number(value.toPrecision(4)));
}

const GROUPED = new Intl.NumberFormat('en-US');

/** @param {number} value */
export const grouped = (value) => GROUPED.format(value);

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–';
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Number((s / 3600).toFixed(1))} h`;
  return `${Math.round(s / 86400)} d`;
}

/**
 * @param {number | null | undefined} at_s
 * @param {number} now_s
 */
export const ago = (at_s, now_s) => (at_s ? (now_s - at_s < 1 ? 'now' : `${duration(now_s - at_s)} ago`) : '–');

/** @param {number | null | undefined} at_s */
export function clockTime(at_s) {
  if (!at_s) return '–';
  const at = new Date(at_s * 1000);
  const isToday = at.toDateString() === new Date().toDateString();
  const time = at.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
  return isToday ? time : `${at.toLocaleDateString('en-CA')} ${time.slice(0, 5)}`;
}

/** To the minute, with the day if it is another one. @param {number | null | undefined} at_s */
export function shortTime(at_s) {
  if (!at_s) return '–';
  const at = new Date(at_s * 1000);
  const time = at.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString('en-GB', { weekday: 'short', day: 'numeric', month: 'short' })} ${time}`;
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

/**
 * Cut a long name in the middle: the ends of names tell jobs apart.
 * @param {string} text
 * @param {number} most
 */
export function cutMiddle(text, most) {
  if (text.length <= most) return text;
  const parts = [...text];
  if (parts.length <= most) return text;
  const head = Math.ceil((most - 1) / 2);
  return `${parts.slice(0, head).join('')}…${parts.slice(parts.length - (most - 1 - head)).join('')}`;
}

/** The beginning of an id, which tells jobs of one name apart. @param {import('./messages.d.ts').JobView} job */
export const shortId = (job) => (/^[0-9a-f]{64}$/.test(job.id) ? job.id.slice(0, 12) : job.id);

/** @param {import('./messages.d.ts').JobView} job */
export const progress = (job) => (job.of ? Math.min(1, (job.step ?? 0) / job.of) : null);

/**
 * @param {import('./messages.d.ts').JobView} job
 * @param {number} now_s
 */
export function secondsLeft(job, now_s) {
  const part = progress(job);
  if (job.state !== 'running' || !part || !job.started_s) return null;
  const used_s = now_s - job.started_s;
  return part >= 1 ? 0 : (used_s * (1 - part)) / part;
}

/**
 * Quote a word for a shell, so that a copied command means the same.
 * @param {string} word
 */
export const quoted = (word) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** @param {unknown} value */
export const valueText = (value) => (typeof value === 'string' ? value : JSON.stringify(value) ?? '');
