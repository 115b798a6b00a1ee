// The difference between two answers, word by word.

import { h } from "../dom.js";

/** @type {Record<Edit["kind"], ["span" | "del" | "ins", string | null]>} */
const MARKS = { same: ["span", null], removed: ["del", "removed: "], added: ["ins", "added: "] };

/**
 * The elements that compare two of these answers (`{name, text}`). With more than two, the visitor chooses.
 *
 * @param {{name: string, text: string}[]} answers
 */
export function comparison(answers) {
  const chosen = [answers[0], answers[1]];
  const said = h("p", { role: "status" });
  const text = h("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "Differences" });
  /**
   * @param {number} at
   * @param {string} label
   */
  const choice = (at, label) => {
    const id = `compare-${at}`;
    /** @type {HTMLSelectElement} */
    const select = h(
      "select",
      { id, on: { change: () => ((chosen[at] = answers[select.selectedIndex]), draw()) } },
      answers.map((answer) => h("option", { selected: answer === chosen[at] }, answer.name)),
    );
    return h("div", { class: "field" }, h("label", { for: id }, label), select);
  };

  function draw() {
    const [before, after] = chosen;
    const pieces = diff(before.text, after.text);
    const same = pieces.every((piece) => piece.kind === "same");
    said.textContent = same
      ? `The answers of ${before.name} and ${after.name} are the same, word for word.`
      : `${Math.round(100 * likeness(pieces))}\u00a0% of the words are the same. ` +
        `Struck out: only ${before.name}. Underlined: only ${after.name}.`;
    text.replaceChildren(
      ...pieces.map(({ kind, text: words }) => {
        const [tag, mark] = MARKS[kind];
        return h(tag, {}, mark && h("span", { class: "unseen" }, mark), words);
      }),
    );
  }

  draw();
  const choices = answers.length > 2 ? [h("div", { class: "where" }, choice(0, "From"), choice(1, "To"))] : [];
  return [h("h2", {}, "Difference"), ...choices, said, text];
}

// Scripts that write no spaces: each character is a word.
const UNSPACED = String.raw`[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]`;
const WORD = new RegExp(String.raw`\s+|${UNSPACED}\p{M}*|(?:(?!${UNSPACED})[\p{L}\p{N}\p{M}_])+|[^]`, "gu");

const MOST_EDITS = 2000; // the search takes time and memory with the square of this

/**
 * A text's words, spaces, and single other characters; joined, they are the text.
 *
 * @param {string} text
 * @returns {string[]}
 */
export function words(text) {
  return text.match(WORD) ?? [];
}

/**
 * The edits that turn `before` into `after`: pieces `{kind: "same" | "removed" | "added", text}`, with the fewest
 * words changed. Texts with more than 2,000 changed words are shown as replaced between what they share at both ends.
 *
 * @param {string} before
 * @param {string} after
 * @returns {Edit[]}
 */
export function diff(before, after) {
  const [a, b] = [words(before), words(after)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const middle = edits(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return joined([...all("same", a.slice(0, start)), ...middle, ...all("same", a.slice(a.length - end))]);
}

/**
 * @param {Edit["kind"]} kind
 * @param {string[]} texts
 * @returns {Edit[]}
 */
function all(kind, texts) {
  return texts.map((text) => ({ kind, text }));
}

/**
 * The similarity of two texts: the share of their words, spaces apart, that stay the same; 1 for two empty texts.
 *
 * @param {Edit[]} pieces
 */
export function likeness(pieces) {
  /** @param {string[]} kinds */
  const count = (kinds) =>
    pieces
      .filter((piece) => kinds.includes(piece.kind))
      .reduce((sum, piece) => sum + words(piece.text).filter((word) => word.trim()).length, 0);
  const [same, changed] = [count(["same"]), count(["removed", "added"])];
  return same + changed === 0 ? 1 : (2 * same) / (2 * same + changed);
}

/**
 * Myers' algorithm (An O(ND) Difference Algorithm, 1986): for each number of edits, how far each diagonal gets.
 *
 * @param {string[]} a
 * @param {string[]} b
 * @returns {Edit[]}
 */
function edits(a, b) {
  const replaced = [...all("removed", a), ...all("added", b)];
  if (!a.length || !b.length) return replaced;
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const zero = most + 1; // the position of diagonal 0
  const reach = new Int32Array(2 * most + 3).fill(-1);
  reach[zero + 1] = 0;
  const trace = []; // for each number of edits, diagonals -d - 1 to d + 1 before it
  for (let d = 0; d <= most; d++) {
    trace.push(reach.slice(zero - d - 1, zero + d + 2));
    for (let k = -d; k <= d; k += 2) {
      let x = isDown(reach, zero, d, k) ? reach[zero + k + 1] : reach[zero + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      reach[zero + k] = x;
      if (x >= a.length && x - k >= b.length) return walked(trace, a, b);
    }
  }
  return replaced;
}

/**
 * Whether diagonal `k` is reached by adding a word, from the diagonal above it.
 *
 * @param {Int32Array} reach
 * @param {number} zero
 * @param {number} d
 * @param {number} k
 */
function isDown(reach, zero, d, k) {
  return k === -d || (k !== d && reach[zero + k - 1] < reach[zero + k + 1]);
}

/**
 * The path to the end, traced back from the end.
 *
 * @param {Int32Array[]} trace
 * @param {string[]} a
 * @param {string[]} b
 * @returns {Edit[]}
 */
function walked(trace, a, b) {
  /** @type {Edit[]} */
  const path = [];
  let [x, y] = [a.length, b.length];
  for (let d = trace.length - 1; d >= 0; d--) {
    const [reach, zero, k] = [trace[d], d + 1, x - y];
    const from = isDown(reach, zero, d, k) ? k + 1 : k - 1;
    const fromX = reach[zero + from];
    const fromY = fromX - from;
    while (x > fromX && y > fromY) {
      path.push({ kind: "same", text: a[--x] });
      y--;
    }
    if (d > 0) path.push(from > k ? { kind: "added", text: b[--y] } : { kind: "removed", text: a[--x] });
  }
  return path.reverse();
}

/**
 * Neighbours of one kind together, and between two unchanged pieces what was removed before what was added.
 *
 * @param {Edit[]} pieces
 * @returns {Edit[]}
 */
function joined(pieces) {
  /** @type {Edit[]} */
  const found = [];
  let [removed, added] = ["", ""];
  const flush = () => {
    if (removed) found.push({ kind: "removed", text: removed });
    if (added) found.push({ kind: "added", text: added });
    [removed, added] = ["", ""];
  };
  for (const { kind, text } of pieces) {
    if (kind === "removed") removed += text;
    else if (kind === "added") added += text;
    else {
      flush();
      const last = found.at(-1);
      if (last?.kind === "same") last.text += text;
      else found.push({ kind: "same", text });
    }
  }
  flush();
  return found;
}
