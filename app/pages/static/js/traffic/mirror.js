// The copies of an endpoint's requests: how many its shadow got, how many failed, and how many were left out.

import { h } from "../dom.js";
import { count, list, moment, whole } from "../format.js";
import { mark, term } from "../parts.js";

/** @type {Record<string, string>} */
const LEFT_OUT = {
  bound_to_model: "made for the primary's tokenizer",
  breaker_open: "the shadow fails",
  budget: "the tokens of the minute are spent",
  carried: "began under another split",
  primary_failed: "the primary failed, or its client left",
  shutdown: "the router ended",
  stopped: "the shadow is stopped",
};

/**
 * What has become of the copies.
 *
 * @param {ShadowReport} report
 */
export function copyWords({ copies, primaries, skipped, since }) {
  /** @type {Record<string, number>} */
  const failed = {};
  for (const primary of primaries)
    for (const [why, some] of Object.entries(primary.failed)) failed[why] = (failed[why] ?? 0) + some;
  const parts = [part(failed, "failed"), part(skipped, "left out")].filter(Boolean);
  return [`${count(copies, "copy", "copies")} since ${moment(since)}`, ...parts].join("; ");
}

/**
 * @param {Record<string, number>} reasons
 * @param {string} what
 */
function part(reasons, what) {
  const all = Object.values(reasons).reduce((sum, some) => sum + some, 0);
  if (!all) return "";
  const why = Object.entries(reasons)
    .sort(([, a], [, b]) => b - a)
    .map(([reason, some]) => `${whole(some)} ${LEFT_OUT[reason] ?? reason.replaceAll("_", " ")}`);
  return `${whole(all)} ${what}: ${list(why)}`;
}

/**
 * An endpoint's mirror; null without one.
 *
 * @param {Endpoint} endpoint
 * @param {ShadowReport | undefined} report None: it is not known.
 */
export function mirrorOf({ mirror }, report) {
  if (!mirror) return null;
  const { deployment, percent } = mirror;
  const hasFailed = report?.primaries.some(({ failed }) => Object.keys(failed).length > 0);
  return h(
    "p",
    { key: "mirror" },
    mark(hasFailed ? "warn" : "info", term("mirror", "Mirror")),
    `: ${percent}\u00a0% to ${deployment}`,
    report?.shadow === deployment ? `: ${copyWords(report)}.` : ". Its copies are not known yet.",
  );
}
