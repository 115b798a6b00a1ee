import { h, morph } from "../dom.js";
import { follow } from "../events.js";
import { chart } from "../experiments/chart.js";
import { actions, decide, hasFailed, LABELS } from "../experiments/decisions.js";
import {
  countedBy,
  distribution,
  guardrail,
  keyOf,
  legend,
  metrics,
  sampleRatio,
  subgroups,
} from "../experiments/panels.js";
import { decision, metricName, planWords, sentence, state as stateMark } from "../experiments/words.js";
import { number, time, unbroken } from "../format.js";
import { mark, notice, partsOf, shareBar, staleNotice, table, term } from "../parts.js";

export const title = "Experiment";

const EVENTS_SHOWN = 50;
const REPORT_EVERY_S = 10; // evidence changes slowly, and a report is more work than the summary
const WEEK_S = 7 * 86400;
const [PLANS, EVENTS] = ["The plans in the chart, and your rights,", "The events"];

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, context) {
  const { api, poll, announce, names } = context;
  const name = names[0];
  const path = `/api/experiments/${encodeURIComponent(name)}`;
  const state = {
    /** @type {Summary | null} */
    summary: null,
    etag: "",
    /** @type {ExperimentReport | null} */
    report: null,
    due: 0,
    /** @type {number | null} */
    at: null,
    /** @type {ApiError | null} */
    problem: null,
    missing: false,
    chosen: "",
    /** @type {Look[]} */
    points: [],
    /** @type {PastPlan[]} */
    plans: [],
    /** @type {Occurrence[]} */
    events: [],
    /** @type {Me | null} */
    me: null, // where the visitor decides, and the endpoint's deployments
    said: "",
  };
  const plot = chart();
  const parts = partsOf(draw);
  /** @type {number | null} */
  let frame = null;
  /** @type {(() => void) | null} */
  let following = null;

  /** @param {AbortSignal} [signal] */
  async function read(signal) {
    try {
      const { data, etag } = await api.read(path, { signal });
      // No button that the visitor may not press, not even at first.
      if (state.me === null || (data.acting && treatmentsShare(state.me, data) !== data.acting.share))
        state.me = await api.get("/api/me", { signal });
      Object.assign(state, { summary: data, etag, missing: false });
      if (data.decision === null || data.decision === undefined) state.report = null;
      else if (Date.now() / 1000 >= state.due) {
        state.report = await api.get(`${path}/report`, { signal });
        await readHistory(signal);
        state.due = Date.now() / 1000 + REPORT_EVERY_S;
      }
      const now = Date.now() / 1000;
      state.at = now;
      state.problem = null;
      following ??= follow(api, Math.floor(state.report?.started_at ?? now - WEEK_S), receive, parts.told(EVENTS));
    } catch (error) {
      if (signal?.aborted) return;
      state.due = 0;
      state.missing = error.status === 404 || error.status === 403;
      state.problem = error;
    }
    draw();
  }

  /** @param {AbortSignal} [signal] */
  async function readHistory(signal) {
    const comparison = chosen();
    if (comparison === undefined) return;
    const query = new URLSearchParams({ metric: comparison.metric, treatment: comparison.treatment });
    state.points = (await api.get(`${path}/history?${query}`, { signal })).points;
  }

  /** Reads what rarely changes: the plans, and where this key may decide. */
  const readSeldom = parts.reading(PLANS, async (signal) => {
    const endpoint = state.summary?.endpoint ?? (await api.get(path, { signal })).endpoint;
    state.plans = (await api.get(`/api/endpoints/${encodeURIComponent(endpoint)}/traffic/history`, { signal })).plans;
    state.me = await api.get("/api/me", { signal });
  });

  /** @param {string} metric */
  async function choose(metric) {
    state.chosen = metric;
    state.points = [];
    draw();
    try {
      await readHistory();
    } catch (error) {
      state.due = 0;
      state.problem = error;
    }
    draw();
  }

  /** @returns {Comparison | undefined} */
  function chosen() {
    const all = [...(state.report?.primary ?? []), ...(state.report?.secondary ?? [])];
    return all.find((comparison) => keyOf(comparison) === state.chosen) ?? all[0];
  }

  /** @param {Occurrence} event */
  function receive(event) {
    const isOurs =
      event.experiment === name || (event.experiment === undefined && event.endpoint === state.summary?.endpoint);
    if (!isOurs || state.events.some((other) => other.id === event.id)) return;
    state.events = [event, ...state.events].slice(0, EVENTS_SHOWN);
    frame ??= requestAnimationFrame(() => ((frame = null), draw()));
  }

  /**
   * @param {Action} action
   * @param {string} treatment
   */
  async function press(action, treatment) {
    if (state.summary === null) return;
    if (await decide(action, state.summary, state.etag, treatment, context)) {
      state.said = `${LABELS[action]}: done.`;
      state.due = 0;
      announce(state.said);
      await read();
    }
  }

  function draw() {
    const { summary, report } = state;
    morph(
      root,
      h("p", { class: "crumbs" }, h("a", { href: "#/experiments" }, "Experiments")),
      h(
        "div",
        { class: "headline" },
        h("h1", {}, name),
        summary ? [stateMark(summary), report ? decision({ ...summary, decision: report.decision }) : null] : null,
      ),
      state.problem
        ? state.missing
          ? notice("bad", state.problem.message)
          : staleNotice(state.problem, state.at)
        : [PLANS, EVENTS].map(parts.notice),
      state.said ? h("p", { class: "said" }, mark("good", state.said)) : null,
      summary === null
        ? state.problem
          ? null
          : h("p", { class: "hint" }, "Loading …")
        : [
            h("p", { class: "verdict" }, sentence(report?.headline ?? summary.headline, armsOf(summary))),
            report ? report.details.map((detail) => h("p", {}, sentence(detail, armsOf(summary)))) : null,
            whatNext(summary, report),
            howToStart(summary),
            buttons(summary),
          ],
      report
        ? evidence(report)
        : summary
          ? notice("info", "There is no evidence yet: nothing has been recorded for this experiment.")
          : null,
      summary ? events() : null,
    );
    const comparison = chosen();
    if (report && comparison)
      plot.draw(comparison, upToNow(state.points, comparison, report), state.plans.map((plan) => plan.since).reverse());
  }

  /**
   * @param {Summary} summary
   * @param {ExperimentReport | null} report
   */
  function whatNext(summary, report) {
    const next = summary.next || report?.next;
    const acting = summary.acting;
    return h(
      "div",
      { class: "next" },
      next ? h("p", {}, h("strong", {}, sentence(next, armsOf(summary)))) : null,
      acting?.until ? h("p", { class: "hint" }, "Paused until ", time(acting.until), ".") : null,
      acting?.by ? h("p", { class: "hint" }, `Last decision by ${acting.by}.`) : null,
      acting && summary.mode === "ab" ? split(summary, acting) : null,
    );
  }

  /**
   * @param {Summary} summary
   * @param {Acting} acting
   */
  function split(summary, { share, next_share: following }) {
    const parts = deploymentsOf(state.me, summary).map(({ deployment, colour, weight }) => ({
      name: `${deployment} ${weight}\u00a0%`,
      colour,
      share: weight,
    }));
    const next = (following ?? null) === null ? "" : `; the next step is ${following}\u00a0%`;
    return h(
      "div",
      { class: "ramp" },
      parts.length ? shareBar("Traffic", parts) : null,
      h("p", { class: "hint small" }, `Treatments have ${share}\u00a0% of the traffic${next}.`),
    );
  }

  /** @param {ExperimentReport} report */
  function coloursOf(report) {
    const colours = new Map(deploymentsOf(state.me, report).map(({ deployment, colour }) => [deployment, colour]));
    const arms = armsOf(report);
    // An arm that the endpoint no longer has is drawn as if it had been declared at its place.
    const all = state.me?.colours ?? 1;
    return (/** @type {string} */ arm) => colours.get(arm) ?? (arms.indexOf(arm) % all) + 1;
  }

  /**
   * The configuration to write in the file, for an experiment that the file keeps from running.
   *
   * @param {Summary} summary
   */
  function howToStart({ experiment, state: declared, acting }) {
    if (declared === "running" || acting?.state === "stopped") return null;
    if (acting?.state === "paused" && acting.cause !== "file") return null;
    const effect = {
      draft: "It is a draft: it records and compares nothing.",
      paused: "Its configuration pauses it.",
      stopped: "Its configuration has stopped it.",
    }[declared];
    return notice(
      "info",
      h(
        "p",
        {},
        h("strong", {}, effect),
        " To start it, give its section of the configuration file this state, and deliver the file:",
      ),
      h("pre", { tabindex: "0", "aria-label": "YAML" }, `experiments:\n  ${experiment}:\n    state: running`),
    );
  }

  /** @param {Summary} summary */
  function buttons(summary) {
    const possible = actions(summary);
    if (possible.length === 0)
      return summary.acting
        ? h(
            "p",
            { class: "hint" },
            "It has stopped: to test further, declare another experiment in the configuration file.",
          )
        : null;
    if (!state.me?.operates.includes(summary.endpoint))
      return h(
        "p",
        { class: "hint" },
        `Only managers and the operators of ${summary.endpoint} decide on its experiments; your key can view them.`,
      );
    /** @param {number} index */
    const isUsual = (index) => index === 0 && !hasFailed(summary);
    return h(
      "div",
      { class: "actions" },
      possible.map((action, index) =>
        action === "promote" && summary.treatments.length > 1
          ? summary.treatments.map((arm) => button(action, isUsual(index), arm, `${LABELS[action]} ${arm}`))
          : button(action, isUsual(index), summary.treatments[0], LABELS[action]),
      ),
    );
  }

  /**
   * @param {Action} action
   * @param {boolean} isUsual
   * @param {string} treatment
   * @param {string} label
   */
  function button(action, isUsual, treatment, label) {
    return h(
      "button",
      {
        type: "button",
        key: label,
        class: action === "rollback" ? "danger" : isUsual ? "primary" : null,
        on: { click: () => press(action, treatment) },
      },
      label,
    );
  }

  /** @param {ExperimentReport} report */
  function evidence(report) {
    const comparison = chosen();
    const [arms, colourOf] = [armsOf(report), coloursOf(report)];
    const options = [...report.primary, ...report.secondary];
    return [
      h(
        "section",
        { "aria-labelledby": "over-time", key: "over-time" },
        h(
          "div",
          { class: "headline" },
          h("h2", { id: "over-time" }, "The ", term("confidence sequence", "effect over time")),
          options.length > 1
            ? h(
                "select",
                {
                  "aria-label": "Metric",
                  value: comparison ? keyOf(comparison) : "",
                  on: { change: (event) => choose(event.target.value) },
                },
                options.map((option) =>
                  h(
                    "option",
                    { value: keyOf(option), selected: comparison && keyOf(option) === keyOf(comparison) },
                    `${metricName(option.metric)}, ${option.treatment}`,
                  ),
                ),
              )
            : null,
        ),
        plot.element,
      ),
      report.alarms.length
        ? h(
            "section",
            { key: "alarms" },
            h("h2", {}, "Alarms"),
            report.alarms.map((alarm) =>
              notice(
                "bad",
                unbroken(alarm.text),
                " ",
                planWords(state.plans, alarm.changed_at),
                h("span", { class: "hint" }, time(alarm.at)),
              ),
            ),
          )
        : null,
      h(
        "section",
        { key: "metrics" },
        h("h2", {}, "Metrics"),
        metrics(report, arms, colourOf),
        h(
          "p",
          { class: "hint small" },
          "Each deployment's column is the metric over all of its requests, as they came, times as geometric means " +
            "unless another statistic is named. The effect compares requests of the same kind and time, so that it " +
            "can differ from these columns; verdicts rest on it.",
        ),
      ),
      report.subgroups?.effects.length
        ? h(
            "section",
            { key: "subgroups" },
            h("h2", {}, "For whom the effect differs"),
            h(
              "p",
              { class: "hint" },
              "By each unit's first request. All changes hold together, with ",
              `${number(100 * (1 - report.subgroups.alpha))} % certainty, if requests without a value had any of `,
              "those seen. A subgroup differs from all others if the interval of the difference excludes zero; of " +
                "those that are said to, at most ",
              `${number(100 * report.subgroups.alpha)} % do not, in the mean.`,
            ),
            subgroups(report),
          )
        : null,
      report.distributions?.length
        ? h(
            "section",
            { key: "distributions", "aria-labelledby": "distributions" },
            h("h2", { id: "distributions" }, "Distributions"),
            h(
              "p",
              { class: "hint" },
              "The share of each arm's requests at or below each value; the dots mark p50 and p95. " +
                "These curves are not adjusted, and no verdict is based on them.",
            ),
            legend(arms, colourOf),
            h(
              "div",
              { class: "distributions" },
              report.distributions.map((metric) => distribution(metric, arms, colourOf)),
            ),
          )
        : null,
      h(
        "section",
        { key: "guardrails" },
        h("h2", {}, term("guardrail", "Guardrails")),
        report.guardrails.length
          ? table(
              "Guardrails",
              [
                "Event",
                "State",
                "Limit",
                ...arms.map((arm) => ({ label: arm, number: true })),
                "Detectable by now",
                "On an alarm",
              ],
              report.guardrails.map((status) => guardrail(status, arms)),
              { class: "stacked guardrails" },
            )
          : h("p", { class: "hint" }, "None is declared."),
        report.guardrails.length
          ? h(
              "p",
              { class: "hint small" },
              "Each deployment's column counts the units with the event, each unit once, and below them the requests " +
                "with it, of those that have ended and count: also those that another deployment then answered. " +
                "Traffic and Requests count what clients saw. What a request decides itself is no evidence:",
            )
          : null,
        countedBy(report.guardrails),
      ),
      h("section", { key: "split" }, h("h2", {}, term("split", "Split")), sampleRatio(report, arms, colourOf)),
      listed("warnings", "Warnings", report.warnings),
      listed("service", "About the service", report.service),
    ];
  }

  function events() {
    return h(
      "section",
      { key: "events" },
      h("h2", {}, "Events"),
      state.events.length === 0
        ? h("p", { class: "hint" }, state.report ? "None since the start." : "None in the last week.")
        : h(
            "ol",
            { class: "events" },
            state.events.map((event) =>
              h(
                "li",
                { key: event.id },
                h("span", { class: "hint" }, time(event.at)),
                h("span", { class: "tag" }, event.kind),
                h("span", {}, unbroken(event.text)),
              ),
            ),
          ),
    );
  }

  draw();
  const stops = [poll(read), poll(readSeldom, { every: 15_000 })];
  return () => {
    stops.forEach((stop) => stop());
    following?.();
    if (frame !== null) cancelAnimationFrame(frame);
    plot.end();
  };
}

