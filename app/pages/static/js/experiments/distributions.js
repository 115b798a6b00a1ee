// A metric's distribution in each arm: cumulative curves on a logarithmic axis, with p50 and p95 marked.

import { h, svg } from "../dom.js";
import { count, number, seconds, whole } from "../format.js";
import { METRICS } from "./words.js";

const WIDTH = 360,
  HEIGHT = 180,
  LEFT = 44,
  RIGHT = 8,
  TOP = 8,
  BOTTOM = 26;
const MARKED = [0.5, 0.95];
const FEWEST = 20; // requests: with fewer, p95 is just one of the largest values
const LEVELS = [0, 0.5, 0.95];
const IN_SECONDS = new Set(["ttft", "itl", "itl_max", "duration"]);

/** `arms`: the report's arms, in the order of their colours. */
export function distribution({ metric, shares, arms: given }, arms) {
  const found = arms.map((arm, index) => ({
    index,
    arm,
    requests: 0,
    values: [],
    ...given.find((it) => it.arm === arm),
  }));
  const curves = found.filter((it) => it.requests >= FEWEST);
  const name = METRICS[metric] ?? metric;
  return h(
    "figure",
    { class: "distribution", key: metric },
    h("h3", {}, name),
    curves.length ? plot(shares, curves, metric) : null,
    h(
      "figcaption",
      { class: "hint small" },
      found.map((it) => h("span", { class: "line" }, inWords(shares, it, metric))),
    ),
  );
}

export function legend(arms) {
  return h(
    "p",
    { class: "legend" },
    arms.map((it, index) =>
      h(
        "span",
        { class: "small" },
        svg(
          "svg",
          { viewBox: "0 0 36 10", "aria-hidden": "true" },
          svg("line", { class: `curve stroke-${(index % 6) + 1}`, x1: 0, x2: 36, y1: 5, y2: 5 }),
        ),
        it,
      ),
    ),
  );
}

function inUnit(metric, value) {
  return IN_SECONDS.has(metric) ? seconds(value) : number(value);
}

function at(shares, values, share) {
  const index = shares.findIndex((it) => Math.abs(it - share) < 1e-9);
  return index < 0 ? null : values[index];
}

function inWords(shares, { arm, requests, values }, metric) {
  if (requests === 0) return `${arm}: no request has it yet.`;
  if (requests < FEWEST) return `${arm}: ${count(requests, "request", "requests")} so far, too few for a curve.`;
  const [half, most] = MARKED.map((share) => inUnit(metric, at(shares, values, share)));
  return `${arm}: half of ${whole(requests)} requests ${half} or less, 95\u00a0% ${most} or less.`;
}

function plot(shares, curves, metric) {
  const known = curves.flatMap((it) => it.values).filter((it) => it > 0);
  const low = Math.min(...known, Infinity),
    high = Math.max(...known, 0);
  if (!known.length) return null; // a logarithmic axis has no place for 0
  const [from, to] = high / low > 1.2 ? [Math.log(low), Math.log(high)] : [Math.log(low / 1.5), Math.log(high * 1.5)];
  const x = (value) =>
    LEFT + ((Math.log(Math.max(value, Math.exp(from))) - from) / (to - from)) * (WIDTH - LEFT - RIGHT);
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const text = (words, px, py, anchor) => svg("text", { x: px, y: py, "text-anchor": anchor }, words);
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    LEVELS.map((it) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(it), y2: y(it) }),
      text(`${100 * it}\u00a0%`, LEFT - 6, y(it) + 4, "end"),
    ]),
    decades(Math.exp(from), Math.exp(to)).map((it) => [
      svg("line", { class: "grid", x1: x(it), x2: x(it), y1: TOP, y2: HEIGHT - BOTTOM }),
      text(inUnit(metric, it), x(it), HEIGHT - BOTTOM + 16, "middle"),
    ]),
    curves.map(({ index, values }) => [
      svg("polyline", {
        class: `curve stroke-${(index % 6) + 1}`,
        points: shares.map((share, number_) => `${x(values[number_]).toFixed(1)},${y(share).toFixed(1)}`).join(" "),
      }),
      MARKED.map((share) =>
        svg("circle", { class: `stroke-${(index % 6) + 1}`, cx: x(at(shares, values, share)), cy: y(share), r: 4 }),
      ),
    ]),
  );
}

/** Round numbers between two values, at most five where possible. */
function decades(low, high) {
  for (const steps of [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
      for (const step of steps) found.push(Number((step * 10 ** power).toPrecision(2)));
    const inside = found.filter((it) => it >= low * 1.05 && it <= high * 0.95);
    if (inside.length <= 5) return inside;
  }
  const all = [];
  const span = Math.ceil((Math.log10(high) - Math.log10(low)) / 5);
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += span) all.push(10 ** power);
  return all;
}
