// A form that declares an experiment. The server checks the section as it checks the file's, and returns the YAML to
// commit. The form applies nothing itself.

import { h, morph } from "../dom.js";
import { copy as copyText, mark, notice } from "../parts.js";
import { METRICS } from "./words.js";

const PAUSE_MS = 300;
const PROPORTIONS = ["error", "slow", "empty", "truncated", "stalled", "invalid_output", "client_gone", "unfinished"];
const ADVANCE = { quiet: "no alarm", non_inferior: "non-inferior", better: "better", manual: "a manager's decision" };

export function form({ api, announce }) {
  const root = h("section", { class: "declare", "aria-label": "Declare an experiment", opaque: true });
  const state = {
    endpoints: null,
    problem: null,
    answer: null,
    turn: 0,
    copied: null,
    name: "",
    endpoint: "",
    control: "",
    treatments: [],
    metric: "ttft",
    minimal: "5",
    alpha: "0.05",
    ramps: true,
    steps: "1, 5, 25, 50",
    advance: "quiet",
    onWorse: "pause",
  };
  let timer;

  async function load() {
    try {
      state.endpoints = (await api.get("/api/overview")).endpoints;
      choose(state.endpoints[0]);
    } catch (error) {
      state.problem = error.message;
    }
    draw();
  }

  function choose(endpoint) {
    if (!endpoint) return;
    const arms = arms_(endpoint);
    Object.assign(state, { endpoint: endpoint.endpoint, control: arms[0] ?? "", treatments: arms.slice(1, 2) });
    check();
  }

  const arms_ = (endpoint) => endpoint.deployments.filter((it) => it.role === "traffic").map((it) => it.deployment);

  function section() {
    return {
      endpoint: state.endpoint,
      control: state.control,
      treatments: state.treatments.filter((it) => it !== state.control),
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

  function change(values) {
    Object.assign(state, values, { copied: null });
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
      Object.assign(state, { answer, problem: null });
      announce(answer.problems.length ? `${answer.problems.length} problems` : "The section is valid");
    } catch (error) {
      if (turn !== state.turn) return;
      state.problem = error.message;
    }
    draw();
  }

  async function copy() {
    state.copied = await copyText(state.answer.yaml, root.querySelector("pre"), announce);
    draw();
  }

  const field = (id, label, control, hint) => [
    h("label", { for: id }, label),
    h("div", {}, control, hint ? h("p", { class: "hint small" }, hint) : null),
  ];
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
  const choice = (id, value, options, set) =>
    h(
      "select",
      { id, value, on: { change: (event) => set(event.target.value) } },
      options.map(([it, label]) => h("option", { value: it, selected: it === value }, label)),
    );

  function draw() {
    if (state.endpoints === null) {
      morph(root, h("p", { class: state.problem ? "problem" : "hint" }, state.problem ?? "Loading …"));
      return;
    }
    const endpoint = state.endpoints.find((it) => it.endpoint === state.endpoint);
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
              state.endpoints.map((it) => [it.endpoint, it.endpoint]),
              (value) => choose(state.endpoints.find((it) => it.endpoint === value)),
            ),
          ),
          field(
            "d-control",
            "Control",
            choice(
              "d-control",
              state.control,
              arms.map((it) => [it, it]),
              (control) => change({ control, treatments: state.treatments.filter((it) => it !== control) }),
            ),
          ),
          h("span", { class: "label", id: "d-treatments" }, "Treatments"),
          h(
            "div",
            { role: "group", "aria-labelledby": "d-treatments", class: "checks" },
            arms
              .filter((it) => it !== state.control)
              .map((it) =>
                h(
                  "label",
                  { class: "check", key: it },
                  h("input", {
                    type: "checkbox",
                    value: it,
                    checked: state.treatments.includes(it),
                    on: {
                      change: (event) =>
                        change({
                          treatments: event.target.checked
                            ? [...state.treatments, it]
                            : state.treatments.filter((other) => other !== it),
                        }),
                    },
                  }),
                  " ",
                  it,
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
              [...Object.entries(METRICS), ["cost", "Cost"], ...PROPORTIONS.map((it) => [it, `Rate of ${it}`])],
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
          problems.map((it) => h("li", {}, it)),
        ),
      ];
    return [
      h("p", {}, mark("good", "Valid. Merge this into the router's configuration:")),
      h("pre", { tabindex: "0", "aria-label": "YAML" }, yaml),
      h("div", { class: "actions" }, h("button", { type: "button", on: { click: copy } }, state.copied ?? "Copy")),
      warnings.length
        ? notice(
            "warn",
            h("strong", {}, "Allowed, but rarely intended:"),
            h(
              "ul",
              {},
              warnings.map((it) => h("li", {}, it)),
            ),
          )
        : null,
    ];
  }

  draw();
  load();
  return root;
}
