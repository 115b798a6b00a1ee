// The changes that a plan made, in words. Pure.

import { changes } from "../weights.js";

/**
 * The differences of `plan` from the one `before` it, a phrase each: percentages, the number of overrides, whether it
 * is temporary, and which conversations had to move. Of the rest of a plan, the history has only a hash.
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
