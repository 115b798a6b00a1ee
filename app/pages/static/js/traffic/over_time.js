// What an endpoint did in the chosen time: rates, failures and times to the first token, as small charts.

import { h } from "../dom.js";
import { duration, list, moment, number, seconds, ticks, whole } from "../format.js";
import { swatch } from "../parts.js";
import { bars, line, perBar, together, withAxes } from "../sparkline.js";

/** @typedef {{deployment: string, seconds: readonly number[]}} Lack The seconds of each point without a replica. */

const GENERATING = new Set(["chat", "completions", "responses"]); // the tasks whose answers are made token by token

/** @type {readonly (readonly [string, string])[]} */
const RANGES = [
  ["15m", "15 minutes"],
  ["1h", "1 hour"],
  ["6h", "6 hours"],
  ["24h", "24 hours"],
  ["7d", "7 days"],
];

/**
 * A choice of the time that the charts show, with a link to Grafana if there is one.
 *
 * @param {string} range
 * @param {RequestHistory | null} history
 * @param {(range: string) => void} choose
 */
export function rangePicker(range, history, choose) {
  return h(
    "div",
    { class: "range", key: "range" },
    h("label", { for: "range" }, "Charts of the last"),
    h(
      "select",
      { id: "range", value: range, on: { change: (event) => choose(event.target.value) } },
      RANGES.map(([value, words]) => h("option", { value, key: value }, words)),
    ),
    history === null
      ? null
      : h("span", { class: "hint" }, `until ${moment(history.until)}, counted by ${history.view}`),
    history?.grafana_url ? h("a", { href: history.grafana_url, rel: "noreferrer", target: "_blank" }, "Grafana") : null,
  );
}

/**
 * @param {RequestHistory | null} history
 * @param {Endpoint} endpoint
 */
