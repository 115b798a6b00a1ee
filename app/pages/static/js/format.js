// Numbers and times for people. Unknown values are a dash, and "no value" to screen readers.

import { h } from "./dom.js";

/** @param {number} most */
const digits = (most) => new Intl.NumberFormat("en-GB", { maximumFractionDigits: most });
const WHOLE = digits(0),
  ONE = digits(1),
  TWO = digits(2),
  SMALL = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 2 });
/** @type {Intl.DateTimeFormatOptions} */
const HOUR = { hour: "2-digit", minute: "2-digit" };
/** @type {Intl.DateTimeFormatOptions} */
const CLOCK = { ...HOUR, second: "2-digit" };
const WITH_ZONE = new Intl.DateTimeFormat("en-GB", {
  dateStyle: "full",
  timeStyle: "long",
});

/**
 * A format that returns null for what is missing.
 *
 * @param {(value: number) => string} format
 * @returns {<Value extends Maybe<number>>(value: Value) => Shown<Value>}
 */
function optional(format) {
  return (value) => /** @type {any} */ (value === null || value === undefined ? null : format(value));
}

export const number = optional((value) =>
  (Math.abs(value) >= 100 ? WHOLE : Math.abs(value) >= 10 ? ONE : Math.abs(value) >= 0.01 ? TWO : SMALL).format(value),
);

export const whole = optional((value) => WHOLE.format(value));

/** 0.123 → "12.3 %". Rounds the decimal number: 0.5175 * 100 is 51.74999999999999. */
export const percent = optional((share) => {
  const digits = share !== 0 && Math.abs(share) < 0.001 ? SMALL : ONE;
  return `${digits.format(Number((share * 100).toPrecision(12)))}\u00a0%`;
});

/** @param {number} value */
const sign = (value) => (value > 0 ? "+" : value < 0 ? "−" : "");

/** -0.05 → "−5 %", 0.05 → "+5 %". */
export const signedPercent = optional((share) => `${sign(share)}${percent(Math.abs(share))}`);

export const signed = optional((value) => `${sign(value)}${number(Math.abs(value))}`);

/** Seconds: 0.0123 → "12 ms", 2.5 → "2.5 s". */
export const seconds = optional((value) => {
  if (value < 0.01) return `${ONE.format(value * 1000)}\u00a0ms`;
  return value < 1 ? `${WHOLE.format(value * 1000)}\u00a0ms` : `${number(value)}\u00a0s`;
});

/** A length of time: 8100 → "2 h 15 min". */
export const duration = optional((total) => {
  if (total < 90) return `${Math.round(total)}\u00a0s`;
  const minutes = Math.round(total / 60);
  if (minutes < 90) return `${minutes}\u00a0min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 && hours < 12 ? `${hours}\u00a0h ${minutes % 60}\u00a0min` : `${hours}\u00a0h`;
  return `${Math.round(hours / 24)}\u00a0days`;
});

/**
 * A text from the server, with what it has between backticks as code.
 *
 * @param {string} text
 * @returns {Child}
 */
export function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

/**
 * A sentence from the server, with its numbers kept on one line with their units.
 *
 * @param {string} text
 */
export function unbroken(text) {
  return text.replace(/(\d) (?=%|(?:ms|s|min|h|days)\b)/g, "$1\u00a0");
}

/**
 * Unix seconds as a time of day, with the date if it is not today, and the year if it is not this one.
 *
 * @param {Intl.DateTimeFormatOptions} clock
 */
function momentBy(clock) {
  /** @type {(date: Intl.DateTimeFormatOptions) => Intl.DateTimeFormat} */
  const format = (date) => new Intl.DateTimeFormat("en-GB", { ...date, ...clock });
  const today = format({}),
    year = format({ day: "numeric", month: "short" }),
    far = format({ day: "numeric", month: "short", year: "numeric" });
  return optional((at) => {
    const when = new Date(at * 1000);
    const now = new Date();
    if (when.toDateString() === now.toDateString()) return today.format(when);
    return (when.getFullYear() === now.getFullYear() ? year : far).format(when);
  });
}

export const moment = momentBy(CLOCK);

/** The same for what is known to the minute. */
export const minute = momentBy(HOUR);

/**
 * Two moments as a length of time, with their day once.
 *
 * @param {number} from
 * @param {number} to
 */
export function between(from, to) {
  const [first, last] = [moment(from), moment(to)];
  const day = first.slice(0, first.lastIndexOf(" ") + 1);
  return `${first}–${last.startsWith(day) ? last.slice(day.length) : last}`;
}

/** @param {Maybe<number>} at */
export function time(at) {
  if (at === null || at === undefined) return unknown();
  const when = new Date(at * 1000);
  return h("time", { datetime: when.toISOString(), title: WITH_ZONE.format(when) }, moment(at));
}

function unknown() {
  return h(
    "span",
    { class: "none" },
    h("span", { "aria-hidden": "true" }, "–"),
    h("span", { class: "unseen" }, "no value"),
  );
}

/**
 * @param {Child} text
 * @returns {Child}
 */
export function or(text) {
  return text ?? unknown();
}

/**
 * @param {number} value
 * @param {string} one
 * @param {string} many
 */
export function count(value, one, many) {
  return `${WHOLE.format(value)} ${value === 1 ? one : many}`;
}

/**
 * ["a", "b", "c"] → "a, b and c".
 *
 * @param {readonly string[]} words
 */
export function list(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/**
 * Labels of a time axis, for ticks in Unix seconds: the day where it changes, times of day between.
 *
 * @param {readonly number[]} times
 */
export function ticks(times) {
  let day = "";
  const isFine = times.length > 1 && times[1] - times[0] < 60;
  const label = new Intl.DateTimeFormat("en-GB", isFine ? CLOCK : HOUR);
  return times.map((at) => {
    const when = new Date(at * 1000),
      name = DAY.format(when),
      isNew = name !== day;
    day = name;
    const clock = label.format(when);
    return isNew ? (clock.startsWith("00:00") ? name : `${clock}\n${name}`) : clock;
  });
}

const STEPS_S = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800];
const MOST_TICKS = 4;
const EDGE = 0.06; // the part of an axis at whose ends a label would be cut

/**
 * Round times of an axis, as many as have room, by the visitor's clock: their labels, and their places from 0 to 1.
 *
 * @param {number} from Unix seconds.
 * @param {number} until
 * @returns {{text: string, at: number}[]}
 */
export function roundTicks(from, until) {
  const shift = -60 * new Date(from * 1000).getTimezoneOffset();
  const [first, last] = [from + EDGE * (until - from), until - EDGE * (until - from)];
  for (const step of STEPS_S) {
    const begin = Math.ceil((first + shift) / step) * step - shift;
    const count = Math.floor((last - begin) / step) + 1;
    if (count > MOST_TICKS) continue;
    const times = Array.from({ length: Math.max(count, 0) }, (_, index) => begin + index * step);
    const labels = ticks(times);
    return times.map((time, index) => ({ text: labels[index], at: (time - from) / (until - from) }));
  }
  return [];
}
