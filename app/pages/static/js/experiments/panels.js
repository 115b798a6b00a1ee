// The panels of a report: its metrics, subgroups, distributions, guardrails, and its units by plan.

import { h, svg } from "../dom.js";
import { count, duration, list, moment, number, or, percent, seconds, time, whole } from "../format.js";
import { cell, mark, swatch, table, term } from "../parts.js";
import { axis, interval, reach } from "./chart.js";
import { amount, asTheyCame, effectInWords, metricName, METRICS, verdict } from "./words.js";

const IN_SECONDS = new Set(["ttft", "itl", "itl_max", "duration"]);
const OF_STREAMS = new Set(["ttft", "itl", "itl_max", "tokens_per_second"]); // what an unstreamed answer has not
const SAYS = new Set(["better", "worse", "different", "equivalent"]); // verdicts on an effect
/** @type {Record<string, string>} */
const ATTRIBUTES = {
  dialect: "Dialect",
  prompt_bytes: "First prompt",
  stream: "First answer",
  hour: "First hour",
  group: "Group",
};

/** @param {string} words Empty: none. */
const hint = (words) => (words ? h("div", { class: "hint small" }, words) : null);

/**
 * The identity of a comparison.
 *
 * @param {{metric: string, treatment: string}} comparison
 */
export const keyOf = (comparison) => JSON.stringify([comparison.metric, comparison.treatment]);

/**
 * @param {ExperimentReport} report
 * @param {string[]} arms
 * @param {ColourOf} colourOf
 */
export function metrics(report, arms, colourOf) {
  const rows = [...report.primary, ...report.secondary];
  const span = reach(rows.filter((comparison) => comparison.scale === "relative"));
  const several = report.treatments.length > 1;
  const isTold = (/** @type {string} */ reason) => report.details.some((detail) => detail.includes(reason));
  return table(
    "Metrics",
    [
      "Metric",
      "Verdict",
      { label: ["Effect", axis(span, "relative")] },
      "In words",
      ...arms.map((arm) => ({ label: [swatch(colourOf(arm)), arm], number: true })),
    ],
    rows.map((comparison) =>
      h(
        "tr",
        { key: keyOf(comparison) },
        cell(
          "",
          [
            metricName(comparison.metric),
            comparison.role === "primary" ? h("span", { class: "tag" }, "decides") : null,
            several ? h("div", { class: "hint small" }, comparison.treatment) : null,
          ],
          { header: true },
        ),
        cell("Verdict", [
          verdict(comparison.verdict),
          comparison.since && !comparison.doubt && SAYS.has(comparison.verdict)
            ? h("div", { class: "hint small" }, "at every look since ", time(comparison.since))
            : null,
          hint(comparison.no_longer ? `no longer ${comparison.no_longer}` : ""),
          hint(comparison.doubt),
          comparison.units_needed
            ? h(
                "div",
                { class: "hint small" },
                `about ${whole(Number(comparison.units_needed.toPrecision(2)))} more units`,
                comparison.days_needed ? `, ${number(comparison.days_needed)}\u00a0days` : null,
              )
            : null,
        ]),
        cell(
          "Effect",
          comparison.scale === "relative" && comparison.effect.lower !== null
            ? interval(comparison, span, false)
            : or(null),
        ),
        cell("In words", [
          h(
            "span",
            { class: "small" },
            comparison.reason && comparison.effect.estimate === null && !isTold(comparison.reason)
              ? comparison.reason
              : `${comparison.doubt ? `of ${comparison.measured_on}: ` : ""}${effectInWords(comparison)}`,
          ),
          hint(asTheyCame(comparison, report.control)),
        ]),
        arms.map((arm) =>
          cell(arm, or(inUnit(comparison, comparison.values.find((value) => value.arm === arm)?.value)), {
            number: true,
          }),
        ),
      ),
    ),
    { class: "stacked list metrics" },
  );
}

