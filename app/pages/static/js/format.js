// Numbers and times for people. Unknown values are a dash, and "no value" to screen readers.

import { h } from "./dom.js";

const digits = (most) => new Intl.NumberFormat("en-GB", { maximumFractionDigits: most });
const WHOLE = digits(0),
  ONE = digits(1),
  TWO = digits(2),
  SMALL = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 2 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MOMENT = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const FAR = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
});

export function number(value) {
  if (value === null || value === undefined) return null;
  return (Math.abs(value) >= 100 ? WHOLE : Math.abs(value) >= 10 ? ONE : TWO).format(value);
}

export function whole(value) {
  return value === null || value === undefined ? null : WHOLE.format(value);
}

/** 0.123 → "12.3 %". */
export function percent(share) {
  if (share === null || share === undefined) return null;
  return `${(share !== 0 && Math.abs(share) < 0.001 ? SMALL : ONE).format(share * 100)}\u00a0%`;
}

/** -0.05 → "−5 %", 0.05 → "+5 %". */
export function signedPercent(share) {
  if (share === null || share === undefined) return null;
  return `${share > 0 ? "+" : share < 0 ? "−" : ""}${ONE.format(Math.abs(share) * 100)}\u00a0%`;
}

export function signed(value) {
  if (value === null || value === undefined) return null;
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${number(Math.abs(value))}`;
}

/** Seconds: 0.0123 → "12 ms", 2.5 → "2.5 s". */
export function seconds(value) {
  if (value === null || value === undefined) return null;
  if (value < 0.01) return `${ONE.format(value * 1000)}\u00a0ms`;
  return value < 1 ? `${WHOLE.format(value * 1000)}\u00a0ms` : `${number(value)}\u00a0s`;
}

/** A length of time: 8100 → "2 h 15 min". */
export function duration(total) {
  if (total === null || total === undefined) return null;
  if (total < 90) return `${Math.round(total)}\u00a0s`;
  const minutes = Math.round(total / 60);
  if (minutes < 90) return `${minutes}\u00a0min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 && hours < 12 ? `${hours}\u00a0h ${minutes % 60}\u00a0min` : `${hours}\u00a0h`;
  return `${Math.round(hours / 24)}\u00a0days`;
}

/** A sentence from the server, with its numbers kept on one line with their units. */
export function unbroken(text) {
  return text.replace(/(\d) (?=%|(?:ms|s|min|h|days)\b)/g, "$1\u00a0");
}

/** Unix seconds as a time of day, with the date if it is not today, and the year if it is not this one. */
export function moment(at) {
  if (at === null || at === undefined) return null;
  const when = new Date(at * 1000),
    now = new Date();
  if (when.toDateString() === now.toDateString()) return CLOCK.format(when);
  return (when.getFullYear() === now.getFullYear() ? MOMENT : FAR).format(when);
}

export function time(at) {
  if (at === null || at === undefined) return unknown();
  return h("time", { datetime: new Date(at * 1000).toISOString() }, moment(at));
}

export function unknown() {
  return h(
    "span",
    { class: "none" },
    h("span", { "aria-hidden": "true" }, "–"),
    h("span", { class: "unseen" }, "no value"),
  );
}

export function or(text) {
  return text ?? unknown();
}

export function count(value, one, many) {
  return `${WHOLE.format(value)} ${value === 1 ? one : many}`;
}

/** ["a", "b", "c"] → "a, b and c". */
export function list(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

const HOUR = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** Labels of a time axis, for ticks in Unix seconds: the day where it changes, times of day between. */
export function ticks(times) {
  let day = null;
  const isFine = times.length > 1 && times[1] - times[0] < 60;
  return times.map((at) => {
    const when = new Date(at * 1000),
      name = DAY.format(when),
      isNew = name !== day;
    day = name;
    const clock = (isFine ? CLOCK : HOUR).format(when);
    return isNew ? (clock.startsWith("00:00") ? name : `${clock}\n${name}`) : clock;
  });
}
