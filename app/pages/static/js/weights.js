// Percentages of an endpoint: whole numbers that always sum to 100.

/**
 * `weights` (name → percent) with `name` at `value`: the others give or take in proportion to what they have. If they
 * have nothing, they share equally. A single deployment keeps 100.
 */
export function moved(weights, name, value) {
  const others = Object.keys(weights).filter((it) => it !== name);
  if (others.length === 0) return { [name]: 100 };
  const wanted = Math.min(100, Math.max(0, Math.round(Number(value) || 0)));
  return { ...weights, ...shared(others, weights, 100 - wanted), [name]: wanted };
}

/** `total` among `names` in proportion to their weights, in whole numbers: the largest remainders are rounded up. */
function shared(names, weights, total) {
  const before = names.reduce((sum, it) => sum + weights[it], 0);
  const exact = names.map((it) => (before > 0 ? (weights[it] * total) / before : total / names.length));
  const whole = exact.map(Math.floor);
  let left = total - whole.reduce((sum, it) => sum + it, 0);
  const order = names.map((_, index) => index).sort((a, b) => exact[b] - whole[b] - (exact[a] - whole[a]) || a - b);
  for (const index of order) if (left-- > 0) whole[index] += 1;
  return Object.fromEntries(names.map((it, index) => [it, whole[index]]));
}

/** [name, before, after] of each deployment whose percentage changes. */
export function changes(before, after) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names.map((it) => [it, before[it] ?? 0, after[it] ?? 0]).filter(([, a, b]) => a !== b);
}
