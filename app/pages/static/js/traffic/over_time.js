// What an endpoint did in the chosen time: rates, failures and times to the first token, as small charts.

import { h } from "../dom.js";
import { between, duration, list, moment, number, roundTicks, seconds, whole } from "../format.js";
import { swatch } from "../parts.js";
import { bars, line, oneStop, withAxes } from "../sparkline.js";

/** @typedef {{deployment: string | null, outages: readonly Outage[]}} Lack When it had no replica; null: no router. */

const MINUTES_S = 600; // the length of outages that are told in seconds is below it
const NAMED = 5; // outages of a deployment that are told one by one, the last ones

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

/** @param {string | undefined} value */
export const isRange = (value) => RANGES.some(([range]) => range === value);

/**
 * The outages of the routers, and of an endpoint's deployments, in the charts' time.
 *
 * @param {RequestHistory | null} history
 * @param {Endpoint} endpoint
 * @returns {Lack[]}
 */
export function lacksOf(history, { endpoint, deployments }) {
  const lacks = deployments
    .filter(({ role }) => role === "traffic" || role === "fallback")
    .map((one) => {
      const { deployment } = one;
      const own = history?.series.find((series) => series.endpoint === endpoint && series.deployment === deployment);
      const outages = own?.outages ?? [];
      return { deployment, outages: runs(one) ? outages.map(over) : outages };
    });
  return [{ deployment: null, outages: (history?.no_router ?? []).map(over) }, ...lacks];
}

/**
 * Whether a replica runs, which the overview knows before the history.
 *
 * @param {Deployment} deployment
 */
const runs = ({ replicas, breaker, dead = 0 }) => breaker !== "open" && (replicas?.RUNNING ?? 0) > dead;

/**
 * An outage that is over, though the history has no end of it yet.
 *
 * @param {Outage} outage
 */
const over = (outage) => (outage.to === null ? { ...outage, isOver: true } : outage);

/**
 * @param {RequestHistory | null} history
 * @param {Endpoint} endpoint
 */
export function overTime(history, endpoint) {
  if (history === null) return null;
  const own = history.series.filter((series) => series.endpoint === endpoint.endpoint);
  if (!own.length && !history.no_router?.length) {
    const words = endpoint.requests
      ? "The charts have these requests within seconds."
      : "No request has ended in the charts' time.";
    return h("p", { class: "hint", key: "over-time" }, words);
  }
  const { at, until } = history;
  /** @param {readonly number[]} values */
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const since = moment(at[0]);
  const times = roundTicks(at[0], at[0] + history.step_s * at.length);
  /** @param {(series: RequestSeries) => readonly number[]} values */
  const total = (values) => at.map((_, index) => own.reduce((sum, series) => sum + values(series)[index], 0));
  /** @param {readonly number[]} values */
  const known = (values) => values.map((value, index) => (endOf(index) <= (history.since ?? 0) ? null : value));
  const rates = total((series) => series.requests_per_s);
  const failed = total((series) => series.errors);
  const refused = total((series) => series.refused);
  const left = total((series) => series.left);
  const lost = total((series) => series.lost);
  const tokens = total((series) => series.output_tokens_per_s);
  /** @param {readonly number[]} values */
  const inAll = (values) => `${whole(amount(values, history))} in all`;
  /** @param {number} index */
  const endOf = (index) => at[index + 1] ?? until;
  const lacks = lacksOf(history, endpoint);
  /** @param {number} time */
  const place = (time) => Math.min(Math.max((time - at[0]) / (history.step_s * at.length), 0), 1);
  /**
   * @param {Lack[]} of
   * @returns {[number, number][]}
   */
  const shaded = (of) => of.flatMap(({ outages }) => outages.map(({ from, to }) => [place(from), place(to ?? until)]));
  /**
   * @param {Lack[]} of
   * @param {number} index
   */
  const lacking = (of, index) => {
    const words = lackWords(of, at[index], endOf(index));
    return words && `; ${words}`;
  };
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
      (value, index) =>
        `${between(at[index], endOf(index))}: ${value === null ? "no value" : words(value)}${lacking(of, index)}`,
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
      bars(values, `${what} since ${since}: ${whole(sum(values))}`, shaded(lacks)),
      whole(Math.max(...values)),
      `${whole(sum(values))} in all${more}`,
      points(values, whole),
    );
  const charts = h(
    "div",
    { class: "over-time", key: "over-time", role: "group", "aria-label": `Charts of ${endpoint.endpoint}` },
    chart(
      "Requests per second",
      line(known(rates), `Requests per second since ${since}, at most ${most(rates)}`, 1, shaded(lacks)),
      most(rates),
      inAll(rates),
      points(known(rates), (rate) => `${number(rate)}/s`),
    ),
    counted("Failed", "Failed requests", failed, sum(refused) ? `, and ${whole(sum(refused))} refused` : ""),
    sum(left) ? counted("Clients that left", "Requests that their clients left", left) : null,
    sum(lost) ? counted("Streams whose engine died", "Streams whose engine died", lost) : null,
    sum(tokens) || endpoint.tasks.some((task) => GENERATING.has(task))
      ? chart(
          "Tokens per second",
          line(known(tokens), `Tokens per second since ${since}, at most ${most(tokens)}`, 1, shaded(lacks)),
          most(tokens),
          inAll(tokens),
          points(known(tokens), (rate) => `${number(rate)} tokens/s`),
        )
      : null,
    arms.map(({ deployment, colour }) => {
      const series = own.find((one) => one.deployment === deployment);
      const values = series?.first_token_p95_s ?? [];
      const known = values.filter((value) => value !== null);
      if (!known.length) return null;
      const longest = seconds(Math.max(...known));
      const label = `95th percentile of ${deployment}'s first token since ${since}, at most ${longest}`;
      const lack = lacks.filter((one) => one.deployment === deployment || one.deployment === null);
      return chart(
        [swatch(colour), `First token p95, ${deployment}`],
        line(values, label, colour ?? 1, shaded(lack)),
        longest,
        null,
        points(values, (value) => seconds(value), lack),
      );
    }),
    lacks
      .filter(({ outages }) => outages.length)
      .map((lack) =>
        h(
          "p",
          { class: "hint small shaded", key: `shaded ${lack.deployment ?? ""}` },
          h("span", { "aria-hidden": "true" }),
          `Shaded: ${outageWords(lack, until, NAMED)}.`,
        ),
      ),
    lostWords(history.lost_routers ?? []),
  );
  return oneStop(charts);
}

