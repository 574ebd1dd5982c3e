// @ts-check
// The place in the pages: `#/jobs?state=running`. A link can be shared, and any path prefix works.
import { computed, signal } from '../vendor/signals.js';

/** @typedef {{ path: string[], query: URLSearchParams, text: string }} Place */

/** @returns {Place} */
function read() {
  const text = location.hash.startsWith('#/') ? location.hash.slice(2) : '';
  const [path, query = ''] = text.split('?', 2);
  return { path: path.split('/').filter(Boolean).map(safeDecode), query: new URLSearchParams(query), text };
}

/** @param {string} part */
function safeDecode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const place = signal(read());
export const page = computed(() => place.value.path[0] ?? 'overview');
addEventListener('hashchange', () => {
  place.value = read();
});

/**
 * @param {string[]} path
 * @param {Record<string, string | undefined> | URLSearchParams} [query]
 */
export function linkTo(path, query = {}) {
  const kept = new URLSearchParams();
  const pairs = query instanceof URLSearchParams ? [...query] : Object.entries(query);
  for (const [name, value] of pairs) if (value) kept.append(name, value);
  // Commas and slashes may stand in a fragment as they are: links stay readable.
  const text = kept.toString().replaceAll('%2C', ',').replaceAll('%2F', '/');
  return `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

/** @param {string} link */
export function go(link) {
  location.hash = link;
}

/**
 * Change the query of this page without a new entry in the browser's history.
 * @param {Record<string, string | undefined>} changes empty: removed
 */
export function setQuery(changes) {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  history.replaceState(null, '', linkTo(place.value.path, query));
  place.value = read();
}

/**
 * A list as one value of a link: names may have commas.
 * @param {string[]} names
 */
export const listText = (names) => names.map((name) => name.replaceAll('%', '%25').replaceAll(',', '%2C')).join(',');

/** @param {string | null | undefined} text */
export const readList = (text) => (text ?? '').split(',').filter(Boolean).map(safeDecode);

/** @param {string} ref */
export const jobLink = (ref) => `#/job/${encodeURIComponent(ref)}`;
