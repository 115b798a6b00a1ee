import { h, morph } from "../dom.js";
import { axis, interval, reach } from "../experiments/chart.js";
import { form } from "../experiments/manage.js";
import { decision, effectInWords, metricName, sentence, state as stateMark, verdict } from "../experiments/words.js";
import { count, list, or, whole } from "../format.js";
import { cell, mark, notice, staleNotice, table, term } from "../parts.js";

export const title = "Experiments";

/** @type {Record<string, string>} */
const ALARMS = {
  sample_ratio: "sample ratio",
  guardrail: "guardrail",
  rows_lost: "rows lost",
  incomplete: "ledger incomplete",
  completeness: "completeness",
  standing: "guardrail, not cleared",
  endpoint_unhealthy: "endpoint unhealthy",
  one_caller: "one caller's requests",
  aa: "A/A",
  effect_changed: "effect changed",
  returns: "requests per unit",
};

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, context) {
  const { api, poll } = context;
  /** @type {{experiments: Summary[] | null, at: number | null, problem: ApiError | null}} */
  const state = { experiments: null, at: null, problem: null };
  const declaring = "new" in context.parameters ? form(context) : null;

  function draw() {
    const found = state.experiments;
    const effects = (found ?? [])
      .flatMap((experiment) => experiment.primary ?? [])
      .filter((comparison) => comparison.scale === "relative");
    const span = reach(effects);
    morph(
      root,
      h(
        "div",
        { class: "headline" },
        h("h1", {}, declaring ? "Declare an experiment" : title),
        h(
          "a",
          { class: "button", href: declaring ? "#/experiments" : "#/experiments?new" },
          declaring ? "All experiments" : "Declare an experiment",
        ),
      ),
      declaring,
      declaring
        ? null
        : h("p", { class: "hint" }, found === null ? (state.problem ? "" : "Loading …") : summary(found)),
      state.problem ? staleNotice(state.problem, state.at) : null,
      declaring || !found?.length
        ? null
        : table(
            "Experiments",
            heads(span, effects),
            [...found].sort((a, b) => rank(a) - rank(b)).map((experiment) => row(experiment, span)),
            { class: "stacked list" },
          ),
      declaring || found?.length !== 0
        ? null
        : notice(
            "info",
            h("strong", {}, "No experiment is declared."),
            " An experiment compares deployments of an endpoint on its own traffic, ",
            "and can move the traffic by its verdicts.",
          ),
    );
  }

  /** @param {AbortSignal} signal */
  async function read(signal) {
    try {
      state.experiments = (await api.get("/api/experiments", { signal })).experiments;
      state.at = Date.now() / 1000;
      state.problem = null;
    } catch (error) {
      if (signal?.aborted) return;
      state.problem = error;
    }
    draw();
  }

  draw();
  return poll(read);
}

/** @param {Summary[]} found */
function summary(found) {
  const running = found.filter((experiment) => (experiment.acting?.state ?? experiment.state) === "running").length;
  return (
    `${count(found.length, "experiment", "experiments")}, ${running} running. ` +
    "Intervals are valid whenever you look."
  );
}

/**
 * Running experiments come first, then paused ones.
 *
 * @param {Summary} experiment
 */
const rank = (experiment) => ["running", "paused"].indexOf(experiment.acting?.state ?? experiment.state) >>> 0;

/**
 * @param {Span} span
 * @param {Compared[]} effects
 * @returns {(string | Head)[]}
 */
function heads(span, effects) {
  return [
    "Experiment",
    "Verdict",
    {
      label: effects.length
        ? ["Effect on the primary metric, with its confidence sequence", axis(span, "relative")]
        : "Effect on the primary metric",
    },
    { label: term("unit", "Units"), number: true },
    { label: term("ramp", "Ramp") },
    "Guardrails and split",
  ];
}

/**
 * @param {Summary} experiment
 * @param {Span} span
 */
function row(experiment, span) {
  const units = Object.values(experiment.units ?? {}).reduce((a, b) => a + b, 0);
  return h(
    "tr",
    { key: experiment.experiment },
    cell(
      "",
      [
        h("a", { href: `#/experiments/${encodeURIComponent(experiment.experiment)}` }, experiment.experiment),
        h(
          "div",
          { class: "hint" },
          sentence(`${experiment.endpoint}: ${list(experiment.treatments)} against ${experiment.control}`, [
            experiment.control,
            ...experiment.treatments,
          ]),
        ),
      ],
      { header: true },
    ),
    cell("Verdict", [
      h("div", {}, decision(experiment)),
      h(
        "p",
        { class: "small hint" },
        sentence(experiment.headline.replace(`${experiment.experiment} on ${experiment.endpoint}: `, ""), [
          experiment.control,
          ...experiment.treatments,
        ]),
      ),
    ]),
    cell(
      "Effect",
      experiment.primary?.length ? experiment.primary.map((line) => effect(line, span, experiment)) : or(null),
    ),
    cell("Units", units ? whole(units) : or(null), { number: true }),
    cell("Ramp", [
      h("div", {}, stateMark(experiment)),
      experiment.acting && experiment.mode === "ab" ? h("div", { class: "small hint" }, ramp(experiment.acting)) : null,
    ]),
    cell("Checks", checks(experiment)),
  );
}

/**
 * @param {Compared} line
 * @param {Span} span
 * @param {Summary} experiment
 */
function effect(line, span, { treatments }) {
  return h(
    "div",
    { class: "effect-line" },
    h(
      "div",
      { class: "small" },
      metricName(line.metric),
      treatments.length > 1 ? `, ${line.treatment}` : "",
      " ",
      verdict(line.verdict),
    ),
    line.scale === "relative" ? interval(line, span) : h("p", { class: "small" }, effectInWords(line)),
  );
}

/** @param {Acting} acting */
function ramp({ step, share, next_share: next }) {
  if (step === null || step === undefined) return "no ramp";
  return `${share}\u00a0% on treatments${next === null || next === undefined ? "" : `, next\u00a0${next}\u00a0%`}`;
}

/** @param {Summary} experiment */
function checks(experiment) {
  if (experiment.decision === null || experiment.decision === undefined) return or(null);
  if (!experiment.alarms) return mark("good", "no alarm");
  const kinds = (experiment.alarm_kinds ?? []).map((kind) => ALARMS[kind] ?? kind);
  return mark("bad", `${count(experiment.alarms, "alarm", "alarms")}: ${list(kinds)}`);
}