/** @param {ExperimentReport} report */
export function subgroups(report) {
  /**
   * @param {Effect} effect
   * @param {Scale} scale
   */
  const between = ({ lower, upper }, scale) =>
    lower === null || upper === null ? or(null) : `${amount(lower, scale)} to ${amount(upper, scale)}`;
  return table(
    "For whom the effect differs",
    [
      "Subgroup",
      "Metric",
      "Differs",
      { label: "Change", number: true },
      { label: "Between", number: true },
      { label: "Against all others", number: true },
    ],
    report.subgroups?.effects.map((effect) =>
      h(
        "tr",
        { key: `${effect.metric} ${effect.treatment} ${effect.attribute} ${effect.name}` },
        cell("", `${ATTRIBUTES[effect.attribute]}: ${effect.name}`, { header: true }),
        cell("Metric", [
          metricName(effect.metric),
          report.treatments.length > 1 ? h("div", { class: "hint small" }, effect.treatment) : null,
        ]),
        cell("Differs", effect.differs ? mark("warn", "differs") : mark("wait", "not known to")),
        cell("Change", or(effect.effect.estimate === null ? null : amount(effect.effect.estimate, effect.scale)), {
          number: true,
        }),
        cell("Between", between(effect.effect, effect.scale), { number: true }),
        cell("Against all others", between(effect.difference, effect.scale), { number: true }),
      ),
    ),
    { class: "stacked" },
  );
}

/**
 * @param {{metric: string, statistic?: string}} of
 * @param {Maybe<number>} value
 * @returns {string | null}
 */
function inUnit({ metric, statistic }, value) {
  if (value === null || value === undefined) return null;
  if (IN_SECONDS.has(metric.split(".")[0])) return seconds(value);
  return statistic === "proportion" ? percent(value) : number(value);
}

const OWN_TIME =
  "those that do not decide on their own time: no min_tokens, ignore_eos, logit_bias, priority or grammar";
const OWN_WORDS = "at least 16 tokens allowed, no logit_bias, bad words, chat template or grammar";
/** @type {Record<string, string>} */
const COUNTED = {
  error: "all requests; under an absolute limit none whose client allows less than 1\u00a0s",
  slow: OWN_TIME,
  empty: `those that do not decide on their own text: ${OWN_WORDS}, no stop text under 3 characters`,
  unfinished: OWN_TIME,
  stalled: "streams, without priority",
  truncated: `those that do not decide on their own length: ${OWN_WORDS}, no ignore_eos or min_tokens`,
  invalid_output: `those that do not decide on their own form: ${OWN_WORDS}, no stop text under 3 characters`,
  client_gone: "all requests",
};

/**
 * Which requests each guardrail counts, a line for each event.
 *
 * @param {readonly {event: string}[]} guardrails
 */
export function countedBy(guardrails) {
  const events = [...new Set(guardrails.map(({ event }) => event))].filter((event) => event in COUNTED);
  return h(
    "ul",
    { class: "hint small counted" },
    events.map((event) => h("li", { key: event }, h("b", {}, event), ` counts ${COUNTED[event]}.`)),
  );
}

/**
 * @param {Guardrail} status
 * @param {string[]} arms
 */
export function guardrail(status, arms) {
  const ended = Object.values(status.of_requests ?? {});
  const isMeasured = !ended.length || ended.some((requests) => requests > 0);
  return h(
    "tr",
    { key: `${status.event}/${status.treatment}` },
    cell("", term(status.event), { header: true }),
    cell(
      "State",
      status.alarm
        ? [
            mark("bad", "alarm"),
            status.alarmed_at ? h("div", { class: "hint small" }, "since ", time(status.alarmed_at)) : null,
          ]
        : status.unhealthy
          ? mark("warn", "control is unhealthy")
          : status.one_caller
            ? mark("warn", "one caller's requests")
            : status.blind
              ? [mark("warn", "sees next to nothing"), h("div", { class: "hint small" }, status.blind)]
              : isMeasured
                ? mark("good", "quiet")
                : mark("wait", "no request that it counts"),
    ),
    cell("Limit", status.limit),
    arms.map((arm) =>
      cell(
        arm,
        [
          or(whole(status.events[arm])),
          arm in (status.requests ?? {})
            ? h(
                "div",
                { class: "hint small" },
                `${whole(status.requests[arm])} of ${whole(status.of_requests[arm])} requests`,
              )
            : null,
        ],
        { number: true },
      ),
    ),
    cell(
      "Detectable by now",
      status.detectable ? `${number(status.detectable)} times control's rate, in four of five runs` : or(null),
    ),
    cell("On an alarm", { alert: "alert", pause: "pause", rollback: "roll back" }[status.action] ?? status.action),
  );
}

