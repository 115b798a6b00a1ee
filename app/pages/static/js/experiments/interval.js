// A confidence sequence as a bar, on an axis that all rows of a list share, with zero and the minimal effect marked.

import { h } from "../dom.js";
import { amount, effectInWords } from "./words.js";

const CLIPPED = 3; // an interval wider than this many minimal effects is cut off, so that the others stay readable
const ROUND = [1, 2, 4, 6, 10];

/** Half the length of the axis: a round number, large enough for every interval within reason. */
export function reach(effects) {
  const minimal = Math.max(...effects.map((it) => it.minimal_effect), 0.001);
  const widest = Math.max(...effects.flatMap((it) => [Math.abs(it.effect.lower ?? 0), Math.abs(it.effect.upper ?? 0), 1.5 * it.minimal_effect]), 0);
  return rounded(Math.min(widest * 1.05, Math.max(CLIPPED * 4 * minimal, 0.25)) || 0.1);
}

/** The next larger number whose half is round, too: the axis has five labels. */
export function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return Number(((ROUND.find((it) => it * power >= value * 0.9999) ?? 10) * power).toPrecision(2));
}

const place = (value, span) => Math.min(100, Math.max(0, 50 + (50 * value) / span));

/** `words`: whether to describe it to screen readers; not needed where the words are next to it. */
export function interval(it, span, words = true) {
  const { lower, upper, estimate } = it.effect;
  const known = lower !== null && upper !== null && lower !== undefined && upper !== undefined;
  const left = known ? place(lower, span) : 0, right = known ? place(upper, span) : 0;
  return h(
    "div",
    { class: "interval" },
    h(
      "div",
      { class: "track", "aria-hidden": "true" },
      h("span", { class: "minimal", style: { left: `${place(-it.minimal_effect, span)}%`, right: `${100 - place(it.minimal_effect, span)}%` } }),
      h("span", { class: "zero" }),
      known ? h("span", { class: `sequence ${lower < -span ? "cut-left" : ""} ${upper > span ? "cut-right" : ""}`, style: { left: `${left}%`, width: `${Math.max(right - left, 0.8)}%` } }) : null,
      known && estimate !== null ? h("span", { class: "estimate", style: { left: `${place(estimate, span)}%` } }) : null,
    ),
    words ? h("span", { class: "unseen" }, effectInWords(it)) : null,
  );
}

export function axis(span, scale) {
  return h("div", { class: "axis", "aria-hidden": "true" }, [-span, -span / 2, 0, span / 2, span].map((it) => h("span", { style: { left: `${place(it, span)}%` } }, scale === "relative" ? amount(Math.round(it * 1000) / 1000, scale) : amount(it, scale))));
}