/**
 * The routers that have ended without a word.
 *
 * @param {readonly Outage[]} lost
 */
function lostWords(lost) {
  if (!lost.length) return null;
  const times = list(lost.slice(-NAMED).map(({ from, to }) => between(from, to ?? from)));
  const often = lost.length > NAMED ? `${lost.length} times, the last ones ` : "";
  const what = "what it answered after its last report is counted nowhere, and what still ran has failed";
  return h("p", { class: "hint small", key: "lost routers" }, `A router ended ${often}${times}: ${what}.`);
}

/** @param {number} total Seconds. */
const length = (total) => (total < MINUTES_S ? `${Math.round(total)}\u00a0s` : duration(total));

/**
 * When a deployment had no replica, or no router answered: the last outages, and how many there were.
 *
 * @param {Lack} lack
 * @param {number} until The end of one that goes on, as far as it is known.
 * @param {number} named How many are told one by one.
 */
export function outageWords({ deployment, outages }, until, named) {
  const all = outages.reduce((sum, { from, to }) => sum + (to ?? until) - from, 0);
  const isShort = outages.slice(-named).some(({ from, to }) => (to ?? until) - from < MINUTES_S); // seconds matter
  const often = outages.length > named ? `${outages.length} times, ${length(all)} in all, the last time ` : "";
  const last = outages
    .slice(-named)
    .map(({ from, to, isOver }) =>
      to === null && isOver
        ? `from ${moment(from)} until a moment ago`
        : to === null
          ? `since ${moment(from)} (${length(until - from)} so far)`
          : `${between(from, to)} (${length(to - from)})`,
    );
  const told = `${often}${list(last)}`;
  return deployment === null
    ? `no router answered ${told}${isShort ? ", or some seconds less" : ""}; requests of that time are counted nowhere`
    : `no replica of ${deployment} ran ${told}${isShort ? ", or some seconds more" : ""}`;
}

/**
 * Where no router answered, or no replica ran, in a point of a chart, in words; "" if all ran. What lacked in the whole
 * of it has no seconds.
 *
 * @param {readonly Lack[]} lacks
 * @param {number} begin
 * @param {number} end
 */
export function lackWords(lacks, begin, end) {
  /** @param {readonly Lack[]} of */
  const parts = (of) =>
    of.flatMap(({ deployment, outages }) => {
      const lacking = outages.map(({ from, to }) => Math.max(0, Math.min(to ?? end, end) - Math.max(from, begin)));
      const seconds = lacking.reduce((sum, part) => sum + part, 0);
      if (seconds === 0) return [];
      return `${deployment ?? "no router answered"}${seconds < end - begin ? ` (${length(seconds)})` : ""}`;
    });
  const routers = parts(lacks.filter(({ deployment }) => deployment === null));
  const names = parts(lacks.filter(({ deployment }) => deployment !== null));
  return [...routers, ...(names.length ? [`no replica of ${list(names)} ran`] : [])].join("; ");
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
