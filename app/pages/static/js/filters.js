// The filters of a list. Its address keeps them; what is wrong in it is said, and the rest of it holds.

import { h } from "./dom.js";
import { moment, whole } from "./format.js";
import { notice } from "./parts.js";

/** @type {(readonly [number, string])[]} */
const TIMES = [
  [900, "last 15 minutes"],
  [3600, "last hour"],
  [21600, "last 6 hours"],
  [86400, "last 24 hours"],
  [604800, "last 7 days"],
  [2592000, "last 30 days"],
];
/** @type {(readonly [number, string])[]} */
const UNITS = [
  [86400, "days"],
  [3600, "h"],
  [60, "min"],
];

/**
 * The words for the filter `last_s`; an address may have any number of seconds.
 *
 * @param {string} value
 */
function lastWords(value) {
  const given = Number(value);
  const option = TIMES.find(([length]) => length === given);
  if (option) return option[1];
  const [length, unit] = UNITS.find(([one]) => given >= one && given % one === 0) ?? [1, "s"];
  return `last ${Number.isSafeInteger(given) ? whole(given / length) : value}\u00a0${unit}`;
}

/**
 * The times that a list of the last requests can have. One that goes back further says so; more of those are offered
 * for older failures alone.
 *
 * @param {{since: number | null, older_kept: number}} held Since when the list has all requests.
 * @param {number} now Unix seconds.
 * @returns {(readonly [number, string])[]}
 */
export function timesOf({ since, older_kept }, now) {
  const age = since === null ? 0 : now - since;
  const begin =
    since === null ? "" : older_kept ? `: failures before ${moment(since)}` : `: all since ${moment(since)}`;
  const first = TIMES.findIndex(([length]) => length > age);
  return TIMES.filter((_, index) => first < 0 || index <= first || older_kept > 0).map(([length, words]) => [
    length,
    length > age ? words + begin : words,
  ]);
}

export class Filters {
  /**
   * The filters that are set.
   *
   * @type {Record<string, string>}
   */
  values = {};
  /** @type {string[]} */
  #wrong = [];
  #page;
  #names;
  #list;

  /**
   * @param {string} page The page's name in its address.
   * @param {readonly string[]} names
   * @param {Record<string, string>} parameters Those of the address.
   * @param {{refresh: () => Promise<void>, announce: Announce, failed: (error: Error) => void}} list What is read again
   *   once the visitor has changed a filter.
   */
  constructor(page, names, parameters, list) {
    this.#page = page;
    this.#names = names;
    this.#list = list;
    for (const [name, value] of Object.entries(parameters)) {
      if (!value) continue;
      if (names.includes(name)) this.values[name] = value;
      else this.#wrong.push(`There is no filter “${name}”: there are ${names.join(", ")}`);
    }
  }

  /**
   * Sets filters; an empty value removes one.
   *
   * @param {Record<string, string>} changed
   */
  change(changed) {
    for (const [name, value] of Object.entries(changed))
      if (value) this.values[name] = value;
      else delete this.values[name];
    this.#wrong = [];
    remember(this.#page, this.values);
    this.#read();
  }

  async #read() {
    const { refresh, announce, failed } = this.#list;
    try {
      await refresh();
      announce("The list has changed");
    } catch (error) {
      failed(error);
    }
  }

  /**
   * What `read` answers to the filters. One that the server refuses is left out from then on.
   *
   * @template Answer
   * @param {(filters: Record<string, string>) => Promise<Answer>} read
   * @returns {Promise<Answer>}
   */
  async applied(read) {
    for (;;) {
      try {
        return await read(this.values);
      } catch (error) {
        if (error.status !== 400 || !(error.param in this.values)) throw error;
        delete this.values[error.param];
        this.#wrong.push(error.message);
        remember(this.#page, this.values);
      }
    }
  }

  /**
   * The filters' row, below what was wrong in the address.
   *
   * @param {...Child} fields
   * @returns {Child[]}
   */
  row(...fields) {
    const wrong = this.#wrong.map((text) => h("div", {}, text.replace(/\.?$/, ".")));
    return [
      wrong.length ? notice("warn", wrong, "This filter is left out, and the others hold.") : null,
      h(
        "div",
        { class: "filters", role: "group", "aria-label": "Filters" },
        fields,
        Object.keys(this.values).length
          ? h("button", { type: "button", class: "quiet", key: "clear", on: { click: () => this.#clear() } }, "Clear")
          : null,
      ),
    ];
  }

  #clear() {
    this.change(Object.fromEntries(this.#names.map((name) => [name, ""])));
  }

  /**
   * The filter by the time, `last_s`.
   *
   * @param {(readonly [number, string])[]} [times] Seconds in words: what the list can have.
   */
  when(times = TIMES) {
    const { last_s: value } = this.values;
    /** @type {[string, string][]} */
    const options = times.map(([length, words]) => [length === Number(value) ? value : String(length), words]);
    const isOption = !value || options.some(([option]) => option === value);
    return this.select("last_s", "When", isOption ? options : [...options, [value, lastWords(value)]], "any time");
  }

  /**
   * @param {string} name
   * @param {string} label
   * @param {readonly (readonly [string, string])[]} options The values and their words.
   * @param {string} [neutral] The words for no filter; a name may be "all".
   */
  select(name, label, options, neutral = "all") {
    const value = this.values[name] ?? "";
    const known = !value || options.some(([option]) => option === value);
    return h(
      "div",
      { class: "field", key: name },
      h("label", { for: `filter-${name}` }, label),
      h(
        "select",
        { id: `filter-${name}`, value, on: { change: (event) => this.change({ [name]: event.target.value }) } },
        h("option", { value: "" }, neutral),
        [...options, ...(known ? [] : [[value, value]])].map(([option, words]) =>
          h("option", { value: option, key: option }, words),
        ),
      ),
    );
  }
}

/**
 * Names as the options of a filter.
 *
 * @param {readonly string[]} names
 * @returns {(readonly [string, string])[]}
 */
export function same(names) {
  return names.map((name) => [name, name]);
}

/**
 * Makes these parameters the page's address, without a new page.
 *
 * @param {string} page
 * @param {Record<string, string>} parameters
 */
export function remember(page, parameters) {
  const query = new URLSearchParams(parameters).toString();
  history.replaceState(null, "", `#/${page}${query && `?${query}`}`);
}
