// @ts-check
// The shell of the pages: log-in, navigation, connection, theme, keys; and which page is shown.
import { render } from '../vendor/preact.js';
import { useEffect, useState } from '../vendor/hooks.js';
import '../vendor/signals.js';
import { hasKey, keepKey, post, whenLoggedOut, whoAmI } from './api.js';
import { clockTime, duration } from './format.js';
import { h, html } from './html.js';
import { HELP, listenToKeys } from './keys.js';
import { clockOffset, connection, follow, isOldBuild, lostAt, now, retryAt } from './live.js';
import { LoginPage, takeCode } from './login.js';
import { lazily, loadAll, LazyPage } from './loading.js';
import { linkTo, page, place } from './router.js';
import { listenToDrops } from './submit.js';
import { applyTheme, login, logoutReason, messages, setTheme, theme } from './state.js';
import { ConfirmDialog, Empty, focusMain } from './ui.js';

/** What follows the page's name: `resnet/3` also where its slash was not escaped. */
const restOf = () => place.value.path.slice(1).join('/');

/** Pages by the first part of the path, each with its module. Another page is one more entry. @type {Record<string, import('./loading.js').Lazy>} */
const PAGES = {
  overview: lazily(() => import('./overview.js'), (found) => h(found.OverviewPage, {})),
  jobs: lazily(() => import('./jobs.js'), (found) => h(found.JobsPage, {})),
  job: lazily(() => import('./job.js'), (found) => h(found.JobPage, { ref_: restOf(), key: restOf() })),
  machines: lazily(() => import('./machines.js'), (found) => h(found.MachinesPage, {})),
  sweeps: lazily(() => import('./sweeps.js'), (found) => h(found.SweepsPage, {})),
  sweep: lazily(() => import('./sweep.js'), (found) => h(found.SweepPage, { name: restOf(), key: restOf() })),
  compare: lazily(() => import('./compare.js'), (found) => h(found.ComparePage, {})),
  machine: lazily(() => import('./machine.js'), (found) => h(found.MachinePage, { name: restOf(), key: restOf() })),
  adapters: lazily(() => import('./adapters.js'), (found) => h(found.AdaptersPage, {})),
  models: lazily(() => import('./models.js'), (found) => h(found.ModelsPage, {})),
  model: lazily(() => import('./models.js'), (found) => h(found.ModelPage, { digest: restOf(), key: restOf() })),
  simulation: lazily(() => import('./simulation.js'), (found) => h(found.SimulationPage, {})),
  submit: lazily(() => import('./submit.js'), (found) => h(found.SubmitPage, {})),
  again: lazily(() => import('./again.js'), (found) => h(found.AgainPage, { ref_: restOf(), key: restOf() })),
};
const LINKS = [['overview', 'Overview'], ['jobs', 'Jobs'], ['sweeps', 'Sweeps'], ['machines', 'Machines'],
  ['adapters', 'Adapters'], ['models', 'Models'], ['simulation', 'Simulation']];
/** Pages that are reached from another one. @type {Record<string, string>} */
const PART_OF = { job: 'jobs', compare: 'jobs', submit: 'jobs', again: 'jobs', sweep: 'sweeps', machine: 'machines', model: 'models' };
const THEMES = /** @type {Record<string, [string, string]>} */ ({
  auto: ['light', '◐'], light: ['dark', '☀'], dark: ['auto', '☾'],
});

/** @param {{ code: string }} props */
function App({ code }) {
  const [isKnown, setKnown] = useState(false);
  // With the key of a session, most likely it lasts: the page loads its data at once, not after the answer to who asks.
  const [isLikely] = useState(!code && hasKey());
  useEffect(() => {
    whenLoggedOut((error) => {
      if (login.value) logoutReason.value = error.message;
      login.value = null;
    });
    if (code) {
      setKnown(true);
      return;
    }
    whoAmI().then((found) => { login.value = found.role ? found : null; }, () => {}).finally(() => setKnown(true));
  }, []);
  if (!isKnown && !isLikely) return html`<main id="main"><p class="quiet">loading…</p></main>`;
  return login.value || !isKnown ? h(Shell, {}) : h(LoginPage, { code });
}