/**
 * The deployments that share the traffic of an experiment's endpoint; none if the visitor may not use it.
 *
 * @param {Me | null} me
 * @param {{endpoint: string}} experiment
 */
function deploymentsOf(me, { endpoint }) {
  return me?.endpoints.find((usable) => usable.endpoint === endpoint)?.deployments ?? [];
}

/**
 * @param {Me} me
 * @param {Summary} summary
 */
function treatmentsShare(me, summary) {
  return deploymentsOf(me, summary)
    .filter(({ deployment }) => summary.treatments.includes(deployment))
    .reduce((sum, { weight }) => sum + weight, 0);
}

/**
 * A section with a list of sentences; null without any.
 * @param {string} key
 * @param {string} title
 * @param {string[]} sentences
 */
function listed(key, title, sentences) {
  if (!sentences.length) return null;
  const items = sentences.map((sentence) => h("li", {}, sentence));
  return h("section", { key }, h("h2", {}, title), h("ul", {}, items));
}

/**
 * @param {{control: string, treatments: string[]}} experiment
 * @returns {string[]}
 */
const armsOf = ({ control, treatments }) => [control, ...treatments];

/**
 * The looks of the past, and the present interval.
 *
 * @param {Look[]} points
 * @param {Comparison} comparison
 * @param {ExperimentReport} report
 * @returns {Look[]}
 */
function upToNow(points, { effect }, { at }) {
  return effect.lower === null || effect.upper === null
    ? points
    : [...points.filter((point) => point.at < at), { at, effect }];
}
