// @ts-check
// A drawing of our own: as large as its place, sharp on every screen, again when size or colours change.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/hooks.js';
import { signal } from '../vendor/signals.js';
import { html } from './html.js';
import { theme } from './state.js';

/** @typedef {CanvasRenderingContext2D} Context */
/** @typedef {(context: Context, width: number, height: number) => void} Draw */

/** Rises when the system changes between light and dark. */
const scheme = signal(0);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { scheme.value += 1; });

/** Changes with all colours. */
export const lookOfPage = () => `${theme.value} ${scheme.value}`;

/** @param {string} name a custom property of the style sheet */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Colours of lines that are told apart, repeated with other dashes. */
export const TINTS = 8;
export const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

/** Colours from the worst to the best value. @param {number} count */
export function ramp(count) {
  const stops = ['--worst', '--middle', '--best'].map((name) => channels(colour(name)));
  return Array.from({ length: count }, (_, at) => {
    const place = (at / Math.max(1, count - 1)) * 2;
    const [from, to] = place <= 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
    const part = place <= 1 ? place : place - 1;
    return `rgb(${from.map((value, channel) => Math.round(value + (to[channel] - value) * part)).join(' ')})`;
  });
}

/** @param {string} hex */
const channels = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16) || 0);

/**
 * `paint` is kept as a picture; `over` is drawn above it, as often as the pointer moves.
 * @param {{ label: string, height: number, paint: Draw, over?: Draw, className?: string, [handler: string]: any }} props
 */
export function Canvas({ label, height, paint, over, className = '', ...handlers }) {
  const element = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [width, setWidth] = useState(0);
  const look = lookOfPage();
  useLayoutEffect(() => {
    const canvas = element.current;
    if (!canvas) return undefined;
    setWidth(canvas.clientWidth);
    const watch = new ResizeObserver(() => setWidth(canvas.clientWidth));
    watch.observe(canvas);
    return () => watch.disconnect();
  }, []);
  const sharp = Math.min(3, devicePixelRatio || 1);
  const picture = useMemo(() => document.createElement('canvas'), []);
  useEffect(() => {
    if (!width) return;
    resize(picture, width, height, sharp);
    const context = picture.getContext('2d');
    if (context) paint(scaled(context, width, height, sharp), width, height);
  }, [paint, width, height, look, sharp]);
  useEffect(() => {
    const canvas = element.current;
    const context = canvas?.getContext('2d');
    if (!canvas || !context || !width) return;
    resize(canvas, width, height, sharp);
    scaled(context, width, height, sharp);
    context.drawImage(picture, 0, 0, width, height);
    over?.(context, width, height);
  }, [paint, over, width, height, look, sharp]);
  return html`<canvas ref=${element} class=${`canvas ${className}`} style=${{ height: `${height}px` }} role="img" aria-label=${label} ...${handlers}></canvas>`;
}

/** @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {number} sharp */
function resize(canvas, width, height, sharp) {
  const [wide, high] = [Math.round(width * sharp), Math.round(height * sharp)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
}

/** @param {Context} context @param {number} width @param {number} height @param {number} sharp */
function scaled(context, width, height, sharp) {
  context.setTransform(sharp, 0, 0, sharp, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
  return context;
}

/**
 * Text that stays readable above lines.
 * @param {Context} context @param {string} text @param {number} x @param {number} y
 */
export function label(context, text, x, y) {
  context.lineJoin = 'round';
  context.lineWidth = 4;
  context.strokeStyle = colour('--card');
  context.strokeText(text, x, y);
  context.fillStyle = colour('--text-quiet');
  context.fillText(text, x, y);
}
