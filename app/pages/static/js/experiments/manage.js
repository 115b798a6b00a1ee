// What a manager does with an experiment: declares it in a form, whose section the server checks as it checks the
// file's, and returns as YAML to commit; and decides, with a reason, after a dry run where traffic moves.

import { find, h, morph } from "../dom.js";
import { list } from "../format.js";
import { askForReason, copy as copyText, mark, notice } from "../parts.js";
import { movesInWords } from "../traffic/plans.js";
import { METRICS } from "./words.js";

const PAUSE_MS = 300;
const PROPORTIONS = ["error", "slow", "empty", "truncated", "stalled", "invalid_output", "client_gone", "unfinished"];
const ADVANCE = { quiet: "no alarm", non_inferior: "non-inferior", better: "better", manual: "a manager's decision" };

/** @param {Context} context */
export function form({ api, announce }) {
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

/**
 * The actions that are possible now, the usual one first. Only the file resumes what the file paused.
 *
 * @param {Summary} summary
 * @returns {Action[]}
 */
export function actions(summary) {
  const acting = summary.acting;
  if (!acting || acting.state === "stopped") return [];
  const paused = acting.state === "paused";
  const standing = summary.alarm_kinds.includes("standing");
  /** @type {(Action | null)[]} */
  const possible = [
    paused && acting.cause !== "file" ? "resume" : null,
    paused || (acting.next_share ?? null) === null ? null : "advance",
    paused ? null : "pause",
    standing && !paused ? "resume" : null,
    "rollback",
    "promote",
    "stop",
  ];
  return possible.filter((action) => action !== null);
}

/** @type {Record<Action, string>} */
export const LABELS = {
  resume: "Resume",
  advance: "Advance",
  pause: "Pause",
  rollback: "Roll back",
  promote: "Promote",
  stop: "Stop",
};

/** @type {Record<string, string>} */
const DOUBTS = {
  do_not_ship: "is worse, or exceeds a guardrail: the report says not to ship it",
  keep_going: "is not known to be better: there is no decision on it yet",
  invalid: "cannot be judged: no verdict of this run can be trusted",
};

/**
 * Why a treatment should not be promoted now; null if the report says to ship it.
 *
 * @param {Summary} summary
 * @param {string} treatment
 */
function doubt({ decision, decisions }, treatment) {
  const found = decisions?.[treatment] ?? decision ?? "keep_going";
  return found === "ship" ? null : `${treatment} ${DOUBTS[found] ?? DOUBTS.keep_going}.`;
}

/**
 * Whether it was paused because a treatment failed: to go on is not the usual next step.
 *
 * @param {Summary} summary
 */
export function hasFailed({ decision, acting }) {
  return decision === "do_not_ship" || ["alarm", "worse", "harm"].includes(acting?.cause ?? "");
}

/**
 * Shows the effect, asks for a reason, sends the decision. Resolves to whether it was made. `etag`: the summary's.
 *
 * @param {Action} action
 * @param {Summary} summary
 * @param {string} etag
 * @param {string} treatment
 * @param {Context} context
 */
export async function decide(action, summary, etag, treatment, { api }) {
  const name = summary.experiment;
  const path = `/api/experiments/${encodeURIComponent(name)}/decision`;
  const named = action === "promote" ? { treatment } : {};
  const doubts = action === "promote" ? doubt(summary, treatment) : null;
  return askForReason({
    title: `${LABELS[action]}: ${name}`,
    explain: h(
      "div",
      {},
      doubts ? notice("bad", doubts) : null,
      h("p", {}, inWords(action, summary, treatment)),
      await dryRun(path, { action, reason: "dry run", ...named }, api),
    ),
    label: LABELS[action],
    danger: action === "rollback" || action === "stop" || doubts !== null,
    typed: doubts === null ? null : treatment,
    act: async (reason) => {
      try {
        await api.send("POST", path, { action, reason, ...named }, { "if-match": etag });
      } catch (error) {
        if (error.status === 412) throw new Error(goneOn(error.body?.current?.acting), { cause: error });
        throw error;
      }
    },
  });
}

/** @param {Acting} [acting] */
function goneOn(acting) {
  const now = acting ? ` It is ${acting.state} now, with ${acting.share}\u00a0% on treatments.` : "";
  return (
    `The experiment has changed since you opened this.${now} ` +
    "Close this dialog, look at the current state and decide again."
  );
}

/**
 * @param {Action} action
 * @param {Summary} summary
 * @param {string} treatment
 */
function inWords(action, { acting, alarm_kinds, control, treatments }, treatment) {
  const hasRamp = (acting?.step ?? acting?.next_share ?? null) !== null;
  return {
    resume:
      (hasRamp ? "The ramp continues by its own rules." : "The experiment continues. The traffic stays as it is.") +
      (acting?.cause === "alarm" || alarm_kinds.includes("standing") ? " That clears the guardrails' alarms." : ""),
    advance:
      `The treatments get ${acting?.next_share}\u00a0% of the traffic instead of ${acting?.share}\u00a0%, ` +
      "without waiting for the step's conditions.",
    pause: "Nothing advances until somebody resumes it. The traffic stays as it is.",
    rollback: `${control} gets the traffic of ${list(treatments)}, and the ${hasRamp ? "ramp" : "experiment"} pauses.`,
    promote: `${treatment} gets all the traffic that the holdout leaves, and the experiment ends.`,
    stop: "The experiment ends. The traffic stays as it is.",
  }[action];
}

/**
 * The server's dry run. A refusal of it is shown: the decision itself would be refused, too.
 *
 * @param {string} path
 * @param {Record<string, unknown>} decision
 * @param {Api} api
 * @returns {Promise<Child>}
 */
async function dryRun(path, decision, api) {
  try {
    const { before, after, stopped, moves } = await api.send("POST", `${path}?dry_run=true`, decision);
    return [
      stopped.length
        ? h("p", {}, h("strong", {}, list(stopped)), " gets no traffic from now on, even before the plan changes.")
        : null,
      movesInWords(before, { after: { weights: after }, moves }),
    ];
  } catch (error) {
    return h("p", { class: "problem" }, error.message);
  }
}
