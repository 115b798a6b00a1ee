import { h, morph } from "../dom.js";
import { follow } from "../events.js";
import { chart } from "../experiments/chart.js";
import { actions, decide, hasFailed, LABELS } from "../experiments/decisions.js";
import { distribution, guardrail, keyOf, legend, metrics, sampleRatio, subgroups } from "../experiments/panels.js";
import { decision, metricName, sentence, state as stateMark } from "../experiments/words.js";
import { number, time, unbroken } from "../format.js";
import { mark, notice, staleNotice, table } from "../parts.js";

export const title = "Experiment";

const EVENTS_SHOWN = 50;
const REPORT_EVERY_S = 10; // evidence changes slowly, and a report is more work than the summary
const WEEK_S = 7 * 86400;
export async function mount(root, context) {
  const { api, poll, announce, names } = context;
  const name = names[0];
  const path = `/api/experiments/${encodeURIComponent(name)}`;
  const state = {
    summary: null,
    etag: null,
    report: null,
    due: 0,
    at: null,
    problem: null,
    missing: false,
    chosen: null,
    points: [],
    plans: [],
    events: [],
    why: null,
    said: null,
  };
  const plot = chart();
  let frame = null,
    following = null;

  async function read(signal) {
    try {
      const { data, etag } = await api.read(path, { signal });
      Object.assign(state, { summary: data, etag, missing: false });
      if (data.decision === null || data.decision === undefined) state.report = null;
      else if (Date.now() / 1000 >= state.due) {
        state.report = await api.get(`${path}/report`, { signal });
        await readHistory(signal);
        state.due = Date.now() / 1000 + REPORT_EVERY_S;
      }
      state.at = Date.now() / 1000;
      state.problem = null;
      following ??= follow(api, Math.floor(state.report?.started_at ?? state.at - WEEK_S), receive);
    } catch (error) {
      if (signal?.aborted) return;
      state.due = 0;
      state.missing = error.status === 404 || error.status === 403;
      state.problem = error;
    }
    draw();
  }

  async function readHistory(signal) {
    const comparison = chosen();
    if (comparison === undefined) return;
    const query = new URLSearchParams({ metric: comparison.metric, treatment: comparison.treatment });
    state.points = (await api.get(`${path}/history?${query}`, { signal })).points;
  }

  /** Reads what rarely changes: the plans, and whether this key may decide. */
  async function readSeldom(signal) {
    try {
      const endpoint = state.summary?.endpoint ?? (await api.get(path, { signal })).endpoint;
      state.plans = (await api.get(`/api/endpoints/${encodeURIComponent(endpoint)}/traffic/history`, { signal })).plans;
      const { endpoints } = await api.get("/api/overview", { signal });
      const decides = endpoints.some((it) => it.endpoint === endpoint && it.may_operate);
      state.why = decides
        ? null
        : `Only managers and the operators of ${endpoint} decide on its experiments; your key can view them.`;
    } catch {
      // They are marks in a chart and a hint: the page is correct without them.
    }
  }

  function chosen() {
    const all = [...(state.report?.primary ?? []), ...(state.report?.secondary ?? [])];
    return all.find((it) => keyOf(it) === state.chosen) ?? all[0];
  }

  function receive(event) {
    const isOurs =
      event.experiment === name || (event.experiment === undefined && event.endpoint === state.summary?.endpoint);
    if (!isOurs || state.events.some((it) => it.id === event.id)) return;
    state.events = [event, ...state.events].slice(0, EVENTS_SHOWN);
    frame ??= requestAnimationFrame(() => ((frame = null), draw()));
  }

  async function press(action, treatment) {
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
        summary ? [stateMark(summary), report ? decision(report) : null] : null,
      ),
      state.problem
        ? state.missing
          ? notice("bad", state.problem.message)
          : staleNotice(state.problem, state.at)
        : null,
      state.said ? h("p", { class: "said" }, mark("good", state.said)) : null,
      summary === null
        ? state.problem
          ? null
          : h("p", { class: "hint" }, "Loading …")
        : [
            h("p", { class: "verdict" }, sentence(report?.headline ?? summary.headline, armsOf(summary))),
            report ? report.details.map((it) => h("p", {}, sentence(it, armsOf(summary)))) : null,
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
    if (comparison)
      plot.draw(comparison, upToNow(state.points, comparison, report), state.plans.map((it) => it.since).reverse());
  }

  function whatNext(summary, report) {
    const next = summary.next || report?.next;
    const acting = summary.acting;
    return h(
      "div",
      { class: "next" },
      next ? h("p", {}, h("strong", {}, sentence(next, armsOf(summary)))) : null,
      acting?.until ? h("p", { class: "hint" }, "Paused until ", time(acting.until), ".") : null,
      acting?.by ? h("p", { class: "hint" }, `Last decision by ${acting.by}.`) : null,
      acting && summary.mode === "ab" ? ramp(acting) : null,
    );
  }

  function ramp(acting) {
    const share = Math.max(0, Math.min(100, acting.share));
    const next = (acting.next_share ?? null) === null ? "" : `; the next step is ${acting.next_share}\u00a0%`;
    return h(
      "div",
      { class: "ramp" },
      h(
        "div",
        { class: "share-bar", "aria-hidden": "true" },
        h("span", { class: "part arm-2", style: { "flex-grow": String(share) } }),
        h("span", { class: "rest", style: { "flex-grow": String(100 - share) } }),
      ),
      h("p", { class: "hint small" }, `Treatments have ${share}\u00a0% of the traffic${next}.`),
    );
  }

  /** The configuration to write in the file, for an experiment that the file keeps from running. */
  function howToStart({ experiment, state: declared, acting }) {
    if (declared === "running" || acting?.state === "stopped") return null;
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
    if (state.why !== null) return h("p", { class: "hint" }, state.why);
    return h(
      "div",
      { class: "actions" },
      possible.map((it, index) =>
        it === "promote" && summary.treatments.length > 1
          ? summary.treatments.map((arm) => button(it, index, arm, `${LABELS[it]} ${arm}`))
          : button(it, index, summary.treatments[0], LABELS[it]),
      ),
    );
  }

  function button(action, index, treatment, label) {
    return h(
      "button",
      {
        type: "button",
        key: label,
        class: action === "rollback" ? "danger" : index === 0 && !hasFailed(state.summary) ? "primary" : null,
        on: { click: () => press(action, treatment) },
      },
      label,
    );
  }

  function evidence(report) {
    const comparison = chosen();
    const arms = armsOf(report);
    const options = [...report.primary, ...report.secondary];
    return [
      h(
        "section",
        { "aria-labelledby": "over-time", key: "over-time" },
        h(
          "div",
          { class: "headline" },
          h("h2", { id: "over-time" }, "The effect over time"),
          options.length > 1
            ? h(
                "select",
                {
                  "aria-label": "Metric",
                  value: comparison ? keyOf(comparison) : "",
                  on: {
                    change: async (event) => (
                      (state.chosen = event.target.value),
                      (state.points = []),
                      draw(),
                      await readHistory(),
                      draw()
                    ),
                  },
                },
                options.map((it) =>
                  h(
                    "option",
                    { value: keyOf(it), selected: comparison && keyOf(it) === keyOf(comparison) },
                    `${metricName(it.metric)}, ${it.treatment}`,
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
            report.alarms.map((it) => notice("bad", unbroken(it.text), " ", h("span", { class: "hint" }, time(it.at)))),
          )
        : null,
      h("section", { key: "metrics" }, h("h2", {}, "Metrics"), metrics(report, arms)),
      report.subgroups?.effects.length
        ? h(
            "section",
            { key: "subgroups" },
            h("h2", {}, "For whom the effect differs"),
            h(
              "p",
              { class: "hint" },
              "By each unit's first request. All changes hold together, with ",
              `${number(100 * (1 - report.subgroups.alpha))} % certainty. A subgroup differs from all others if the `,
              "interval of the difference excludes zero; of those that are said to, at most ",
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
            legend(arms),
            h(
              "div",
              { class: "distributions" },
              report.distributions.map((it) => distribution(it, arms)),
            ),
          )
        : null,
      h(
        "section",
        { key: "guardrails" },
        h("h2", {}, "Guardrails"),
        report.guardrails.length
          ? table(
              "Guardrails",
              [
                "Event",
                "State",
                "Limit",
                ...arms.map((it) => ({ label: it, number: true })),
                "Detectable by now",
                "On an alarm",
              ],
              report.guardrails.map((it) => guardrail(it, arms)),
              { class: "stacked" },
            )
          : h("p", { class: "hint" }, "None is declared."),
      ),
      h("section", { key: "split" }, h("h2", {}, "Split"), sampleRatio(report, arms)),
      report.warnings.length
        ? h(
            "section",
            { key: "warnings" },
            h("h2", {}, "Warnings"),
            h(
              "ul",
              {},
              report.warnings.map((it) => h("li", {}, it)),
            ),
          )
        : null,
      report.service.length
        ? h(
            "section",
            { key: "service" },
            h("h2", {}, "About the service"),
            h(
              "ul",
              {},
              report.service.map((it) => h("li", {}, it)),
            ),
          )
        : null,
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
            state.events.map((it) =>
              h(
                "li",
                { key: it.id },
                h("span", { class: "hint" }, time(it.at)),
                h("span", { class: "tag" }, it.kind),
                h("span", {}, unbroken(it.text)),
              ),
            ),
          ),
    );
  }

  draw();
  const stops = [poll(read), poll(readSeldom, { every: 15_000 })];
  return () => {
    stops.forEach((it) => it());
    following?.();
    if (frame !== null) cancelAnimationFrame(frame);
    plot.end();
  };
}

const armsOf = ({ control, treatments }) => [control, ...treatments];

/** The looks of the past, and the present interval. */
function upToNow(points, { effect }, { at }) {
  return effect.lower === null || effect.upper === null
    ? points
    : [...points.filter((it) => it.at < at), { at, effect }];
}
