// @ts-check
// Keys of all pages. Lists take `j`, `k` and `Enter` themselves, as elements that have the focus.
import { go } from './router.js';

/** @type {[string, string][]} */
export const HELP = [
  ['g o', 'overview'], ['g j', 'jobs'], ['g s', 'sweeps'], ['g m', 'machines'],
  ['g a', 'adapters'], ['g l', 'models'], ['g w', 'simulation: what if'], ['/', 'filter'], ['j, k', 'next and previous row'],
  ['Enter', 'open the row'], ['x', 'select the row'], ['← →', 'previous and next tab'], ['?', 'this help'],
  ['Esc', 'close a dialog'],
];
const PLACES = /** @type {Record<string, string>} */ ({ o: '#/', j: '#/jobs', s: '#/sweeps', m: '#/machines', a: '#/adapters', l: '#/models', w: '#/simulation' });

/** @param {EventTarget | null} target */
export const isTyping = (target) =>
  target instanceof HTMLElement && (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) || target.isContentEditable);

/** @param {() => void} showHelp @returns {() => void} stops it */
export function listenToKeys(showHelp) {
  let isAfterG = false;
  /** @param {KeyboardEvent} event */
  const hear = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector('dialog[open]')) return;
    const wasAfterG = isAfterG;
    isAfterG = event.key === 'g' && !wasAfterG;
    if (wasAfterG && PLACES[event.key]) go(PLACES[event.key]);
    else if (event.key === '?') showHelp();
    else if (event.key === '/') {
      const field = document.querySelector('input[type=search]');
      if (!(field instanceof HTMLElement)) return;
      field.focus();
      event.preventDefault();
    } else if (['j', 'k'].includes(event.key)) {
      const list = document.querySelector('[data-keys=rows]');
      if (list instanceof HTMLElement && !list.contains(document.activeElement)) {
        list.focus();
        list.dispatchEvent(new KeyboardEvent('keydown', { key: event.key }));
      }
    }
  };
  addEventListener('keydown', hear);
  return () => removeEventListener('keydown', hear);
}
