// The deployment that a key gets, and the reason.

import { h, morph } from "../dom.js";
import { number, or } from "../format.js";
import { cell, table, term } from "../parts.js";

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