function Shell() {
  const [isHelp, setHelp] = useState(false);
  useEffect(() => {
    const stops = [follow(), listenToKeys(() => setHelp(true)), listenToDrops()];
    loadAll(PAGES);
    return () => stops.forEach((stop) => stop());
  }, []);
  useEffect(() => {
    document.title = `${titleOf()} · Stoker`;
  }, [place.value.text]);
  useEffect(() => {
    // A link that was followed is gone with its page.
    requestAnimationFrame(focusMain);
  }, [place.value.path.join('/')]);
  const shown = PAGES[page.value];
  return html`<a class="skip" href="#main" onClick=${(/** @type {any} */ event) => { event.preventDefault(); event.target.blur(); focusMain(); }}>skip to the content</a>
    <header><a class="brand" href="#/"><span aria-hidden="true">▲</span> Stoker</a>
      <nav aria-label="pages">${LINKS.map(([name, text]) => html`<a key=${name} href=${linkTo(name === 'overview' ? [] : [name])}
        aria-current=${isCurrent(name) ? 'page' : undefined}>${text}</a>`)}</nav>
      <span class="grow"></span>${h(Connection, {})}${h(User, {})}</header>
    ${isOldBuild.value && html`<div class="banner" role="status">A newer version of these pages is installed.
      <button type="button" class="small" onClick=${() => location.reload()}>reload</button></div>`}
    ${connection.value === 'lost' && h(Lost, {})}
    ${shown ? h(LazyPage, { shown, name: page.value, key: page.value }) : html`<main id="main">${h(Empty, { title: 'There is no such page.' })}<p><a href="#/">overview</a></p></main>`}
    ${h(ConfirmDialog, {})}${h(Messages, {})}${isHelp && h(Help, { close: () => setHelp(false) })}`;
}

/** @param {string} name */
const isCurrent = (name) => page.value === name || name === PART_OF[page.value];

const titleOf = () => restOf() || (LINKS.find(([name]) => name === page.value)?.[1] ?? (page.value === 'compare' ? 'Compare' : 'Stoker'));

function Connection() {
  const state = connection.value;
  return html`<span class=${`connection connection-${state}`} role="status"><span aria-hidden="true">●</span> ${state}</span>`;
}

function Lost() {
  // By this browser's own clock, which both times are taken from.
  const here_s = now.value - clockOffset.value;
  const left_s = Math.max(0, retryAt.value / 1000 - here_s);
  const lost_s = here_s - lostAt.value / 1000;
  if (lost_s < 2) return null;
  return html`<div class="banner" role="status">connection lost ${duration(lost_s)} ago, shown:
    ${clockTime(lostAt.value / 1000 + clockOffset.value)}, reconnect in ${duration(left_s)}</div>`;
}

function User() {
  const [next, sign] = THEMES[theme.value] ?? THEMES.auto;
  const out = async () => {
    await post('v1/sessions', {}, 'DELETE').catch(() => {});
    keepKey('');
    login.value = null;
  };
  return html`<span class="user">${login.value?.user || 'local user'} <span class="quiet">(${login.value?.role})</span></span>
    <button type="button" class="icon" aria-label=${`theme: ${theme.value}; switch to ${next}`} title=${`theme: ${theme.value}`}
      onClick=${() => setTheme(next)}>${sign}</button>
    <button type="button" class="small" onClick=${out}>log out</button>`;
}

function Messages() {
  return html`<div class="messages" role="status" aria-live="polite">${messages.value.map((one) => html`
    <div key=${one.id} class=${one.isError ? 'message error' : 'message'}>${one.text}</div>`)}</div>`;
}

/** @param {{ close: () => void }} props */
function Help({ close }) {
  return html`<dialog aria-labelledby="help" onClose=${close} ref=${(/** @type {HTMLDialogElement | null} */ dialog) => {
    if (dialog && !dialog.open) dialog.showModal();
  }}><h2 id="help">Keys</h2>
    <table><tbody>${HELP.map(([keys, text]) => html`<tr key=${keys}><th scope="row"><kbd>${keys}</kbd></th><td>${text}</td></tr>`)}</tbody></table>
    <div class="buttons"><button type="button" class="primary" onClick=${close}>close</button></div></dialog>`;
}

applyTheme();
PAGES[page.value]?.load(page.value).catch(() => {});
const root = document.getElementById('app');
if (root) {
  root.replaceChildren();
  render(h(App, { code: takeCode() }), root);
}
