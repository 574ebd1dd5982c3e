// @ts-check
// A table of any length: only the rows in view are elements. Rows have one height; keys move a cursor. While it is
// scrolled, elements of rows that leave become those that come, and a row that stays as it was is not made again.
import { useEffect, useLayoutEffect, useRef, useState } from '../vendor/hooks.js';
import { html } from './html.js';

const ROW_PX = 34;
const HEAD_PX = 36;
const EXTRA_ROWS = 6;
/** Browsers limit the height of an element. */
const MOST_PX = 8_000_000;

/**
 * @typedef {{ key: string, title: string, className: string, sort?: string }} Column
 * @typedef {{ label: string, columns: Column[], count: number, sort: string, setSort: (key: string) => void,
 *   row: (index: number) => any[] | null, parts: (index: number) => any[], rowClass?: (index: number) => string,
 *   onView?: (first: number, last: number) => void, onOpen: (index: number) => void, onMark?: (index: number) => void,
 *   onPoint?: (index: number) => void, tracks?: string, width?: number }} TableProps `tracks`: widths of columns that differ by page
 * @typedef {{ parts: any[], made: any }} MadeRow
 */

/**
 * `row` makes the cells of a row (null: not loaded yet), `parts` returns what they are made of.
 * @param {TableProps} props
 */
export function VirtualTable({ label, columns, count, sort, setSort, row, parts, rowClass, onView, onOpen, onMark, onPoint, tracks, width }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [cursor, setCursor] = useState(-1);
  const made = useRef(/** @type {Map<number, MadeRow>} */ (new Map()));
  const focused = focusedRow();
  useLayoutEffect(() => {
    // The row with the focus has left, and its element is another row's: keys belong to the table then.
    if (focused && focusedRow() !== focused) box.current?.focus({ preventScroll: true });
  });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const watch = new ResizeObserver(() => setHeight(element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const whole = count * ROW_PX + HEAD_PX;
  const shown = Math.min(whole, MOST_PX);
  const room = Math.max(1, shown - height);
  // Beyond the limit a pixel of the scrollbar stands for several of the table.
  const offset = whole > shown ? (top / room) * (whole - height) : top;
  const first = Math.max(0, Math.floor(offset / ROW_PX) - EXTRA_ROWS);
  const last = Math.min(count, Math.ceil((offset + height) / ROW_PX) + EXTRA_ROWS);
  useEffect(() => onView?.(first, last), [first, last, count]);
  /** @param {number} index */
  const move = (index) => {
    const next = Math.max(0, Math.min(count - 1, index));
    setCursor(next);
    onPoint?.(next);
    const element = box.current;
    if (!element || whole > shown) return;
    if (next * ROW_PX < element.scrollTop) element.scrollTop = next * ROW_PX;
    else if ((next + 1) * ROW_PX + HEAD_PX > element.scrollTop + height) element.scrollTop = (next + 1) * ROW_PX + HEAD_PX - height;
  };
  /** @param {KeyboardEvent} event */
  const hear = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.floor(height / ROW_PX);
    const steps = /** @type {Record<string, number>} */ ({
      j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -count, End: count,
    });
    if (event.key in steps) move(cursor + steps[event.key]);
    else if (event.key === 'Enter' && cursor >= 0 && event.target === box.current) onOpen(cursor);
    else if (event.key === 'x' && cursor >= 0) onMark?.(cursor);
    else return;
    event.preventDefault();
  };
  // As many elements as fit, and one for each row that is partly in view.
  const elements = Math.ceil(height / ROW_PX) + 2 * EXTRA_ROWS + 1;
  /** @type {Map<number, MadeRow>} */
  const kept = new Map();
  const wide = width ? { minWidth: `${width}px` } : {};
  const laid = tracks ? { gridTemplateColumns: tracks } : {};
  const rows = [];
  for (let index = first; index < last; index += 1) {
    const y = index * ROW_PX - offset + top;
    const own = [elements, y, index === cursor, rowClass?.(index), columns, ...parts(index)];
    const before = made.current.get(index);
    const one = before && isSame(before.parts, own) ? before : { parts: own, made: makeRow(index, y) };
    kept.set(index, one);
    rows.push(one.made);
  }
  made.current = kept;
  /** @param {number} index @param {number} y */
  function makeRow(index, y) {
    const cells = row(index);
    return html`<div role="row" key=${index % elements} id=${`row-${index}`} aria-rowindex=${index + 2}
      class=${`vrow${index === cursor ? ' cursor' : ''} ${rowClass?.(index) ?? ''}`} style=${{ transform: `translateY(${y}px)`, ...laid }}
      onDblClick=${() => onOpen(index)} onClick=${() => setCursor(index)}
      onMouseMove=${onPoint && ((/** @type {MouseEvent} */ event) => {
        // Rows that scroll below a pointer at rest are not pointed at.
        if (event.movementX || event.movementY) onPoint(index);
      })}>${columns.map((column, at) => html`
        <div role="gridcell" key=${column.key} class=${column.className}>${cells ? cells[at] : at === 0 ? '' : '…'}</div>`)}</div>`;
  }
  return html`<div class=${`vtable${tracks ? ' short' : ''}`} role="grid" aria-label=${label} aria-rowcount=${count + 1} aria-colcount=${columns.length}
    ref=${box} tabindex="0" data-keys="rows" aria-activedescendant=${cursor >= first && cursor < last ? `row-${cursor}` : undefined}
    onScroll=${(/** @type {any} */ event) => setTop(event.currentTarget.scrollTop)} onKeyDown=${hear}>
    <div role="rowgroup" class="vheads" style=${wide}><div role="row" class="vhead" aria-rowindex="1" style=${laid}>${columns.map((column) => html`<div role="columnheader" key=${column.key}
      class=${column.className} aria-sort=${ariaSort(column, sort)}>${column.sort
        ? html`<button type="button" onClick=${() => setSort(flipped(column.sort ?? '', sort))}>${column.title}${mark(column, sort)}</button>`
        : column.title || html`<span class="hidden">${column.key}</span>`}</div>`)}</div></div>
    <div role="rowgroup" class="vspace" style=${{ height: `${shown - HEAD_PX}px`, ...wide }}>${rows}</div></div>`;
}

/** The row that has the focus, by its id. */
const focusedRow = () => document.activeElement?.closest('.vrow')?.id ?? '';

/** @param {any[]} before @param {any[]} now */
const isSame = (before, now) => before.length === now.length && before.every((one, at) => one === now[at]);

/** @param {string} key @param {string} sort */
const flipped = (key, sort) => (sort === key ? `-${key}` : key);

/** @param {Column} column @param {string} sort */
const mark = (column, sort) => (sort === column.sort ? ' ▾' : sort === `-${column.sort}` ? ' ▴' : '');

/** @param {Column} column @param {string} sort */
const ariaSort = (column, sort) => (!column.sort ? undefined
  : sort === column.sort ? 'descending' : sort === `-${column.sort}` ? 'ascending' : 'none');
