// @ts-check
// What all pages share: who is logged in, messages, theme; and the hook that loads data and keeps the last good one.
import { signal } from '../vendor/signals.js';
import { useCallback, useEffect, useRef, useState } from '../vendor/hooks.js';
import { ApiError, get } from './api.js';

/** @typedef {import('./messages.d.ts').LoginView} LoginView */

/** @type {import('../vendor/signals.js').Signal<LoginView | null>} */
export const login = signal(null);
/** Why the log-in page is shown. */
export const logoutReason = signal('');
/** @type {import('../vendor/signals.js').Signal<{ text: string, isError: boolean, id: number }[]>} */
export const messages = signal([]);
export const theme = signal(localStorage.getItem('stoker-theme') ?? 'auto');

/** Jobs side by side. */
export const MOST_COMPARED = 20;
const RANK = ['read', 'submit', 'launch', 'operate', 'admin'];
let nextMessage = 1;

/** @param {string} role */
export const may = (role) => RANK.indexOf(login.value?.role ?? '') >= RANK.indexOf(role);

/** @param {string} text @param {boolean} [isError] */
export function say(text, isError = false) {
  const id = nextMessage;
  nextMessage += 1;
  messages.value = [...messages.value.slice(-3), { text, isError, id }];
  setTimeout(() => {
    messages.value = messages.value.filter((one) => one.id !== id);
  }, isError ? 12000 : 5000);
}

/** @param {string} name */
export function setTheme(name) {
  theme.value = name;
  localStorage.setItem('stoker-theme', name);
  applyTheme();
}

export function applyTheme() {
  if (theme.value === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}

/** @param {unknown} error */
export const errorText = (error) =>
  error instanceof ApiError ? [error.message, error.hint].filter(Boolean).join(' — ') : String(error);

/** Data is loaded again after so long at the soonest, and after so many times as long as it took, up to a limit. */
const SOONEST_MS = 250;
const TIMES = 10;
const LATEST_MS = 10_000;

/**
 * Load data from the API. The last good data stays while new data is loaded, and after an error.
 * `reload` loads it again in a moment; however often it is called, what is being loaded arrives.
 * @template T
 * @param {string | null} path null: load nothing
 * @param {import('./api.js').Query} [query]
 * @returns {{ data: T | null, error: ApiError | null, isLoading: boolean, reload: () => void }}
 */
export function useData(path, query = {}) {
  const key = path === null ? '' : `${path}?${JSON.stringify(query)}`;
  const [state, setState] = useState(
    /** @type {{ key: string, data: any, error: ApiError | null }} */ ({ key: '', data: null, error: null }),
  );
  const [turn, setTurn] = useState(0);
  const pace = useRef({ timer: 0, isBusy: false, isWanted: false, ended: 0, took: 0 });
  const reload = useCallback(() => {
    const own = pace.current;
    own.isWanted = own.isBusy;
    if (own.isBusy || own.timer) return;
    const wait = own.ended + Math.min(LATEST_MS, own.took * TIMES) - Date.now();
    own.timer = setTimeout(() => {
      own.timer = 0;
      setTurn((before) => before + 1);
    }, Math.max(SOONEST_MS, wait));
  }, []);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    const own = pace.current;
    const begun = Date.now();
    own.isBusy = true;
    get(path, query, stop.signal).then(
      (data) => setState({ key, data, error: null }),
      (error) => {
        if (stop.signal.aborted) return;
        setState((before) => ({ key, data: before.key === key ? before.data : null, error: asError(error) }));
      },
    ).finally(() => {
      if (stop.signal.aborted) return;
      Object.assign(own, { isBusy: false, ended: Date.now(), took: Date.now() - begun });
      if (own.isWanted) reload();
    });
    return () => stop.abort();
  }, [key, turn]);
  useEffect(() => () => clearTimeout(pace.current.timer), []);
  const isOther = state.key !== key;
  return { data: state.data, error: isOther ? null : state.error, isLoading: isOther, reload };
}

/** Call again and again while the tab is visible. @param {() => void} call @param {number} every_s */
export function useEvery(call, every_s) {
  const last = useRef(call);
  last.current = call;
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) last.current();
    }, every_s * 1000);
    return () => clearInterval(timer);
  }, [every_s]);
}

/** @param {unknown} error */
const asError = (error) => (error instanceof ApiError ? error : new ApiError(String(error), 0));
