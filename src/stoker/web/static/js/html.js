// @ts-check
// Elements by tagged templates; components by `h`, whose properties are type-checked.
import { h } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
export { h };
