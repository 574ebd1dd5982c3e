// @ts-check
// The stages of a job as a graph. The server lays it out, so that pages and cockpit agree; below it the same as a table.
import { useEffect, useState } from '../vendor/hooks.js';
import { jobPath } from './api.js';
import { cutMiddle, duration, grouped } from './format.js';
import { h, html } from './html.js';
import { useData } from './state.js';
import { Empty, Trouble } from './ui.js';

/** @typedef {import('./messages.d.ts').StageGraph} StageGraph */
/** @typedef {import('./messages.d.ts').StageNode} StageNode */

const WIDE = 190;
const HIGH = 46;
const GAP_X = 56;
const GAP_Y = 18;
const MOST_DRAWN = 400;
const SIGNS = /** @type {Record<string, string>} */ ({
  hit: '✓', ran: '✓', failed: '✗', diverged: '✗', cancelled: '⊘', pruned: '∅', running: '▶', waiting: '·',
});

/** @param {{ job: import('./messages.d.ts').JobView }} props */
export function StagesTab({ job }) {
  const { data, error, reload } = /** @type {ReturnType<typeof useData<StageGraph>>} */ (useData(`${jobPath(job.id)}/stages`));
  const [isAll, setAll] = useState(false);
  useEffect(() => reload(), [job.changed_s]);
  if (!data) return error ? h(Trouble, { error, what: 'stages' }) : html`<p class="quiet">loading…</p>`;
  if (!data.nodes.length) return h(Empty, { title: 'No stages yet: they are known when the job starts.' });
  const isLarge = data.nodes.length > MOST_DRAWN && !isAll;
  return html`${isLarge ? html`<p><button type="button" onClick=${() => setAll(true)}>draw ${grouped(data.nodes.length)} stages</button></p>`
    : html`<div class="scroll graph" tabindex="0" role="region" aria-label="graph of the stages">${h(Graph, { graph: data })}</div>`}
    ${data.left_out > 0 && html`<p class="quiet">${grouped(data.left_out)} more stages are not shown.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label=${`stages`}><table><caption class="hidden">stages</caption><thead><tr><th scope="col">stage</th><th scope="col">state</th><th scope="col" class="right">took</th><th scope="col">why</th></tr></thead>
      <tbody>${data.nodes.slice(0, 1000).map((node) => html`<tr key=${node.name}><th scope="row">${node.title || node.name}${node.instances ? ` × ${grouped(node.instances)}` : ''}</th>
        <td>${SIGNS[node.ending] ?? '?'} ${node.ending}${node.of ? ` ${grouped(node.step ?? 0)} of ${grouped(node.of)}` : ''}</td>
        <td class="right">${duration(node.seconds)}</td><td>${node.message || node.why}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{ graph: StageGraph }} props */
function Graph({ graph }) {
  const layers = Math.max(...graph.nodes.map((node) => node.layer)) + 1;
  const places = Math.max(...graph.nodes.map((node) => node.place)) + 1;
  const width = layers * (WIDE + GAP_X) - GAP_X + 4;
  const height = places * (HIGH + GAP_Y) - GAP_Y + 4;
  /** @param {StageNode} node */
  const left = (node) => 2 + node.layer * (WIDE + GAP_X);
  /** @param {StageNode} node */
  const top = (node) => 2 + node.place * (HIGH + GAP_Y);
  return html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`${graph.nodes.length} stages; the table below lists them`}>
    ${graph.edges.map(([from, to]) => {
      const [a, b] = [graph.nodes[from], graph.nodes[to]];
      if (!a || !b) return null;
      const [x1, y1, x2, y2] = [left(a) + WIDE, top(a) + HIGH / 2, left(b), top(b) + HIGH / 2];
      const bend = Math.max(20, (x2 - x1) / 2);
      return html`<path key=${`${from} ${to}`} class="edge" d=${`M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} />`;
    })}
    ${graph.nodes.map((node) => html`<g key=${node.name} class=${`stage stage-${node.ending}`}><title>${`${node.title || node.name}: ${node.ending}${node.why ? `, ${node.why}` : ''}`}</title>
      <rect x=${left(node)} y=${top(node)} width=${WIDE} height=${HIGH} rx="6" />
      <text x=${left(node) + 10} y=${top(node) + 19}>${cutMiddle(node.title || node.name, 24)}${node.instances ? ` ×${node.instances}` : ''}</text>
      <text class="second" x=${left(node) + 10} y=${top(node) + 36}>${SIGNS[node.ending] ?? '?'} ${node.ending}${node.seconds ? ` · ${duration(node.seconds)}` : ''}${
        node.of ? ` · ${Math.floor((100 * (node.step ?? 0)) / node.of)} %` : ''}</text></g>`)}
  </svg>`;
}
