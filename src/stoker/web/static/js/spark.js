// @ts-check
// A small line without axes, beside a number.
import { useCallback } from '../vendor/hooks.js';
import { Canvas, colour } from './canvas.js';
import { h } from './html.js';

const HIGH = 28;

/** @param {{ values: (number | null)[], label: string, low?: number, high?: number }} props */
export function Spark({ values, label, low, high }) {
  const known = /** @type {number[]} */ (values.filter((value) => value !== null));
  const bottom = low ?? Math.min(...known);
  const top = high ?? Math.max(...known);
  const paint = useCallback((/** @type {CanvasRenderingContext2D} */ pen, /** @type {number} */ wide) => {
    /** @param {number} at */
    const x = (at) => 1 + (at / Math.max(1, values.length - 1)) * (wide - 2);
    /** @param {number} value */
    const y = (value) => HIGH - 2 - ((value - bottom) / Math.max(1e-9, top - bottom)) * (HIGH - 4);
    const stroke = colour('--accent');
    pen.lineWidth = 1.4;
    pen.lineJoin = 'round';
    let start = -1;
    for (let at = 0; at <= values.length; at += 1) {
      if (typeof values[at] === 'number') {
        if (start < 0) start = at;
        continue;
      }
      if (start < 0) continue;
      pen.beginPath();
      for (let one = start; one < at; one += 1) pen.lineTo(x(one), y(Number(values[one])));
      if (at - start === 1) pen.lineTo(x(start) + 1.5, y(Number(values[start])));
      pen.strokeStyle = stroke;
      pen.stroke();
      pen.lineTo(x(at - 1), HIGH);
      pen.lineTo(x(start), HIGH);
      pen.fillStyle = `${stroke}2e`;
      pen.fill();
      start = -1;
    }
  }, [values, bottom, top]);
  const range = known.length ? `${Math.round(Math.min(...known))} to ${Math.round(Math.max(...known))}, last ${Math.round(known[known.length - 1])}` : 'nothing measured';
  return h(Canvas, { label: `${label}: ${range}`, height: HIGH, paint, className: 'spark' });
}