export function overTime(history, endpoint) {
  if (history === null) return null;
  const own = history.series.filter((series) => series.endpoint === endpoint.endpoint);
  if (!own.length) {
    const words = endpoint.requests
      ? "The charts have these requests within seconds."
      : "No request has ended in the charts' time.";
    return h("p", { class: "hint", key: "over-time" }, words);
  }
  const { at, until } = history;
  /** @param {readonly number[]} values */
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const since = moment(at[0]);
  const times = ticks([at[0], (at[0] + until) / 2, until]);
  /** @param {(series: RequestSeries) => readonly number[]} values */
  const total = (values) => at.map((_, index) => own.reduce((sum, series) => sum + values(series)[index], 0));
  const rates = total((series) => series.requests_per_s);
  const failed = total((series) => series.errors);
  const refused = total((series) => series.refused);
  const left = total((series) => series.left);
  const lost = total((series) => series.lost);
  const tokens = total((series) => series.output_tokens_per_s);
  /** @param {readonly number[]} values */
  const inAll = (values) => `${whole(amount(values, history))} in all`;
  /** @param {number} index */
  const lengthOf = (index) => (at[index + 1] ?? until) - at[index];
  const lacks = endpoint.deployments
    .filter(({ role }) => role === "traffic" || role === "fallback")
    .map(({ deployment }) => ({
      deployment,
      seconds: own.find((series) => series.deployment === deployment)?.down_s ?? at.map(() => 0),
    }));
  /** @param {Lack[]} of */
  const shares = (of) =>
    at.map((_, index) => of.reduce((all, { seconds }) => all + seconds[index], 0) / (of.length * lengthOf(index) || 1));
  /**
   * @param {Lack[]} of
   * @param {number} from
   * @param {number} [points]
   */
  const lacking = (of, from, points = 1) => {
    const to = Math.min(from + points, at.length);
    const words = lackWords(
      of.map(({ deployment, seconds }) => ({ deployment, seconds: sum(seconds.slice(from, to)) })),
      at[to - 1] + lengthOf(to - 1) - at[from],
    );
    return words && `; ${words}`;
  };
  const all = lackWords(lacks.map(({ deployment, seconds }) => ({ deployment, seconds: sum(seconds) })));
  const arms = endpoint.deployments.filter((deployment) => deployment.role === "traffic");
  const most = (/** @type {readonly number[]} */ values) => number(Math.max(...values));
  /**
   * @param {Child} name
   * @param {SVGElement} picture
   * @param {string} highest
   * @param {string | null} words
   * @param {readonly string[]} readings
   */
  const chart = (name, picture, highest, words, readings) =>
    h(
      "figure",
      {},
      h("figcaption", { class: "small" }, name),
      withAxes(picture, times, highest, readings),
      words === null ? null : h("div", { class: "hint small" }, words),
    );
  /**
   * @param {readonly (number | null)[]} values
   * @param {(value: number) => string} words
   * @param {Lack[]} [of]
   */
  const points = (values, words, of = lacks) =>
    values.map(
      (value, index) => `${moment(at[index])}: ${value === null ? "no value" : words(value)}${lacking(of, index)}`,
    );
  /**
   * @param {string} name
   * @param {string} what
   * @param {readonly number[]} values
   * @param {string} [more]
   */
  const counted = (name, what, values, more = "") =>
    chart(
      name,
      bars(values, `${what} since ${since}: ${whole(sum(values))}`, shares(lacks)),
      highestBar(values),
      `${whole(sum(values))} in all${more}`,
      together(values).map((value, index) => {
        const size = perBar(at.length);
        return `${moment(at[index * size])}: ${whole(value)}${lacking(lacks, index * size, size)}`;
      }),
    );
  return h(
    "div",
    { class: "over-time", key: "over-time" },
    chart(
      "Requests per second",
      line(rates, `Requests per second since ${since}, at most ${most(rates)}`, 1, shares(lacks)),
      most(rates),
      inAll(rates),
      points(rates, (rate) => `${number(rate)}/s`),
    ),
    counted("Failed", "Failed requests", failed, sum(refused) ? `, and ${whole(sum(refused))} refused` : ""),
    sum(left) ? counted("Clients that left", "Requests that their clients left", left) : null,
    sum(lost) ? counted("Streams whose engine died", "Streams whose engine died", lost) : null,
    sum(tokens) || endpoint.tasks.some((task) => GENERATING.has(task))
      ? chart(
          "Tokens per second",
          line(tokens, `Tokens per second since ${since}, at most ${most(tokens)}`, 1, shares(lacks)),
          most(tokens),
          inAll(tokens),
          points(tokens, (rate) => `${number(rate)} tokens/s`),
        )
      : null,
    arms.map(({ deployment, colour }) => {
      const series = own.find((one) => one.deployment === deployment);
      const values = series?.first_token_p95_s ?? [];
      const known = values.filter((value) => value !== null);
      if (!known.length) return null;
      const longest = seconds(Math.max(...known));
      const label = `95th percentile of ${deployment}'s first token since ${since}, at most ${longest}`;
      const lack = lacks.filter((one) => one.deployment === deployment);
      return chart(
        [swatch(colour), `First token p95, ${deployment}`],
        line(values, label, colour ?? 1, shares(lack)),
        longest,
        null,
        points(values, (value) => seconds(value), lack),
      );
    }),
    all &&
      h("p", { class: "hint small shaded", key: "shaded" }, h("span", { "aria-hidden": "true" }), `Shaded: ${all}.`),
  );
}

/**
 * Where no replica ran, in words; "" if replicas of all ran. `length`: the seconds that are looked at, of which a
 * deployment that had no replica in all of them has no own ones.
 *
 * @param {readonly {deployment: string, seconds: number}[]} lacks
 * @param {number} [length]
 */
export function lackWords(lacks, length = Infinity) {
  const names = lacks
    .filter(({ seconds }) => seconds > 0)
    .map(({ deployment, seconds }) => (seconds < length ? `${deployment} (${duration(seconds)})` : deployment));
  return names.length ? `no replica of ${list(names)} ran` : "";
}

/**
 * How much a rate comes to in a history, whose last point may be shorter than the others.
 *
 * @param {readonly number[]} perSecond
 * @param {Pick<RequestHistory, "at" | "until">} history
 */
export function amount(perSecond, { at, until }) {
  return Math.round(perSecond.reduce((sum, rate, index) => sum + rate * ((at[index + 1] ?? until) - at[index]), 0));
}

/** @param {readonly number[]} values */
const highestBar = (values) => whole(Math.max(...together(values), 0));
