// What an endpoint did in the chosen time: rates, failures and times to the first token, as small charts.

import { h } from "../dom.js";
import { moment, number, seconds, whole } from "../format.js";
import { swatch } from "../parts.js";
import { bars, line } from "../sparkline.js";

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
    history === null ? null : h("span", { class: "hint" }, `counted by ${history.view}`),
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
  if (!own.length) return null;
  const { at, step_s } = history;
  const since = moment(at[0]);
  /** @param {(series: RequestSeries) => readonly number[]} values */
  const total = (values) => at.map((_, index) => own.reduce((sum, series) => sum + values(series)[index], 0));
  const rates = total((series) => series.requests_per_s);
  const failed = total((series) => series.errors);
  const refused = total((series) => series.refused);
  const tokens = total((series) => series.output_tokens_per_s);
  /** @param {readonly number[]} values */
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const arms = endpoint.deployments.filter((deployment) => deployment.role === "traffic");
  return h(
    "div",
    { class: "over-time", key: "over-time" },
    chart(
      "Requests",
      line(rates, `Requests per second since ${since}, at most ${number(Math.max(...rates))}`),
      `${whole(Math.round(sum(rates) * step_s))}, at most ${number(Math.max(...rates))}/s`,
    ),
    chart(
      "Failed",
      bars(failed, `Failed requests since ${since}: ${whole(sum(failed))}`),
      `${whole(sum(failed))}${sum(refused) ? `, and ${whole(sum(refused))} refused` : ""}`,
    ),
    chart(
      "Tokens",
      line(tokens, `Tokens per second since ${since}, at most ${number(Math.max(...tokens))}`),
      `at most ${number(Math.max(...tokens))}/s`,
    ),
    arms.map(({ deployment }, index) => {
      const series = own.find((one) => one.deployment === deployment);
      const times = series?.first_token_p95_s ?? [];
      const known = times.filter((value) => value !== null);
      if (!known.length) return null;
      const most = seconds(Math.max(...known));
      return chart(
        [swatch(index), `First token p95, ${deployment}`],
        line(times, `95th percentile of ${deployment}'s first token since ${since}, at most ${most}`, (index % 6) + 1),
        `at most ${most}`,
      );
    }),
  );
}

/**
 * @param {Child} name
 * @param {SVGElement} picture
 * @param {string} words
 */
function chart(name, picture, words) {
  return h("figure", {}, h("figcaption", { class: "small" }, name), picture, h("div", { class: "hint small" }, words));
}
