// What the console's words mean: the glossary of the documentation, as a page and as a pop-up.

import { find, h } from "../dom.js";

/**
 * The words that share a meaning, and the meaning.
 *
 * @type {[string[], string][]}
 */
const GLOSSARY = [
  [["A/A run"], "an experiment that compares control with itself, to test the measurement"],
  [["API key"], "the credential of a caller; not to be confused with a sticky key"],
  [
    ["application"],
    "Ray Serve's unit: the router, the controller of experiments, or the engines of one model. A " +
      "deployment names one as app",
  ],
  [["arm"], "a deployment's side of an experiment: control or a treatment"],
  [["caller"], "who sends a request: an API key's name, a token's principal, or anonymous"],
  [["circuit breaker"], "keeps traffic from a deployment that fails, until it answers again"],
  [["confidence sequence"], "an interval that is valid however often you look at it"],
  [["control", "treatment"], "the deployment that you have; one that you try"],
  [
    ["controller of experiments"],
    "the Serve application experiments: it stores exposures, computes reports and acts on verdicts. Ray " +
      "Serve's own controller is called the control plane",
  ],
  [
    ["deployment"],
    "one variant of a model behind an endpoint: an application, or a server at a url. Variant means the " +
      "same where models are compared",
  ],
  [["dialect"], "the API of one provider"],
  [["endpoint"], "the name that clients put into model"],
  [["engine"], "vLLM in a replica"],
  [["exposure"], "the record that a unit's request was assigned to an arm"],
  [["generation"], "the number of a plan"],
  [["guardrail"], "a watch on an event whose rate must not rise"],
  [["ledger"], "the directory or bucket with exposures, journal, recordings and audit log"],
  [["mirror", "shadow"], "copies of requests go to a deployment whose answers no client sees"],
  [["pin"], "a running conversation keeps its deployment after a change of the split"],
  [["plan"], "one version of an endpoint's traffic: split, overrides, author, time, reason"],
  [["prefix cache"], "what an engine keeps of earlier prompts, for prompts that begin alike"],
  [["ramp"], "a split that an experiment raises in steps"],
  [["replica"], "one running copy of an application"],
  [["router"], "the ingress that translates, splits and records"],
  [["split"], "the percentages of an endpoint's traffic; traffic in the file, weights in the API"],
  [["sticky key"], "what keeps requests together: a header, a user, an API key or a conversation"],
  [["stop"], "routers give a deployment no traffic, at once, until the plan says the same"],
  [["unit"], "what an experiment assigns at random: what has one sticky key, or a single request"],
];

/**
 * The events that guardrails watch, and when a request has one.
 *
 * @type {[string[], string][]}
 */
const EVENTS = [
  [["error"], "the request fails"],
  [
    ["slow"],
    "no first token within 10 s, or no whole answer within 20 s, unless the guardrail sets ttft_above_s or " +
      "answer_above_s",
  ],
  [["empty"], "the answer has no text and no tool call"],
  [["unfinished"], "the request has not ended within 120 s, unless the guardrail sets another limit"],
  [["stalled"], "the answer's stream has a gap of more than 5 s, unless the guardrail sets another limit"],
  [["truncated"], "the answer ends at its limit of tokens"],
  [["invalid_output"], "the answer is not what the request's format or tools prescribe"],
  [["client_gone"], "the client leaves before the answer ends"],
];

/**
 * Shows the meaning of `word` beside the button that asked for it.
 *
 * @param {string} word
 * @param {HTMLElement} button
 */
export function explainTerm(word, button) {
  const [words, meaning] = [...GLOSSARY, ...EVENTS].find(([words]) => words.includes(word)) ?? [
    [word],
    "It has no entry yet.",
  ];
  let shown = document.getElementById("term");
  if (shown === null) {
    shown = h("div", { id: "term", popover: "auto", role: "note" });
    document.body.append(shown);
  }
  shown.replaceChildren(
    h("p", {}, h("strong", {}, words.join(", ")), `: ${meaning}.`),
    h("p", {}, h("a", { href: "#/glossary" }, "All words")),
  );
  find(shown, "a").addEventListener("click", () => shown.hidePopover());
  shown.showPopover();
  const [at, size] = [button.getBoundingClientRect(), shown.getBoundingClientRect()];
  const below = at.bottom + 6 + size.height < innerHeight;
  shown.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
  shown.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
}

export const title = "Glossary";

/** @param {HTMLElement} root */
export async function mount(root) {
  root.append(
    h("h1", {}, title),
    h("dl", { class: "pairs words" }, GLOSSARY.map(entry)),
    h("h2", {}, "Events of guardrails"),
    h("dl", { class: "pairs" }, EVENTS.map(entry)),
  );
  return () => {};
}

/** @param {[string[], string]} of */
function entry([words, meaning]) {
  return h("div", {}, h("dt", {}, words.join(", ")), h("dd", {}, `${meaning}.`));
}
