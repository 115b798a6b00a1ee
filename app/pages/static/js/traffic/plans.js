// An endpoint's plans: what a change of the percentages moves, which deployment a key gets and why, and the plans so
// far with rollback. Percentages are whole numbers that always sum to 100.

import { h, morph } from "../dom.js";
import { count, number, or, percent, time } from "../format.js";
import { askForReason, cell, table, term } from "../parts.js";

/**
 * `weights` (name → percent) with `name` at `value`: the others give or take in proportion to what they have. If they
 * have nothing, they share equally. A single deployment keeps 100.
 *
 * @param {Weights} weights
 * @param {string} name
 * @param {string | number} value
 * @returns {Weights}
 */
export function moved(weights, name, value) {
  const others = Object.keys(weights).filter((other) => other !== name);
  if (others.length === 0) return { [name]: 100 };
  const wanted = Math.min(100, Math.max(0, Math.round(Number(value) || 0)));
  return { ...weights, ...shared(others, weights, 100 - wanted), [name]: wanted };
}

/**
 * `total` among `names` in proportion to their weights, in whole numbers: the largest remainders are rounded up.
 *
 * @param {string[]} names
 * @param {Weights} weights
 * @param {number} total
 * @returns {Weights}
 */
function shared(names, weights, total) {
  const before = names.reduce((sum, name) => sum + weights[name], 0);
  const exact = names.map((name) => (before > 0 ? (weights[name] * total) / before : total / names.length));
  const whole = exact.map(Math.floor);
  let left = total - whole.reduce((sum, percent) => sum + percent, 0);
  const order = names.map((_, index) => index).sort((a, b) => exact[b] - whole[b] - (exact[a] - whole[a]) || a - b);
  for (const index of order) if (left-- > 0) whole[index] += 1;
  return Object.fromEntries(names.map((name, index) => [name, whole[index]]));
}

/**
 * [name, before, after] of each deployment whose percentage changes.
 *
 * @param {Weights} before
 * @param {Weights} after
 * @returns {[string, number, number][]}
 */
export function changes(before, after) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names
    .map((name) => /** @type {[string, number, number]} */ ([name, before[name] ?? 0, after[name] ?? 0]))
    .filter(([, a, b]) => a !== b);
}

/**
 * A plan's overrides as a change of it sends them.
 *
 * @param {Plan} plan
 */
export function overridesOf({ overrides }) {
  return overrides.map(({ unit, deployment, until }) => ({ unit, deployment, ...(until === null ? {} : { until }) }));
}

/**
 * The differences of `plan` from the one `before` it, a phrase each: percentages, the number of overrides, whether it
 * is temporary, and which conversations had to move. Of the rest of a plan, the history has only a hash.
 *
 * @param {PastPlan} before
 * @param {PastPlan} plan
 */
export function planChanges(before, plan) {
  const found = changes(before.weights, plan.weights).map(([name, a, b]) => `${name} ${a} → ${b}\u00a0%`);
  if (before.overrides !== plan.overrides) found.push(`overrides ${before.overrides} → ${plan.overrides}`);
  if (before.expires === null && plan.expires !== null) found.push("temporary");
  if (before.expires !== null && plan.expires === null) found.push("no longer temporary");
  if (before.expires !== null && plan.expires !== null && before.expires !== plan.expires) found.push("another end");
  for (const [from, to] of Object.entries(plan.withdrawn))
    if (before.withdrawn[from] !== to) found.push(`running conversations leave ${from} for ${to}`);
  if (!found.length && before.content && before.content !== plan.content)
    found.push("the sticky key, the mirror, or which units have an override");
  return found;
}

/**
 * @param {Weights} before
 * @param {DryRun} answer
 */
export function movesInWords(before, answer) {
  const different = changes(before, answer.after.weights);
  if (different.length === 0) return h("p", {}, "No traffic moves.");
  const { made_up_keys: any, recent_keys: recent } = answer.moves;
  return h(
    "div",
    { class: "moves" },
    h(
      "ul",
      {},
      different.map(([name, a, b]) =>
        h("li", {}, h("strong", {}, name), ` ${b > a ? "rises" : "falls"} from ${a}\u00a0% to ${b}\u00a0%`),
      ),
    ),
    h("p", {}, `${percent(any.share)} of all keys get another deployment`, pairs(any), "."),
    recent.keys > 0
      ? h(
          "p",
          { class: "hint" },
          `Of the ${count(recent.keys, "key", "keys")} that this router saw recently: ${percent(recent.share)}.`,
        )
      : null,
  );
}

/** @param {Moves} moves */
function pairs({ pairs: all }) {
  if (all.length === 0) return "";
  /** @param {string} deployment */
  const name = (deployment) => h("span", { class: "name" }, deployment);
  const named = all
    .slice(0, 3)
    .map((pair, index) => [index ? ", " : "", `${percent(pair.share)} from `, name(pair.from), " to ", name(pair.to)]);
  return [" (", named, all.length > 3 ? " …" : "", ")"];
}

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
