// All experiments, and a form that declares one.

import { find, h, morph } from "../dom.js";
import { axis, interval, reach } from "../experiments/chart.js";
import {
  decision,
  effectInWords,
  METRICS,
  metricName,
  sentence,
  state as stateMark,
  verdict,
} from "../experiments/words.js";
import { count, list, or, whole } from "../format.js";
import { cell, copy as copyText, mark, notice, staleNotice, table, term } from "../parts.js";

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

const PAUSE_MS = 300;
const PROPORTIONS = ["error", "slow", "empty", "truncated", "stalled", "invalid_output", "client_gone", "unfinished"];
const ADVANCE = { quiet: "no alarm", non_inferior: "non-inferior", better: "better", manual: "a manager's decision" };

/**
 * A form that declares an experiment. The server checks the section as it checks the file's, and returns the YAML to
 * commit. The form applies nothing itself.
 *
 * @param {Context} context
 */
function form({ api, announce }) {
  const root = h("section", { class: "declare", "aria-label": "Declare an experiment", opaque: true });
  const state = {
    /** @type {Endpoint[] | null} */
    endpoints: null,
    problem: "",
    /** @type {{problems: string[], warnings: string[], yaml: string} | null} */
    answer: null,
    turn: 0,
    copied: "",
    name: "",
    endpoint: "",
    control: "",
    /** @type {string[]} */
    treatments: [],
    metric: "ttft",
    minimal: "5",
    alpha: "0.05",
    ramps: true,
    steps: "1, 5, 25, 50",
    advance: "quiet",
    onWorse: "pause",
  };
  /** @type {number | undefined} */
  let timer;

  async function load() {
    try {
      /** @type {Overview} */
      const { endpoints } = await api.get("/api/overview");
      state.endpoints = endpoints;
      choose(endpoints[0]);
    } catch (error) {
      state.problem = error.message;
    }
    draw();
  }

  /** @param {Endpoint} [endpoint] */
  function choose(endpoint) {
    if (!endpoint) return;
    const arms = arms_(endpoint);
    Object.assign(state, { endpoint: endpoint.endpoint, control: arms[0] ?? "", treatments: arms.slice(1, 2) });
    check();
  }

  /** @param {Endpoint} endpoint */
  const arms_ = (endpoint) =>
    endpoint.deployments
      .filter((deployment) => deployment.role === "traffic")
      .map((deployment) => deployment.deployment);

  function section() {
    return {
      endpoint: state.endpoint,
      control: state.control,
      treatments: state.treatments.filter((treatment) => treatment !== state.control),
      ...(state.alpha === "0.05" ? {} : { alpha: Number(state.alpha) }),
      primary: [{ metric: state.metric, minimal_effect: Math.round(Number(state.minimal) * 1000) / 100_000 }],
      ...(state.onWorse === "pause" ? {} : { on_worse: state.onWorse }),
      ...(state.ramps
        ? {
            ramp: {
              steps: state.steps
                .split(/[\s,]+/)
                .filter(Boolean)
                .map(Number),
              ...(state.advance === "quiet" ? {} : { advance: state.advance }),
            },
          }
        : {}),
    };
  }

  /** @param {Record<string, unknown>} values */
  function change(values) {
    Object.assign(state, values, { copied: "" });
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE_MS);
    draw();
  }

  async function check() {
    const turn = ++state.turn;
    try {
      const answer = await api.send("POST", "/api/experiments/check", {
        name: state.name || "my-experiment",
        experiment: section(),
      });
      if (turn !== state.turn) return;
      Object.assign(state, { answer, problem: "" });
      announce(answer.problems.length ? `${answer.problems.length} problems` : "The section is valid");
    } catch (error) {
      if (turn !== state.turn) return;
      state.problem = error.message;
    }
    draw();
  }

  async function copy() {
    state.copied = await copyText(state.answer?.yaml ?? "", find(root, "pre"), announce);
    draw();
  }

  /**
   * @param {string} id
   * @param {string} label
   * @param {Child} control
   * @param {Child} [hint]
   */
  const field = (id, label, control, hint) => [
    h("label", { for: id }, label),
    h("div", {}, control, hint ? h("p", { class: "hint small" }, hint) : null),
  ];
  /**
   * @param {string} id
   * @param {string} value
   * @param {(value: string) => Record<string, unknown>} set
   * @param {Props} [more]
   */
  const text = (id, value, set, more = {}) =>
    h("input", {
      id,
      type: "text",
      autocomplete: "off",
      spellcheck: "false",
      value,
      on: { input: (event) => change(set(event.target.value)) },
      ...more,
    });
  /**
   * @param {string} id
   * @param {string} value
   * @param {string[][]} options
   * @param {(value: string) => void} set
   */
  const choice = (id, value, options, set) =>
    h(
      "select",
      { id, value, on: { change: (event) => set(event.target.value) } },
      options.map(([option, label]) => h("option", { value: option, selected: option === value }, label)),
    );

  function draw() {
    if (state.endpoints === null) {
      morph(root, h("p", { class: state.problem ? "problem" : "hint" }, state.problem || "Loading …"));
      return;
    }
    const endpoint = state.endpoints.find((endpoint) => endpoint.endpoint === state.endpoint);
    const arms = endpoint ? arms_(endpoint) : [];
    morph(
      root,
      h(
        "p",
        {},
        "An experiment is declared in the configuration file, where it can be reviewed. " +
          "Fill in the form and commit the YAML next to it.",
      ),
      h(
        "div",
        { class: "columns" },
        h(
          "form",
          { class: "fields", on: { submit: (event) => event.preventDefault() } },
          field(
            "d-name",
            "Name",
            text("d-name", state.name, (name) => ({ name }), { placeholder: "my-experiment" }),
          ),
          field(
            "d-endpoint",
            "Endpoint",
            choice(
              "d-endpoint",
              state.endpoint,
              state.endpoints.map((endpoint) => [endpoint.endpoint, endpoint.endpoint]),
              (value) => choose(state.endpoints?.find((endpoint) => endpoint.endpoint === value)),
            ),
          ),
          field(
            "d-control",
            "Control",
            choice(
              "d-control",
              state.control,
              arms.map((arm) => [arm, arm]),
              (control) =>
                change({ control, treatments: state.treatments.filter((treatment) => treatment !== control) }),
            ),
          ),
          h("span", { class: "label", id: "d-treatments" }, "Treatments"),
          h(
            "div",
            { role: "group", "aria-labelledby": "d-treatments", class: "checks" },
            arms
              .filter((arm) => arm !== state.control)
              .map((arm) =>
                h(
                  "label",
                  { class: "check", key: arm },
                  h("input", {
                    type: "checkbox",
                    value: arm,
                    checked: state.treatments.includes(arm),
                    on: {
                      change: (event) =>
                        change({
                          treatments: event.target.checked
                            ? [...state.treatments, arm]
                            : state.treatments.filter((other) => other !== arm),
                        }),
                    },
                  }),
                  " ",
                  arm,
                ),
              ),
            arms.length < 2
              ? h("p", { class: "hint small" }, "This endpoint has one deployment: there is nothing to compare.")
              : null,
          ),
          field(
            "d-metric",
            "Primary metric",
            choice(
              "d-metric",
              state.metric,
              [
                ...Object.entries(METRICS),
                ["cost", "Cost"],
                ...PROPORTIONS.map((metric) => [metric, `Rate of ${metric}`]),
              ],
              (metric) => change({ metric }),
            ),
          ),
          field("d-minimal", "Smallest effect that matters", [
            h("input", {
              id: "d-minimal",
              type: "number",
              min: "0.1",
              max: "99",
              step: "0.1",
              value: state.minimal,
              on: { input: (event) => change({ minimal: event.target.value }) },
            }),
            " %",
          ]),
          field(
            "d-alpha",
            "Chance of a false verdict",
            choice(
              "d-alpha",
              state.alpha,
              [
                ["0.1", "10\u00a0%"],
                ["0.05", "5\u00a0%"],
                ["0.01", "1\u00a0%"],
              ],
              (alpha) => change({ alpha }),
            ),
          ),
          field(
            "d-worse",
            "If it is worse",
            choice(
              "d-worse",
              state.onWorse,
              [
                ["pause", "pause"],
                ["rollback", "roll back"],
              ],
              (onWorse) => change({ onWorse }),
            ),
          ),
          h("span", { class: "label" }, "Ramp"),
          h(
            "label",
            { class: "check" },
            h("input", {
              type: "checkbox",
              checked: state.ramps,
              on: { change: (event) => change({ ramps: event.target.checked }) },
            }),
            " The treatments' share grows automatically",
          ),
          state.ramps
            ? field(
                "d-steps",
                "Steps, percent",
                text("d-steps", state.steps, (steps) => ({ steps })),
              )
            : null,
          state.ramps
            ? field(
                "d-advance",
                "The next step waits for",
                choice("d-advance", state.advance, Object.entries(ADVANCE), (advance) => change({ advance })),
              )
            : null,
        ),
        h("div", { class: "result", "aria-live": "polite" }, result()),
      ),
    );
  }

  function result() {
    if (state.problem) return h("p", { class: "problem", role: "alert" }, state.problem);
    if (state.answer === null) return h("p", { class: "hint" }, "Checking …");
    const { problems, warnings, yaml } = state.answer;
    if (problems.length)
      return [
        h("p", {}, mark("bad", "The file would be rejected:")),
        h(
          "ul",
          {},
          problems.map((problem) => h("li", {}, problem)),
        ),
      ];
    return [
      h("p", {}, mark("good", "Valid. Merge this into the router's configuration:")),
      h("pre", { tabindex: "0", "aria-label": "YAML" }, yaml),
      h("div", { class: "actions" }, h("button", { type: "button", on: { click: copy } }, state.copied || "Copy")),
      warnings.length
        ? notice(
            "warn",
            h("strong", {}, "Allowed, but rarely intended:"),
            h(
              "ul",
              {},
              warnings.map((warning) => h("li", {}, warning)),
            ),
          )
        : null,
    ];
  }

  draw();
  load();
  return root;
}
