// @ts-check
// Live changes: one stream per browser. The tab that holds a lock reads `v1/stream` and passes frames to the others.
import { batch, signal } from '../vendor/signals.js';
import { ApiError, BASE, get, urlOf } from './api.js';

/** @typedef {import('./messages.d.ts').ChangedRows} ChangedRows */
/** @typedef {{ kind: string, data: any, id: string }} Frame */

const HIDDEN_S = 60;
const SILENT_S = 25;
const LONGEST_PAUSE_S = 30;

/** `live`, `connecting`, `lost` */
export const connection = signal('connecting');
/** When the connection was lost, and when it is tried again; milliseconds of this browser. */
export const lostAt = signal(0);
export const retryAt = signal(0);
/** Seconds that the server's clock is ahead of this browser's. */
export const clockOffset = signal(0);
/** Another version of the pages is installed. */
export const isOldBuild = signal(false);
/** Rises with every second: ages are shown by it. */
export const now = signal(Date.now() / 1000);

/** @type {Set<(rows: ChangedRows) => void>} */
const listeners = new Set();

/**
 * @param {(rows: ChangedRows) => void} call called with changed rows; `resync` means to ask for everything again
 * @returns {() => void} stops it
 */
export function onRows(call) {
  listeners.add(call);
  return () => listeners.delete(call);
}

// Another coordinator may have another prefix on the same host.
const NAME = `stoker-stream ${BASE.pathname}`;
const ownBuild = document.documentElement.dataset.build ?? '';
const channel = new BroadcastChannel(NAME);
let lastId = '';

/** @param {Frame} frame */
function take(frame) {
  batch(() => {
    connection.value = 'live';
    lostAt.value = 0;
    if (frame.id) lastId = frame.id;
    const data = frame.data ?? {};
    if (typeof data.server_s === 'number') clockOffset.value = data.server_s - Date.now() / 1000;
    if (frame.kind === 'hello') checkBuild().catch(() => {});
    if (data.resync || frame.kind === 'resync') {
      listeners.forEach((call) => call({ ...EMPTY, ...data, resync: true }));
    } else if (frame.kind === 'rows' || frame.kind === 'beat') {
      listeners.forEach((call) => call({ ...EMPTY, ...data }));
    }
  });
}

/** @type {ChangedRows} */
const EMPTY = { seq: 0, server_s: 0, jobs: [], gone: [], machines: [], counts: {}, resync: false };

/** Compare with the document, which names the newest files: the stream may come from another machine. */
async function checkBuild() {
  const text = await (await fetch(urlOf(''), { cache: 'no-cache' })).text();
  const found = /data-build="([0-9a-f]+)"/.exec(text)?.[1];
  if (found && ownBuild && found !== ownBuild) isOldBuild.value = true;
}

/** @param {string} state @param {number} retry_ms */
function setLost(state, retry_ms) {
  batch(() => {
    connection.value = state;
    if (!lostAt.value) lostAt.value = Date.now();
    retryAt.value = retry_ms;
  });
}

/** @param {any} message */
function tell(message) {
  channel.postMessage(message);
}

channel.onmessage = (event) => {
  const message = event.data;
  if (message.frame) take(message.frame);
  else if (message.lost) setLost('lost', message.retryAt);
  else if (message.hello && isLeader && connection.value === 'live') tell({ frame: { kind: 'beat', data: {}, id: lastId } });
};

let isLeader = false;
/** Somebody is logged in. */
let isWanted = false;
let isStarted = false;
/** @type {AbortController | null} */
let reading = null;

/** Read the stream until it ends. */
async function readStream() {
  reading = new AbortController();
  const { signal: stop } = reading;
  let silent = 0;
  const watch = () => {
    clearTimeout(silent);
    silent = setTimeout(() => reading?.abort(), SILENT_S * 1000);
  };
  try {
    watch();
    const response = await fetch(urlOf('v1/stream'), {
      signal: stop, credentials: 'same-origin', cache: 'no-store', headers: lastId ? { 'Last-Event-ID': lastId } : {},
    });
    if (!response.ok || !response.body) {
      if (response.status === 404) lastId = '';
      if (response.status === 401) await get('v1/sessions');
      throw new ApiError(`status ${response.status}`, response.status);
    }
    // What happened since the page read its data, and before the stream began, is in no frame of it.
    const hasGap = !lastId;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      watch();
      rest += value;
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? '';
      for (const block of blocks) {
        const frame = readFrame(block);
        if (!frame) continue;
        for (const one of hasGap && frame.kind === 'hello' ? [frame, { ...frame, kind: 'resync' }] : [frame]) {
          take(one);
          tell({ frame: one });
        }
      }
    }
  } finally {
    clearTimeout(silent);
    reading = null;
  }
}

/** @param {string} block @returns {Frame | null} */
function readFrame(block) {
  let kind = 'message';
  let id = '';
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const at = line.indexOf(':');
    const [name, value] = at < 0 ? [line, ''] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, '')];
    if (name === 'event') kind = value;
    else if (name === 'id') id = value;
    else if (name === 'data') data.push(value);
  }
  if (!data.length) return id ? { kind: 'beat', data: {}, id } : null;
  try {
    return { kind, data: JSON.parse(data.join('\n')), id };
  } catch {
    return null;
  }
}

/** @param {number} ms */
const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Read the stream as long as this tab is the one that does; pause longer after each failure. */
async function lead() {
  isLeader = true;
  let failures = 0;
  while (isWanted && !isHiddenLong()) {
    const began = Date.now();
    try {
      await readStream();
    } catch {
      // Shown as a lost connection below.
    }
    if (!isWanted || isHiddenLong()) break;
    failures = Date.now() - began > 10_000 ? 0 : failures + 1;
    const wait = failures <= 1 ? 500 : Math.min(LONGEST_PAUSE_S, 2 ** (failures - 1)) * 1000 * (0.75 + Math.random() / 2);
    setLost('lost', Date.now() + wait);
    tell({ lost: true, retryAt: Date.now() + wait });
    await pause(wait);
  }
  isLeader = false;
}

let hiddenSince = 0;
const isHiddenLong = () => hiddenSince > 0 && Date.now() - hiddenSince > HIDDEN_S * 1000;

async function stayInLine() {
  for (;;) {
    while (document.hidden || !isWanted) await pause(document.hidden ? 1000 : 200);
    if (navigator.locks) await navigator.locks.request(NAME, lead);
    else await lead();
    await pause(100);
  }
}

/**
 * Follow changes.
 * @returns {() => void} ends it, after a log-out
 */
export function follow() {
  isWanted = true;
  if (!isStarted) start();
  tell({ hello: true });
  return () => {
    isWanted = false;
    reading?.abort();
  };
}

function start() {
  isStarted = true;
  document.addEventListener('visibilitychange', () => {
    hiddenSince = document.hidden ? Date.now() : 0;
    if (document.hidden) setTimeout(() => isHiddenLong() && reading?.abort(), HIDDEN_S * 1000 + 100);
  });
  setInterval(() => {
    now.value = Date.now() / 1000 + clockOffset.value;
  }, 1000);
  void stayInLine();
}