/**
 * @param {ExperimentReport} report
 * @param {string[]} arms
 * @param {ColourOf} colourOf
 */
export function sampleRatio(report, arms, colourOf) {
  const { sample_ratio: found, started_at: started } = report;
  const requests = Object.values(report.requests).reduce((a, b) => a + b, 0);
  const forced = arms.map((arm) => `${whole(report.forced[arm] ?? 0)} on ${arm}`);
  return [
    h(
      "p",
      {},
      found.alarm
        ? mark("bad", "Sample-ratio mismatch: the unit counts contradict the weights, so no verdict can be trusted.")
        : mark("good", "As configured: the unit counts match the weights."),
    ),
    found.attribution.length
      ? h(
          "ul",
          {},
          found.attribution.map((sentence) => h("li", {}, sentence)),
        )
      : null,
    table(
      "Units by plan",
      ["Plan", ...arms.map((arm) => ({ label: [swatch(colourOf(arm)), arm], number: true }))],
      found.plans.map((plan) => {
        const total = arms.reduce((sum, arm) => sum + (plan.units[arm] ?? 0), 0),
          weight = arms.reduce((sum, arm) => sum + (plan.weights[arm] ?? 0), 0);
        return h(
          "tr",
          { key: plan.plan },
          cell("", plan.plan, { header: true }),
          arms.map((arm) =>
            cell(
              arm,
              [
                whole(plan.units[arm] ?? 0),
                total && weight
                  ? h(
                      "div",
                      { class: "hint small" },
                      `${percent((plan.units[arm] ?? 0) / total)}, `,
                      `${percent((plan.weights[arm] ?? 0) / weight)} configured`,
                    )
                  : null,
              ],
              { number: true },
            ),
          ),
        );
      }),
      { class: "stacked" },
    ),
    h(
      "p",
      { class: "hint small" },
      `${count(requests, "request", "requests")} counted since ${moment(started) ?? "the start"} `,
      `(${duration(report.at - (started ?? report.at))})${inProgress(report)}. `,
      `Forced by clients, and not counted: ${list(forced)}.`,
    ),
  ];
}

/**
 * What has begun and does not count yet: units count from their beginning, requests from their end.
 *
 * @param {ExperimentReport} report
 */
function inProgress({ running, unknown, waiting }) {
  /** @param {Record<string, number> | undefined} counts */
  const all = (counts) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0);
  const lost = all(unknown);
  const open = all(running) - lost;
  const parts = [
    ...(open ? [`${whole(open)} more ${open === 1 ? "has" : "have"} not ended`] : []),
    ...(lost ? [`of ${whole(lost)} more the end is not known`] : []),
    ...(waiting ? [`${whole(waiting)} ${waiting === 1 ? "waits" : "wait"} for an earlier one`] : []),
  ];
  return parts.length ? `; ${list(parts)}` : "";
}

// --- Distributions: cumulative curves on a logarithmic axis, with p50 and p95 marked ---

const WIDTH = 360,
  HEIGHT = 180,
  LEFT = 44,
  RIGHT = 8,
  TOP = 8,
  BOTTOM = 26;
const MARKED = [0.5, 0.95];
const FEWEST = 20; // requests: with fewer, p95 is just one of the largest values
const LEVELS = [0, 0.5, 0.95];

/**
 * @param {Distribution} distribution
 * @param {string[]} arms
 * @param {ColourOf} colourOf
 */
export function distribution({ metric, shares, arms: given }, arms, colourOf) {
  const found = arms.map((arm) => ({
    colour: colourOf(arm),
    arm,
    requests: 0,
    values: [],
    ...given.find((known) => known.arm === arm),
  }));
  const curves = found.filter((line) => line.requests >= FEWEST);
  const name = METRICS[metric] ?? metric;
  return h(
    "figure",
    { class: "distribution", key: metric },
    h("h3", {}, name),
    curves.length ? plot(shares, curves, metric) : null,
    h(
      "figcaption",
      { class: "hint small" },
      found.map((line) => h("span", { class: "line" }, inWords(shares, line, metric))),
    ),
  );
}

