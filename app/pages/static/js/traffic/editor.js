// The editor of a split: sliders that always sum to 100, a dry run, a reason, and a conditional change.

import { h, morph } from "../dom.js";
import { duration } from "../format.js";
import { notice, swatch } from "../parts.js";
import { changes, moved, movesInWords, overridesOf } from "./moves.js";

const LENGTHS = [
  ["", "until it is changed"],
  ["3600", duration(3600)],
  ["14400", duration(14400)],
  ["86400", "1 day"],
];
/** @typedef {Omit<Plan, "generation"> & {generation: number | null}} StalePlan */

const PAUSE_MS = 250; // between the last movement of a slider and the dry run

/**
 * Returns the editor's element, and `update`, which takes the endpoint as it is now: somebody else may change its plan
 * meanwhile. Calls `done(text)` after a change, `done(null)` when the visitor cancels.
 *
 * @param {Endpoint} of
 * @param {Context} context
 * @param {(text: string | null) => void} done
 */
export function editor({ endpoint, deployments, plan: known }, { api, announce }, done) {
  const path = `/api/endpoints/${encodeURIComponent(endpoint)}/traffic`;
  const root = h("section", { class: "panel editor", "aria-label": `Change the split of ${endpoint}`, opaque: true });
  const state = {
    /** @type {any} A Plan, once it has been read. */
    plan: null,
    etag: "",
    /** @type {Weights} */
    weights: {},
    reason: "",
    ttl: "",
    /** @type {DryRun | null} */
    dry: null,
    trying: false,
    problem: "",
    /** @type {StalePlan | null} The plan that somebody else has made meanwhile. */
    stale: null,
    busy: false,
  };
  /** @type {number | undefined} */
  let timer;

  async function load() {
    await take();
    root.querySelector("input")?.focus({ preventScroll: true });
  }

  async function take() {
    try {
      const { data, etag } = await api.read(path);
      Object.assign(state, { plan: data, etag, weights: { ...data.weights }, dry: null, problem: "", stale: null });
    } catch (error) {
      state.problem = error.message;
    }
    draw();
  }

  /** @param {Endpoint} now */
  async function update(now) {
    if (now.plan === known) return;
    known = now.plan;
    if (state.plan === null || state.busy) return;
    if (!isDifferent()) return take();
    try {
      const { data, etag } = await api.read(path);
      if (etag !== state.etag) await changed(data);
    } catch {
      // The change itself will tell.
    }
    draw();
  }

  /**
   * Somebody else has made this plan. One of a deployed file has its number only in the history.
   *
   * @param {Plan} plan
   */
  async function changed(plan) {
    const known = (state.stale = { ...plan, generation: plan.generation || null });
    draw();
    try {
      /** @type {{plans: PastPlan[]}} */
      const { plans } = await api.get(`${path}/history`);
      if (plans[0]?.plan === plan.plan) known.generation = plans[0].generation;
    } catch {
      // The history is not known either.
    }
  }

  function body() {
    return {
      weights: state.weights,
      overrides: overridesOf(state.plan),
      ...(state.ttl ? { ttl_s: Number(state.ttl) } : {}),
      ...(state.reason.trim() ? { reason: state.reason.trim() } : {}),
    };
  }

  /**
   * @param {string} name
   * @param {string} value
   */
  function slide(name, value) {
    state.weights = moved(state.weights, name, value);
    state.dry = null;
    state.problem = "";
    clearTimeout(timer);
    if (isDifferent()) timer = setTimeout(tryIt, PAUSE_MS);
    draw();
  }

  /** @param {string} name */
  const colourOf = (name) => deployments.find(({ deployment }) => deployment === name)?.colour ?? null;
  const isDifferent = () => changes(state.plan.weights, state.weights).length > 0;

  /** One dry run at a time: with many deployments it is work for the server. */
  async function tryIt() {
    if (state.trying) return;
    state.trying = true;
    const wanted = state.weights;
    try {
      const answer = await api.send("PUT", `${path}?dry_run=true`, body(), { "if-match": state.etag });
      if (wanted === state.weights) {
        state.dry = answer;
        announce("The dry run has finished.");
      }
    } catch (error) {
      if (wanted === state.weights) await refused(error);
    }
    state.trying = false;
    if (wanted !== state.weights && isDifferent()) await tryIt();
    else draw();
  }

  /** @param {Event} event */
  async function apply(event) {
    event.preventDefault();
    state.busy = true;
    draw();
    try {
      await api.send("PUT", path, body(), { "if-match": state.etag });
      done(`The split of ${endpoint} is changed.`);
      return;
    } catch (error) {
      await refused(error);
    }
    state.busy = false;
    draw();
  }

  /** @param {ApiError} error */
  async function refused(error) {
    if (error.status === 412 && error.body?.current) {
      announce("The plan was changed while you were editing.");
      await changed(error.body.current);
    } else {
      announce(error.message);
      state.problem = error.message;
    }
  }

  /** @param {string} name */
  function slider(name) {
    const id = `${endpoint}/${name}`;
    const value = state.weights[name];
    return h(
      "div",
      { class: "slider", key: name },
      h("label", { for: `share/${id}` }, swatch(colourOf(name)), name),
      h("input", {
        type: "range",
        id: `share/${id}`,
        min: "0",
        max: "100",
        step: "1",
        value: String(value),
        "aria-valuetext": `${value} percent`,
        on: { input: (event) => slide(name, event.target.value) },
      }),
      h("input", {
        type: "number",
        "aria-label": `Percent for ${name}`,
        min: "0",
        max: "100",
        step: "1",
        value: String(value),
        on: { change: (event) => slide(name, event.target.value) },
      }),
      h(
        "span",
        { class: "was hint" },
        state.stale !== null
          ? `was ${state.plan.weights[name] ?? 0}\u00a0%`
          : state.plan.weights[name] === value
            ? "as now"
            : `now ${state.plan.weights[name] ?? 0}\u00a0%`,
      ),
    );
  }

  /** @param {StalePlan} plan */
  function stale({ generation, by, reason, weights }) {
    return notice(
      "warn",
      h("strong", {}, "The plan was changed while you were editing."),
      h(
        "p",
        {},
        "The current plan is ",
        generation === null ? "" : `generation ${generation}, `,
        by === null ? "from a file" : `by ${by}`,
        reason ? ` (${reason})` : "",
        ": ",
        Object.entries(weights)
          .map(([name, share]) => `${name} ${share}\u00a0%`)
          .join(", "),
        ".",
      ),
      h("button", { type: "button", on: { click: load } }, "Start over from it"),
    );
  }

  function draw() {
    if (state.plan === null) {
      morph(
        root,
        h("p", { class: state.problem ? "problem" : "hint" }, state.problem || "Loading the plan …"),
        state.problem ? giveUp() : null,
      );
      return;
    }
    const isReady =
      isDifferent() && state.dry !== null && state.reason.trim() !== "" && !state.busy && state.stale === null;
    const names = Object.keys(state.plan.weights);
    morph(
      root,
      h("h3", {}, "Change the split"),
      state.plan.overrides.length
        ? h("p", { class: "hint" }, `${state.plan.overrides.length} overrides stay as they are.`)
        : null,
      h(
        "form",
        { on: { submit: apply } },
        h("div", { class: "sliders" }, names.map(slider)),
        h("p", { class: "sum" }, `Sum: ${Object.values(state.weights).reduce((a, b) => a + b, 0)}\u00a0%`),
        h("div", { class: "effect", "aria-live": "polite" }, h("h4", {}, "What would move"), effect()),
        state.stale === null ? null : stale(state.stale),
        h(
          "div",
          { class: "fields" },
          h("label", { for: `why/${endpoint}` }, "Why?"),
          h("input", {
            type: "text",
            id: `why/${endpoint}`,
            maxlength: "300",
            autocomplete: "off",
            required: true,
            value: state.reason,
            on: { input: (event) => ((state.reason = event.target.value), draw()) },
          }),
          h("label", { for: `ttl/${endpoint}` }, "For how long?"),
          h(
            "select",
            {
              id: `ttl/${endpoint}`,
              value: state.ttl,
              on: { change: (event) => ((state.ttl = event.target.value), draw()) },
            },
            LENGTHS.map(([value, label]) => h("option", { value, selected: value === state.ttl }, label)),
          ),
        ),
        state.problem ? h("p", { class: "problem", role: "alert" }, state.problem) : null,
        h(
          "div",
          { class: "actions" },
          h("button", { type: "submit", class: "primary", disabled: !isReady }, "Change the split"),
          giveUp(),
        ),
        h("p", { class: "hint" }, wanting()),
      ),
    );
  }

  function wanting() {
    if (state.stale !== null) return "";
    if (!isDifferent()) return "Move a slider. Nothing changes until you confirm it.";
    return state.reason.trim() === "" ? "Give a reason to make the change." : "";
  }

  function effect() {
    if (state.stale !== null) return h("p", { class: "hint" }, "Not known: the split is another one by now.");
    if (!isDifferent()) return h("p", { class: "hint" }, "Nothing: this is the current split.");
    return state.dry === null
      ? h("p", { class: "hint" }, state.problem ? "Unknown." : "Running the dry run …")
      : movesInWords(state.plan.weights, state.dry);
  }

  function giveUp() {
    return h("button", { type: "button", on: { click: () => done(null) } }, "Cancel");
  }

  draw();
  load();
  return { element: root, update };
}
