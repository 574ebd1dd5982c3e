// @ts-check
// Requests to the coordinator. All paths are relative to the page, so that any prefix works.

/** An error response, or a network failure. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status 0: no response came
   * @param {string} [hint]
   * @param {string} [code]
   */
  constructor(message, status, hint = '', code = '') {
    super(message);
    this.status = status;
    this.hint = hint;
    this.code = code;
  }
}

/** The folder of the pages: its path ends with a slash. */
export const BASE = new URL('.', location.href);

/** @param {string} ref a job's name or id */
export const jobPath = (ref) => `v1/jobs/${encodeURIComponent(ref)}`;

/** @typedef {Record<string, string | number | string[] | undefined | null>} Query a list: several values of one name */

/**
 * @param {string} path
 * @param {Query} [query] empty values are left out
 */
export function urlOf(path, query = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== '') url.searchParams.append(name, String(one));
    }
  }
  return url;
}

// A session's key: browsers send cookies to all ports of a host, but keep this for one origin.
const KEY = `stoker-page ${BASE.pathname}`;

/** @param {string} key empty: log out */
export function keepKey(key) {
  if (key) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
}

/** True after a log-in; the session may have ended since. */
export const hasKey = () => localStorage.getItem(KEY) !== null;

const pageHeader = () => ({ 'X-Stoker-Page': localStorage.getItem(KEY) ?? '1' });

/** @type {Set<(error: ApiError) => void>} */
const onRefused = new Set();

/** @param {(error: ApiError) => void} call called when a session is over */
export function whenLoggedOut(call) {
  onRefused.add(call);
}

/**
 * @param {URL} url
 * @param {RequestInit} [options]
 * @returns {Promise<any>}
 */
async function ask(url, options = {}) {
  let response;
  try {
    response = await fetch(url, { ...options, credentials: 'same-origin', cache: 'no-store' });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError('connection lost', 0);
  }
  const text = await response.text();
  let body;
  try {
    body = text ? JSON.parse(text) : {};
  } catch {
    body = { message: `unreadable response (status ${response.status})` };
  }
  if (response.ok) return body;
  const error = new ApiError(body.message ?? `status ${response.status}`, response.status, body.hint, body.error);
  if (response.status === 401) onRefused.forEach((call) => call(error));
  throw error;
}

/**
 * @param {string} path
 * @param {Query} [query]
 * @param {AbortSignal} [signal]
 */
export const get = (path, query = {}, signal = undefined) => ask(urlOf(path, query), { signal });

/**
 * @param {string} path
 * @param {object} [body]
 * @param {string} [method]
 */
export const post = (path, body = {}, method = 'POST') =>
  ask(urlOf(path), {
    method,
    body: method === 'DELETE' ? undefined : JSON.stringify(body),
    headers: { 'Content-Type': 'application/json', ...pageHeader() },
  });

/** Who is logged in; no role: no one. @returns {Promise<import('./messages.d.ts').LoginView>} */
export const whoAmI = () => ask(urlOf('v1/sessions'), { headers: pageHeader() });

/**
 * Return a number as the API sends it: not a number and infinities are tagged objects.
 * @param {import('./messages.d.ts').Tagged | undefined} value
 */
export function numberOf(value) {
  if (typeof value === 'number') return value;
  if (value && typeof value === 'object') {
    const text = String(Object.values(value)[0]).toLowerCase();
    if (text.startsWith('-inf')) return -Infinity;
    return text.includes('inf') ? Infinity : NaN;
  }
  return NaN;
}
