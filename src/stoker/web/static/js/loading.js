// @ts-check
// The modules of pages, each loaded when its page is opened, and the others a moment later.
import { useEffect, useState } from '../vendor/hooks.js';
import { html } from './html.js';
import { focusMain } from './ui.js';

/** @typedef {{ load: (name: string) => Promise<any>, show: () => any }} Lazy `show` needs what was loaded */

/** The data of the first page comes before the modules of others. */
const LATER_MS = 3000;
/** Files of each page that the shell has not: asked for at once, not level by level. @type {Record<string, string[]>} */
const NEEDS = Object.fromEntries((document.querySelector('meta[name=pages]')?.getAttribute('content') ?? '').split(';').map((line) => {
  const [name, ...files] = line.split(' ').filter(Boolean);
  return [name, files];
}));

/**
 * @template T
 * @param {() => Promise<T>} ask
 * @param {(found: T) => any} show
 * @returns {Lazy & { found: T | null }}
 */
export function lazily(ask, show) {
  /** @type {Lazy & { found: T | null }} */
  const page = {
    found: null,
    load: async (name) => {
      for (const file of NEEDS[name] ?? []) import(`../${file}`).catch(() => {});
      page.found = await ask();
    },
    show: () => (page.found ? show(page.found) : null),
  };
  return page;
}

/** @param {{ shown: Lazy, name: string }} props */
export function LazyPage({ shown, name }) {
  const [isFailed, setFailed] = useState(false);
  const [, setLoaded] = useState(false);
  const page = shown.show();
  useEffect(() => {
    if (page) return;
    shown.load(name).then(() => {
      setLoaded(true);
      requestAnimationFrame(focusMain);
    }, () => setFailed(true));
  }, []);
  if (page || !isFailed) return page ?? html`<main id="main"><h1 class="quiet">loading…</h1></main>`;
  return html`<main id="main"><h1>This page can't be loaded</h1><p role="alert">The connection is lost, or a newer version of these pages is installed.
    <button type="button" class="small" onClick=${() => location.reload()}>reload</button></p></main>`;
}

/** Load all pages: a tab that is open during an upgrade goes on with its own. @param {Record<string, Lazy>} pages */
export function loadAll(pages) {
  const load = () => Object.entries(pages).forEach(([name, one]) => one.load(name).catch(() => {}));
  setTimeout(() => ('requestIdleCallback' in window ? requestIdleCallback(load) : load()), LATER_MS);
}
