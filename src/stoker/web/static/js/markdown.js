// @ts-check
// Markdown as elements: headings, lists, tables, code, emphasis. Everything else, markup included, is text; links and
// pictures are named and not followed. Pure.
import { html } from './html.js';

const MOST_LINES = 4000;

/** @param {string} source */
export function markdown(source) {
  return blocks(source.replace(/\r\n?/g, '\n').split('\n').slice(0, MOST_LINES));
}

/** @param {string[]} lines @returns {any[]} */
function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^ {0,3}(```+|~~~+)/.exec(line);
    const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (fence) {
      let end = at + 1;
      while (end < lines.length && !lines[end].trim().startsWith(fence[1])) end += 1;
      found.push(html`<pre tabindex="0"><code>${lines.slice(at + 1, end).join('\n')}</code></pre>`);
      at = end + 1;
    } else if (heading) {
      found.push(titled(heading[1].length, inline(heading[2])));
      at += 1;
    } else if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
      found.push(html`<hr />`);
      at += 1;
    } else if (isRow(line) && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] ?? '')) {
      let end = at + 2;
      while (end < lines.length && isRow(lines[end])) end += 1;
      found.push(tableOf(cells(line), lines.slice(at + 2, end).map(cells)));
      at = end;
    } else if (itemOf(line)) {
      let end = at + 1;
      while (end < lines.length && (itemOf(lines[end]) || /^\s+\S/.test(lines[end]))) end += 1;
      found.push(listOf(lines.slice(at, end)));
      at = end;
    } else if (/^ {0,3}>/.test(line)) {
      let end = at + 1;
      while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
      found.push(html`<blockquote>${blocks(lines.slice(at, end).map((one) => one.replace(/^ {0,3}> ?/, '')))}</blockquote>`);
      at = end;
    } else if (!line.trim()) {
      at += 1;
    } else {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() && !isBlock(lines[end])) end += 1;
      found.push(html`<p>${inline(lines.slice(at, end).map((one) => one.trim()).join(' '))}</p>`);
      at = end;
    }
  }
  return found;
}

/** @param {string} line */
const isBlock = (line) => /^ {0,3}(#{1,6}\s|```|~~~|>)/.test(line) || Boolean(itemOf(line)) || isRow(line);

/** @param {string} line */
const isRow = (line) => /^\s*\|.*\|\s*$/.test(line);

/** Headings stand below those of the page. @param {number} level @param {any} text */
const titled = (level, text) => (level === 1 ? html`<h2>${text}</h2>` : level === 2 ? html`<h3>${text}</h3>` : html`<h4>${text}</h4>`);

/** @param {string} line */
const itemOf = (line) => /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(line);

/** @param {string[]} lines @returns {any} */
function listOf(lines) {
  /** @type {{ text: string, inner: string[] }[]} */
  const items = [];
  const depth = itemOf(lines[0])?.[1].length ?? 0;
  for (const line of lines) {
    const item = itemOf(line);
    if (item && item[1].length <= depth) items.push({ text: item[3], inner: [] });
    else if (item && items.length) items[items.length - 1].inner.push(line);
    else if (items.length && items[items.length - 1].inner.length) items[items.length - 1].inner.push(line);
    else if (items.length) items[items.length - 1].text += ` ${line.trim()}`;
  }
  const shown = items.map((item) => html`<li>${inline(item.text)}${item.inner.length ? listOf(item.inner) : ''}</li>`);
  return /^\s*\d/.test(lines[0]) ? html`<ol>${shown}</ol>` : html`<ul>${shown}</ul>`;
}

/** @param {string} line */
const cells = (line) => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((cell) => cell.trim());

/** @param {string[]} head @param {string[][]} rows */
const tableOf = (head, rows) => html`<div class="scroll" tabindex="0" role="region" aria-label="table"><table>
  <thead><tr>${head.map((cell) => html`<th scope="col">${inline(cell)}</th>`)}</tr></thead>
  <tbody>${rows.map((row) => html`<tr>${head.map((_title, at) => html`<td>${inline(row[at] ?? '')}</td>`)}</tr>`)}</tbody></table></div>`;

const INLINE = /\\([\\`*_{}[\]()#+\-.!|<>~])|(`+)(.+?)\2|!\[([^\]]*)\]\([^)]*\)|\[([^\]]+)\]\(([^)\s]*)[^)]*\)|\*\*(.+?)\*\*|__(.+?)__|\*([^*\s][^*]*)\*|&(lt|gt|amp|quot);/g;
const NAMED = /** @type {Record<string, string>} */ ({ lt: '<', gt: '>', amp: '&', quot: '"' });

/** @param {string} text @returns {any[]} */
function inline(text) {
  const found = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > last) found.push(text.slice(last, match.index));
    last = match.index + match[0].length;
    const [, escaped, , code, picture, link, target, strong, strong2, weak, named] = match;
    if (escaped !== undefined) found.push(escaped);
    else if (code !== undefined) found.push(html`<code>${code.trim()}</code>`);
    else if (picture !== undefined) found.push(picture ? `[picture: ${picture}]` : '[picture]');
    else if (link !== undefined) found.push(html`${inline(link)}${target && target !== link ? ` (${target})` : ''}`);
    else if (strong ?? strong2) found.push(html`<strong>${inline(strong ?? strong2)}</strong>`);
    else if (weak !== undefined) found.push(html`<em>${inline(weak)}</em>`);
    else found.push(NAMED[named]);
  }
  if (last < text.length) found.push(text.slice(last));
  return found;
}
