// What a change of an endpoint's percentages moves. Percentages are whole numbers that always sum to 100.

import { h } from "../dom.js";
import { count, percent } from "../format.js";

/**
 * `weights` (name → percent) with `name` at `value`: the others give or take in proportion to what they have. If they
 * have nothing, they share equally. A single deployment keeps 100.
 *
 * @param {Weights} weights
 * @param {string} name
 * @param {string | number} value
 * @returns {Weights}
 */
export function moved(weights, name, value) {
  const others = Object.keys(weights).filter((other) => other !== name);
  if (others.length === 0) return { [name]: 100 };
  const wanted = Math.min(100, Math.max(0, Math.round(Number(value) || 0)));
  return { ...weights, ...shared(others, weights, 100 - wanted), [name]: wanted };
}

/**
 * `total` among `names` in proportion to their weights, in whole numbers: the largest remainders are rounded up.
 *
 * @param {string[]} names
 * @param {Weights} weights
 * @param {number} total
 * @returns {Weights}
 */
function shared(names, weights, total) {
  const before = names.reduce((sum, name) => sum + weights[name], 0);
  const exact = names.map((name) => (before > 0 ? (weights[name] * total) / before : total / names.length));
  const whole = exact.map(Math.floor);
  let left = total - whole.reduce((sum, percent) => sum + percent, 0);
  const order = names.map((_, index) => index).sort((a, b) => exact[b] - whole[b] - (exact[a] - whole[a]) || a - b);
  for (const index of order) if (left-- > 0) whole[index] += 1;
  return Object.fromEntries(names.map((name, index) => [name, whole[index]]));
}

/**
 * [name, before, after] of each deployment whose percentage changes.
 *
 * @param {Weights} before
 * @param {Weights} after
 * @returns {[string, number, number][]}
 */
export function changes(before, after) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names
    .map((name) => /** @type {[string, number, number]} */ ([name, before[name] ?? 0, after[name] ?? 0]))
    .filter(([, a, b]) => a !== b);
}

/**
 * A plan's overrides as a change of it sends them.
 *
 * @param {Plan} plan
 */
export function overridesOf({ overrides }) {
  return overrides.map(({ unit, deployment, until }) => ({ unit, deployment, ...(until === null ? {} : { until }) }));
}

/**
 * The differences of `plan` from the one `before` it, a phrase each: percentages, the number of overrides, whether it
 * is temporary, and which conversations had to move. Of the rest of a plan, the history has only a hash.
 *
 * @param {PastPlan} before
 * @param {PastPlan} plan
 */
export function planChanges(before, plan) {
  const found = changes(before.weights, plan.weights).map(([name, a, b]) => `${name} ${a} → ${b}\u00a0%`);
  if (before.overrides !== plan.overrides) found.push(`overrides ${before.overrides} → ${plan.overrides}`);
  if (before.expires === null && plan.expires !== null) found.push("temporary");
  if (before.expires !== null && plan.expires === null) found.push("no longer temporary");
  if (before.expires !== null && plan.expires !== null && before.expires !== plan.expires) found.push("another end");
  for (const [from, to] of Object.entries(plan.withdrawn))
    if (before.withdrawn[from] !== to) found.push(`running conversations leave ${from} for ${to}`);
  if (!found.length && before.content && before.content !== plan.content)
    found.push("the sticky key, the mirror, or which units have an override");
  return found;
}

/**
 * @param {Weights} before
 * @param {DryRun} answer
 */
export function movesInWords(before, answer) {
  const different = changes(before, answer.after.weights);
  if (different.length === 0) return h("p", {}, "No traffic moves.");
  const { made_up_keys: any, recent_keys: recent } = answer.moves;
  return h(
    "div",
    { class: "moves" },
    h(
      "ul",
      {},
      different.map(([name, a, b]) =>
        h("li", {}, h("strong", {}, name), ` ${b > a ? "rises" : "falls"} from ${a}\u00a0% to ${b}\u00a0%`),
      ),
    ),
    h("p", {}, `${percent(any.share)} of all keys get another deployment`, pairs(any), "."),
    recent.keys > 0
      ? h(
          "p",
          { class: "hint" },
          `Of the ${count(recent.keys, "key", "keys")} that this router saw recently: ${percent(recent.share)}.`,
        )
      : null,
  );
}

/** @param {Moves} moves */
function pairs({ pairs: all }) {
  if (all.length === 0) return "";
  /** @param {string} deployment */
  const name = (deployment) => h("span", { class: "name" }, deployment);
  const named = all
    .slice(0, 3)
    .map((pair, index) => [index ? ", " : "", `${percent(pair.share)} from `, name(pair.from), " to ", name(pair.to)]);
  return [" (", named, all.length > 3 ? " …" : "", ")"];
}
