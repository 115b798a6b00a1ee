// A conversation: its turns, as messages of the next request, and as a browser keeps them.

import { asked } from "./request.js";

/**
 * The messages of the turns for `column`, which goes on from its own answers, or from the first one of a turn where it
 * was not asked. A turn without a text is left out.
 *
 * @param {readonly Turn[]} turns
 * @param {string} column
 * @returns {Message[]}
 */
export function messages(turns, column) {
  return turns.flatMap(({ prompt, image, answers }) => {
    const { text = "" } = answers.find((answer) => answer.column === column) ?? answers.find(({ text }) => text) ?? {};
    return text ? [asked(prompt, image), { role: "assistant", content: text }] : [];
  });
}

/** What a visit keeps: in memory, and in the browser's storage if the visitor wants that. */
export class Kept {
  #stored;
  #visit = 0;
  /** @type {string | null} */
  caller = null;
  /** @type {Partial<FormValues>} */
  typed = {};
  /** @type {Turn[]} */
  turns = [];

  /** @param {string} name The item of localStorage. */
  constructor(name) {
    this.#stored = name;
  }

  /**
   * What `caller` has in this visit: another's is forgotten.
   *
   * @param {string} caller
   * @param {number} visit
   */
  open(caller, visit) {
    if (this.caller === caller && this.#visit === visit) return;
    this.#visit = visit;
    Object.assign(this, { caller, typed: {}, turns: [] });
    const stored = JSON.parse(localStorage.getItem(this.#stored) ?? "null");
    if (stored?.caller === caller) Object.assign(this, stored);
    else this.stores = false;
  }

  /** Whether the browser keeps it. */
  get stores() {
    return localStorage.getItem(this.#stored) !== null;
  }

  set stores(is) {
    if (is) this.#store();
    else localStorage.removeItem(this.#stored);
  }

  /** Raises a QuotaExceededError where the browser's storage is too small; then nothing is stored. */
  #store() {
    const { caller, typed, turns } = this;
    try {
      localStorage.setItem(this.#stored, JSON.stringify({ caller, typed, turns }));
    } catch (error) {
      localStorage.removeItem(this.#stored);
      throw error;
    }
  }
}