/**
 * @param {string[]} arms
 * @param {ColourOf} colourOf
 */
export function legend(arms, colourOf) {
  return h(
    "p",
    { class: "legend" },
    arms.map((arm) =>
      h(
        "span",
        { class: "small" },
        svg(
          "svg",
          { viewBox: "0 0 36 10", "aria-hidden": "true" },
          svg("line", { class: `curve stroke-${colourOf(arm)}`, x1: 0, x2: 36, y1: 5, y2: 5 }),
        ),
        arm,
      ),
    ),
  );
}

/**
 * @param {number[]} shares
 * @param {number[]} values
 * @param {number} share
 */
function at(shares, values, share) {
  const index = shares.findIndex((known) => Math.abs(known - share) < 1e-9);
  return index < 0 ? null : values[index];
}

/**
 * @param {number[]} shares
 * @param {ArmDistribution} arm
 * @param {string} metric
 */
function inWords(shares, { arm, requests, values }, metric) {
  if (requests === 0) return `${arm}: no request has it yet${OF_STREAMS.has(metric) ? ", only streamed ones do" : ""}.`;
  if (requests < FEWEST) return `${arm}: ${count(requests, "request", "requests")} so far, too few for a curve.`;
  const [half, most] = MARKED.map((share) => inUnit({ metric }, at(shares, values, share)));
  return `${arm}: the median of ${whole(requests)} requests is ${half}, their 95th percentile ${most}.`;
}

/**
 * @param {number[]} shares
 * @param {(ArmDistribution & {colour: number})[]} curves
 * @param {string} metric
 */
function plot(shares, curves, metric) {
  const known = curves.flatMap((curve) => curve.values).filter((value) => value > 0);
  const low = Math.min(...known, Infinity),
    high = Math.max(...known, 0);
  if (!known.length) return null; // a logarithmic axis has no place for 0
  const [from, to] = high / low > 1.2 ? [Math.log(low), Math.log(high)] : [Math.log(low / 1.5), Math.log(high * 1.5)];
  /** @param {number} value */
  const x = (value) =>
    LEFT + ((Math.log(Math.max(value, Math.exp(from))) - from) / (to - from)) * (WIDTH - LEFT - RIGHT);
  /** @param {number} share */
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  /**
   * @param {Child} words
   * @param {number} px
   * @param {number} py
   * @param {"middle" | "end"} anchor
   */
  const text = (words, px, py, anchor) => svg("text", { x: px, y: py, "text-anchor": anchor }, words);
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    LEVELS.map((level) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(level), y2: y(level) }),
      text(`${100 * level}\u00a0%`, LEFT - 6, y(level) + 4, "end"),
    ]),
    decades(Math.exp(from), Math.exp(to)).map((value) => [
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: TOP, y2: HEIGHT - BOTTOM }),
      text(inUnit({ metric }, value), x(value), HEIGHT - BOTTOM + 16, "middle"),
    ]),
    curves.map(({ colour, values }) => [
      svg("polyline", {
        class: `curve stroke-${colour}`,
        points: shares.map((share, number_) => `${x(values[number_]).toFixed(1)},${y(share).toFixed(1)}`).join(" "),
      }),
      MARKED.map((share) =>
        svg("circle", {
          class: `stroke-${colour}`,
          cx: x(at(shares, values, share) ?? 0),
          cy: y(share),
          r: 4,
        }),
      ),
    ]),
  );
}

/**
 * Round numbers between two values, at most five where possible.
 *
 * @param {number} low
 * @param {number} high
 */
function decades(low, high) {
  for (const steps of [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
      for (const step of steps) found.push(Number((step * 10 ** power).toPrecision(2)));
    const inside = found.filter((tick) => tick >= low * 1.05 && tick <= high * 0.95);
    if (inside.length <= 5) return inside;
  }
  const all = [];
  const span = Math.ceil((Math.log10(high) - Math.log10(low)) / 5);
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += span) all.push(10 ** power);
  return all;
}
