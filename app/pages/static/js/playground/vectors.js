// Norms and cosines of embeddings.

/** The length of a vector. */
export function norm(vector) {
  return Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
}

/** The cosine of the angle between two vectors of one dimension; null if one of them has no direction. */
export function cosine(a, b) {
  const length = norm(a) * norm(b);
  return length > 0 ? a.reduce((sum, value, index) => sum + value * b[index], 0) / length : null;
}
