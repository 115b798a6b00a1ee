import { h, morph } from "../dom.js";
import { form } from "../experiments/form.js";
import { axis, interval, reach } from "../experiments/interval.js";
import { decision, effectInWords, metricName, sentence, state as stateMark, verdict } from "../experiments/words.js";
import { count, list, or, whole } from "../format.js";
import { cell, mark, notice, staleNotice, table } from "../parts.js";

export const title = "Experiments";

const ALARMS = {
  sample_ratio: "sample ratio",
  guardrail: "guardrail",
  rows_lost: "rows lost",
  incomplete: "ledger incomplete",
  completeness: "completeness",
  endpoint_unhealthy: "endpoint unhealthy",
  aa: "A/A",
  effect_changed: "effect changed",
  returns: "requests per unit",
};

export async function mount(root, context) {
  const { api, poll } = context;
  const state = { experiments: null, at: null, problem: null };
  const declaring = "new" in context.parameters ? form(context) : null;

  function draw() {
    const found = state.experiments;
    const effects = (found ?? []).flatMap((it) => it.primary ?? []).filter((it) => it.scale === "relative");
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
            [...found].sort((a, b) => rank(a) - rank(b)).map((it) => row(it, span)),
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

function summary(found) {
  const running = found.filter((it) => (it.acting?.state ?? it.state) === "running").length;
  return (
    `${count(found.length, "experiment", "experiments")}, ${running} running. ` +
    "Intervals are valid whenever you look."
  );
}

/** Running experiments come first, then paused ones. */
const rank = (it) => ["running", "paused"].indexOf(it.acting?.state ?? it.state) >>> 0;

function heads(span, effects) {
  return [
    "Experiment",
    "Verdict",
    {
      label: effects.length
        ? ["Effect on the primary metric, with its confidence sequence", axis(span, "relative")]
        : "Effect on the primary metric",
    },
    { label: "Units", number: true },
    "Ramp",
    "Guardrails and split",
  ];
}

function row(it, span) {
  const units = Object.values(it.units ?? {}).reduce((a, b) => a + b, 0);
  return h(
    "tr",
    { key: it.experiment },
    cell(
      "",
      [
        h("a", { href: `#/experiments/${encodeURIComponent(it.experiment)}` }, it.experiment),
        h(
          "div",
          { class: "hint" },
          sentence(`${it.endpoint}: ${list(it.treatments)} against ${it.control}`, [it.control, ...it.treatments]),
        ),
      ],
      { header: true },
    ),
    cell("Verdict", [
      h("div", {}, decision(it)),
      h(
        "p",
        { class: "small hint" },
        sentence(it.headline.replace(`${it.experiment} on ${it.endpoint}: `, ""), [it.control, ...it.treatments]),
      ),
    ]),
    cell("Effect", it.primary?.length ? it.primary.map((line) => effect(line, span, it)) : or(null)),
    cell("Units", units ? whole(units) : or(null), { number: true }),
    cell("Ramp", [
      h("div", {}, stateMark(it)),
      it.acting && it.mode === "ab" ? h("div", { class: "small hint" }, ramp(it.acting)) : null,
    ]),
    cell("Checks", checks(it)),
  );
}

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

function ramp({ share, next_share: next }) {
  return `${share}\u00a0% on treatments${next === null || next === undefined ? "" : `, next\u00a0${next}\u00a0%`}`;
}

function checks(it) {
  if (it.decision === null || it.decision === undefined) return or(null);
  if (!it.alarms) return mark("good", "no alarm");
  const kinds = (it.alarm_kinds ?? []).map((kind) => ALARMS[kind] ?? kind);
  return mark("bad", `${count(it.alarms, "alarm", "alarms")}: ${list(kinds)}`);
}
