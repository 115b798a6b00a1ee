// Verdicts, states and effects of experiments in words, with a mark.

import { h } from "../dom.js";
import { moment, signed, signedPercent, unbroken } from "../format.js";
import { mark } from "../parts.js";

/** @type {Record<string, [Mark, string]>} */
const DECISIONS = {
  ship: ["good", "Ship it"],
  do_not_ship: ["bad", "Do not ship"],
  keep_going: ["wait", "Keep going"],
  invalid: ["bad", "Not to be trusted"],
};
/** @type {Record<string, [Mark, string]>} */
const VERDICTS = {
  better: ["good", "better"],
  worse: ["bad", "worse"],
  different: ["warn", "different"],
  equivalent: ["info", "no difference that matters"],
  undecided: ["wait", "undecided"],
  too_early: ["wait", "too few units so far"],
  invalid: ["bad", "invalid"],
};
/** @type {Record<string, [Mark, string]>} */
const STATES = {
  running: ["good", "running"],
  paused: ["warn", "paused"],
  stopped: ["info", "stopped"],
  draft: ["info", "draft"],
};

/** @type {Record<string, string>} */
export const METRICS = {
  ttft: "First token",
  itl: "Between tokens",
  itl_max: "Longest gap",
  duration: "Duration",
  tokens_per_second: "Tokens per second",
  output_tokens: "Output tokens",
  prompt_tokens: "Prompt tokens",
};

/**
 * A sentence from the server, with each of `names` in an element that breaks at a hyphen only where it must.
 *
 * @param {string} text
 * @param {readonly string[]} names
 * @returns {Child[]}
 */
export function sentence(text, names) {
  const escaped = [...names].sort((a, b) => b.length - a.length).map((name) => name.replace(/[^\w]/g, "\\$&"));
  const parts = text.split(new RegExp(`(?<![\\w-])(${escaped.join("|")})(?![\\w-]|\\.\\w)`));
  return parts.map((part, index) => (index % 2 ? h("span", { class: "name" }, part) : unbroken(part)));
}

/**
 * The decision in words, with its mark; null for a run that has ended, or has not begun: nothing is decided on it.
 *
 * @param {{decision: Decision | null, state: string, acting?: {state: string} | null}} summary
 * @returns {[Mark, string] | null}
 */
export function decisionWords({ decision, state, acting }) {
  const now = acting?.state ?? state;
  if (!["running", "paused"].includes(now)) return null;
  if (now === "paused" && decision === "keep_going") return ["wait", "No decision yet"];
  return DECISIONS[decision ?? ""] ?? ["wait", "No evidence yet"];
}

/** @param {Parameters<typeof decisionWords>[0]} summary */
export function decision(summary) {
  const words = decisionWords(summary);
  return words && mark(...words);
}

/** @param {string} value */
export function verdict(value) {
  return mark(...(VERDICTS[value] ?? ["wait", value]));
}

/**
 * The verdict for a sentence, or for a label in a chart.
 *
 * @param {string} value
 */
export function verdictInWords(value) {
  return VERDICTS[value]?.[1] ?? value;
}

/** @param {{state: string, acting?: {state: string} | null}} summary */
export function state(summary) {
  const now = summary.acting?.state ?? summary.state;
  return mark(...(STATES[now] ?? ["info", now]));
}

/**
 * "ttft.p95" → "First token, p95"; feedback metrics keep their names.
 *
 * @param {string} key
 */
export function metricName(key) {
  const [metric, statistic] = key.split(".");
  return METRICS[metric] ? `${METRICS[metric]}${statistic ? `, ${statistic}` : ""}` : key;
}

/**
 * @template {Maybe<number>} Value
 * @param {Value} value
 * @param {Scale} scale
 * @returns {Shown<Value>}
 */
export function amount(value, scale) {
  return scale === "relative" ? signedPercent(value) : signed(value);
}

/**
 * "−7.7 %, between −13.4 % and −1.7 %; lower is better; ±5 % or less does not matter"
 *
 * @param {Pick<Compared, "effect" | "scale" | "minimal_effect" | "better">} comparison
 * @returns {string}
 */
export function effectInWords({ effect, scale, minimal_effect: minimal, better }) {
  if (effect.estimate === null || effect.estimate === undefined) return "no interval yet";
  const between =
    effect.lower === null || effect.upper === null
      ? ""
      : `, between ${amount(effect.lower, scale)} and ${amount(effect.upper, scale)}`;
  const what = better === "neither" ? "" : `; ${better} is better`;
  const most = scale === "relative" ? signedPercent(minimal).slice(1) : minimal;
  return `${amount(effect.estimate, scale)}${between}${what}; ±${most} or less does not matter`;
}

/**
 * What the arms' own values say where the effect's interval denies it; empty where the two agree.
 *
 * @param {Comparison} comparison
 * @param {string} control
 */
export function asTheyCame({ scale, effect, values, treatment }, control) {
  const of = (/** @type {string} */ name) => values.find(({ arm }) => arm === name)?.value ?? null;
  const [before, after] = [of(control), of(treatment)];
  if (scale !== "relative" || effect.lower === null || effect.upper === null || !before || after === null) return "";
  const plain = after / before - 1;
  if (plain >= effect.lower && plain <= effect.upper) return "";
  return `${amount(plain, scale)} over all requests as they came: the arms' differ by kind or time, too`;
}

const NEAR_S = 15 * 60;

/**
 * The plan that was made nearest to the time of a change, if that was shortly before or after it, in words.
 *
 * @param {readonly PastPlan[]} plans
 * @param {Maybe<number>} at Null: no change.
 */
export function planWords(plans, at) {
  if (at === null || at === undefined) return "";
  /** @param {PastPlan} plan */
  const distance = ({ since }) => Math.abs(since - at);
  const [nearest] = plans.filter((plan) => distance(plan) <= NEAR_S).sort((a, b) => distance(a) - distance(b));
  if (!nearest) return "";
  const { generation, since, by, reason } = nearest;
  const plan = `generation ${generation}${reason ? `: ${reason}` : ""}`;
  return `Around then, at ${moment(since)}, ${by ?? "a deployed file"} changed the traffic (${plan}). `;
}
