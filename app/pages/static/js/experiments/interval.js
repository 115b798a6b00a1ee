// A confidence sequence as a bar, on an axis that all rows of a list share, with zero and the minimal effect marked.

import { h } from "../dom.js";
import { amount, effectInWords } from "./words.js";

const CLIPPED = 3; // an interval wider than this many minimal effects is cut off, so that the others stay readable
const ROUND = [1, 2, 4, 6, 10];
const LEAST = -1; // nothing falls by more than 100 %
const APART = 12; // labels closer than this many percent of the axis would touch

/**
 * The axis of relative effects: round numbers around every estimate, and every interval within reason.
 *
 * @param {Compared[]} effects
 * @returns {Span}
 */
export function reach(effects) {
  const minimal = Math.max(...effects.map((comparison) => comparison.minimal_effect), 0.001);
  const widest = Math.max(
    ...effects.flatMap((comparison) => [
      Math.abs(comparison.effect.lower ?? 0),
      Math.abs(comparison.effect.upper ?? 0),
      1.5 * comparison.minimal_effect,
    ]),
    0,
  );
  const farthest = Math.max(...effects.map((comparison) => Math.abs(comparison.effect.estimate ?? 0)), 0);
  const high = rounded(
    Math.max(Math.min(widest * 1.05, Math.max(CLIPPED * 4 * minimal, 0.25)), farthest * 1.05) || 0.1,
  );
  return { low: Math.max(-high, LEAST), high };
}

/**
 * The ends of a chart's axis: all estimates, the minimal effect, and the intervals but the first and widest ones.
 *
 * @param {Effect[]} effects
 * @param {number} minimal
 * @param {Scale} scale
 * @returns {Span}
 */
export function ends(effects, minimal, scale) {
  const later = effects.slice(Math.floor(effects.length / 6));
  const shown = [
    -1.4 * minimal,
    1.4 * minimal,
    ...effects.map((effect) => effect.estimate),
    ...later.flatMap((effect) => [effect.lower, effect.upper]),
  ].filter((bound) => bound !== null);
  const low = -rounded(-1.05 * Math.min(...shown)),
    high = rounded(1.05 * Math.max(...shown));
  return { low: scale === "relative" ? Math.max(low, LEAST) : low, high };
}

/**
 * The next larger number whose half is round, too: the axis has five labels.
 *
 * @param {number} value
 * @returns {number}
 */
export function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return Number(((ROUND.find((number) => number * power >= value * 0.9999) ?? 10) * power).toPrecision(2));
}

/**
 * @param {number} value
 * @param {Span} span
 */
const place = (value, { low, high }) => Math.min(100, Math.max(0, (100 * (value - low)) / (high - low)));

/**
 * `words`: whether to describe it to screen readers; not needed where the words are next to it.
 *
 * @param {Compared} comparison
 * @param {Span} span
 * @param {boolean} [words]
 */
export function interval(comparison, span, words = true) {
  const { lower, upper, estimate } = comparison.effect;
  const known = lower !== null && upper !== null && lower !== undefined && upper !== undefined;
  const left = known ? place(lower, span) : 0,
    right = known ? place(upper, span) : 0;
  return h(
    "div",
    { class: "interval" },
    h(
      "div",
      { class: "track", "aria-hidden": "true" },
      h("span", {
        class: "minimal",
        style: {
          left: `${place(-comparison.minimal_effect, span)}%`,
          right: `${100 - place(comparison.minimal_effect, span)}%`,
        },
      }),
      h("span", { class: "zero", style: { left: `${place(0, span)}%` } }),
      known
        ? h("span", {
            class: `sequence ${lower < span.low ? "cut-left" : ""} ${upper > span.high ? "cut-right" : ""}`,
            style: { left: `${left}%`, width: `${Math.max(right - left, 0.8)}%` },
          })
        : null,
      known && estimate !== null
        ? h("span", { class: "estimate", style: { left: `${place(estimate, span)}%` } })
        : null,
    ),
    words ? h("span", { class: "unseen" }, effectInWords(comparison)) : null,
  );
}

/**
 * @param {Span} span
 * @param {Scale} scale
 */
export function axis(span, scale) {
  const left = span.low === -span.high ? [span.low, span.low / 2] : place(0, span) > APART ? [span.low] : [];
  return h(
    "div",
    { class: "axis", "aria-hidden": "true" },
    [...left, 0, span.high / 2, span.high].map((value) =>
      h(
        "span",
        { style: { left: `${place(value, span)}%` } },
        scale === "relative" ? amount(Math.round(value * 1000) / 1000, scale) : amount(value, scale),
      ),
    ),
  );
}
