// @ts-check
// Log-in: by the one-time code of a link (in the fragment, which no server or log sees), or by a token.
import { useEffect, useState } from '../vendor/hooks.js';
import { BASE, keepKey, post } from './api.js';
import { html } from './html.js';
import { errorText, login, logoutReason } from './state.js';

/** The code of `login#code=…`. */
export function takeCode() {
  const code = /^#code=([A-Za-z0-9_-]+)$/.exec(location.hash)?.[1] ?? '';
  if (code) history.replaceState(null, '', BASE.pathname);
  return code;
}

/** @param {{ code: string }} props */
export function LoginPage({ code }) {
  const [token, setToken] = useState('');
  const [trouble, setTrouble] = useState('');
  const [isBusy, setBusy] = useState(Boolean(code));
  /** @param {object} body */
  const begin = async (body) => {
    setBusy(true);
    try {
      const { key, ...who } = await post('v1/sessions', body);
      keepKey(key ?? '');
      login.value = who;
      logoutReason.value = '';
    } catch (error) {
      setTrouble(errorText(error));
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    if (code) void begin({ code });
  }, []);
  return html`<main id="main" class="login"><h1>Stoker</h1>
    ${logoutReason.value && html`<p class="notice" role="status">${logoutReason.value}</p>`}
    ${trouble && html`<p class="trouble" role="alert">${trouble}</p>`}
    <section class="card"><h2>Log in</h2>
      <p>On a machine with access, run this. It opens the pages, logged in.</p>
      <p><code>stoker ui</code></p>
      <form onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); void begin({ token }); }}>
        <label class="field"><span>or paste a token</span><input type="password" value=${token} autocomplete="off" required
          onInput=${(/** @type {any} */ event) => setToken(event.target.value)} /></label>
        <button type="submit" class="primary" disabled=${isBusy || !token}>log in</button>
      </form>
      <p class="quiet">An admin makes a token with <code>stoker admin tokens make</code>. It is sent once and not stored
        in this browser; the session lasts 12 hours.</p>
    </section></main>`;
}
