// An endpoint's plans so far, with rollback, and which deployment a key gets by the present one, and why.

import { h, morph } from "../dom.js";
import { number, or, time } from "../format.js";
import { askForReason, cell, table, term } from "../parts.js";
import { movesInWords, overridesOf, planChanges } from "./moves.js";

const SHOWN = 20;

/**
 * Calls `done(text)` after a rollback.
 *
 * @param {string} endpoint
 * @param {boolean} mayChange
 * @param {Context} context
 * @param {(text: string | null) => void} done
 */
export function history(endpoint, mayChange, { api, announce }, done) {
  const path = `/api/endpoints/${encodeURIComponent(endpoint)}/traffic`;
  const root = h("section", { class: "panel history", "aria-label": `Plans of ${endpoint}`, opaque: true });
  /** @type {PastPlan[] | null} */
  let plans = null;
  let problem = "";
  let all = false;

  async function load() {
    try {
      plans = (await api.get(`${path}/history`)).plans;
    } catch (error) {
      problem = error.message;
    }
    draw();
  }

  /** @param {PastPlan} plan */
  async function rollBack(plan) {
    /** @type {{data: Plan, etag: string}} */
    let present;
    /** @type {DryRun} */
    let dry;
    try {
      present = await api.read(path);
      const weights = {
        ...Object.fromEntries(Object.keys(present.data.weights).map((name) => [name, 0])),
        ...plan.weights,
      };
      const overrides = overridesOf(present.data);
      dry = await api.send("PUT", `${path}?dry_run=true`, { weights, overrides }, { "if-match": present.etag });
    } catch (error) {
      problem = error.message;
      announce(error.message);
      draw();
      return;
    }
    const isDone = await askForReason({
      title: `Roll ${endpoint} back to generation ${plan.generation}`,
      explain: movesInWords(present.data.weights, dry),
      label: "Roll back",
      act: (reason) =>
        api.send("POST", `${path}/rollback`, { generation: plan.generation, reason }, { "if-match": present.etag }),
    });
    if (isDone) done(`${endpoint} is back at the weights of generation ${plan.generation}.`);
  }

  /**
   * @param {PastPlan} plan
   * @param {number} index
   */
  function line(plan, index) {
    const before = plans?.[index + 1];
    const different = before ? planChanges(before, plan) : [];
    return h(
      "li",
      { key: `${plan.generation}/${plan.since}` },
      h(
        "div",
        { class: "plan-head" },
        h("strong", {}, `Generation ${plan.generation}`),
        index === 0 ? h("span", { class: "tag" }, "in force") : null,
        h("span", { class: "hint" }, time(plan.since), " ", plan.by ? `by ${plan.by}` : "from a file"),
        mayChange && index > 0
          ? h(
              "button",
              {
                type: "button",
                class: "small",
                "aria-label": `Roll back to this: generation ${plan.generation}`,
                on: { click: () => rollBack(plan) },
              },
              "Roll back to this",
            )
          : null,
      ),
      plan.reason ? h("p", {}, plan.reason) : null,
      h(
        "p",
        { class: "weights" },
        Object.entries(plan.weights).map(([name, share]) => h("span", {}, name, " ", h("b", {}, `${share}\u00a0%`))),
      ),
      plan.expires === null ? null : h("p", {}, "Temporary: until ", time(plan.expires), "."),
      before
        ? h(
            "p",
            { class: "hint" },
            different.length ? `Changed: ${different.join(", ")}` : "Nothing changed: it equals the plan before it.",
          )
        : null,
    );
  }

  function draw() {
    const shown = plans === null ? [] : all ? plans : plans.slice(0, SHOWN);
    morph(
      root,
      h("h3", {}, term("plan", "Plans")),
      problem ? h("p", { class: "problem", role: "alert" }, problem) : null,
      plans === null && !problem ? h("p", { class: "hint" }, "Loading …") : null,
      plans?.length === 0
        ? h("p", { class: "hint" }, "The experiment controller has not seen a plan of this endpoint yet.")
        : null,
      h("ol", { class: "plans" }, shown.map(line)),
      plans !== null && !all && plans.length > SHOWN
        ? h("button", { type: "button", on: { click: () => ((all = true), draw()) } }, `All ${plans.length}`)
        : null,
    );
  }

  draw();
  load();
  return root;
}

/**
 * @param {Endpoint} endpoint
 * @param {Context} context
 */
export function explain(endpoint, { api, announce }) {
  const path = `/api/endpoints/${encodeURIComponent(endpoint.endpoint)}/assignment`;
  const root = h("section", {
    class: "panel explain",
    "aria-label": `Explain a key of ${endpoint.endpoint}`,
    opaque: true,
  });
  const key = h("input", {
    type: "text",
    id: `key/${endpoint.endpoint}`,
    autocomplete: "off",
    spellcheck: "false",
    opaque: true,
  });
  const caller = h("input", {
    type: "text",
    id: `caller/${endpoint.endpoint}`,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "you",
    opaque: true,
  });
  /** @type {Assignment | null} */
  let answer = null;
  let problem = "";

  /** @param {Event} [event] */
  async function ask(event) {
    event?.preventDefault();
    try {
      const query = new URLSearchParams({ key: key.value, ...(caller.value ? { caller: caller.value } : {}) });
      /** @type {Assignment} */
      const explained = await api.get(endpoint.sticky ? `${path}?${query}` : path);
      answer = explained;
      problem = "";
      announce(explained.why);
    } catch (error) {
      answer = null;
      problem = error.message;
    }
    draw();
  }

  function draw() {
    morph(
      root,
      h("h3", {}, "Explain a ", term("sticky key", "key")),
      endpoint.sticky
        ? h(
            "form",
            { class: "inline", on: { submit: ask } },
            h("label", { for: key.id }, label(endpoint.sticky)),
            key,
            callers(endpoint.sticky, caller),
            h("button", { type: "submit" }, "Explain"),
          )
        : null,
      problem ? h("p", { class: "problem", role: "alert" }, problem) : null,
      answer
        ? h(
            "div",
            {},
            h("p", {}, answer.deployment ? [h("strong", {}, answer.deployment), " answers. "] : null, answer.why),
            table(
              "Scores of the deployments",
              ["Deployment", { label: "Share", number: true }, { label: "Score", number: true }],
              answer.deployments.map((deployment) =>
                h(
                  "tr",
                  { key: deployment.deployment },
                  cell("", deployment.deployment, { header: true }),
                  cell("Share", `${deployment.weight}\u00a0%`, { number: true }),
                  cell("Score", or(number(deployment.score)), { number: true }),
                ),
              ),
              { class: "stacked" },
            ),
          )
        : null,
    );
  }

  draw();
  if (!endpoint.sticky) ask();
  return root;
}

/**
 * The input for the caller whose key it is: API keys are their callers' anyway.
 *
 * @param {Sticky} sticky
 * @param {HTMLInputElement} caller
 */
function callers(sticky, caller) {
  return sticky.by === "api_key" ? [] : [h("label", { for: caller.id }, "of the caller"), caller];
}

/** @param {Sticky} sticky */
function label(sticky) {
  if (sticky.by === "header") return `A value of ${sticky.name}`;
  return { user: "A user", api_key: "An API key", conversation: "A conversation" }[sticky.by] ?? "A key";
}
