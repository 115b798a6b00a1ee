// What an endpoint did in the chosen time: rates, failures and times to the first token, as small charts.

import { h } from "../dom.js";
import { moment, number, seconds, ticks, whole } from "../format.js";
import { swatch } from "../parts.js";
import { bars, line, perBar, together, withAxes } from "../sparkline.js";

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
  if (!own.length) return h("p", { class: "hint", key: "over-time" }, "No request has ended in the charts' time.");
  const { at, until } = history;
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
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  /** @param {readonly number[]} values */
  const inAll = (values) => `${whole(amount(values, history))} in all`;
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
   */
  const points = (values, words) =>
    values.map((value, index) => (value === null ? "" : `${moment(at[index])}: ${words(value)}`));
  /**
   * @param {string} name
   * @param {string} what
   * @param {readonly number[]} values
   * @param {string} [more]
   */
  const counted = (name, what, values, more = "") =>
    chart(
      name,
      bars(values, `${what} since ${since}: ${whole(sum(values))}`),
      highestBar(values),
      `${whole(sum(values))} in all${more}`,
      together(values).map((value, index) => `${moment(at[index * perBar(at.length)])}: ${whole(value)}`),
    );
  return h(
    "div",
    { class: "over-time", key: "over-time" },
    chart(
      "Requests per second",
      line(rates, `Requests per second since ${since}, at most ${most(rates)}`),
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
          line(tokens, `Tokens per second since ${since}, at most ${most(tokens)}`),
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
      return chart(
        [swatch(colour), `First token p95, ${deployment}`],
        line(values, `95th percentile of ${deployment}'s first token since ${since}, at most ${longest}`, colour ?? 1),
        longest,
        null,
        points(values, (value) => seconds(value)),
      );
    }),
  );
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
