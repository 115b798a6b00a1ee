// One prompt to all deployments of an endpoint, side by side.

import { h } from "../dom.js";
import { RankCard, TextCard, VectorCard } from "../playground/cards.js";
import { codePanel } from "../playground/code_panel.js";
import { comparison } from "../playground/comparison.js";
import { Form } from "../playground/form.js";
import { FormError, TASKS, request } from "../playground/request.js";

export const title = "Playground";

/** @type {Record<string, typeof VectorCard | typeof RankCard>} */
const KINDS = { embeddings: VectorCard, rerank: RankCard };

// Keeps what was typed while other pages are open, in memory only.
/** @type {Partial<FormValues>} */
let typed = {};

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, context) {
  const { api, announce } = context;
  root.append(
    h("h1", {}, title),
    h(
      "p",
      { class: "hint" },
      "One prompt to every deployment of an endpoint. Requests name their deployment, so no experiment counts them.",
    ),
  );
  /** @type {Me} */
  const me = await api.get("/api/me");
  const endpoints = me.endpoints.filter((endpoint) => endpoint.tasks.some((task) => TASKS.includes(task)));
  if (!endpoints.length) {
    const what = me.endpoints.length
      ? "Your endpoints have no task that the playground shows."
      : "You have access to no endpoint on this server.";
    root.append(h("p", { class: "empty" }, what));
    return () => {};
  }
  const results = h("section", { class: "answers", "aria-label": "Answers" });
  const compared = h("section", { class: "comparison", "aria-label": "Comparison", hidden: true });
  const code = codePanel(context);
  const form = new Form(
    endpoints,
    { ...typed, ...(context.parameters.endpoint ? { endpoint: context.parameters.endpoint } : {}) },
    { changed, run, stop },
  );
  root.append(form.element, results, compared, code.element);
  /** @type {AbortController | null} */
  let running = null;
  changed();

  function changed() {
    const values = form.values();
    typed = values;
    code.show(values, form.deployments());
  }

  async function run() {
    form.complain(null);
    const values = form.values();
    const chosen = form.chosen();
    let requests;
    try {
      if (!chosen.length) throw new FormError("deployments", "Choose a deployment");
      if (!values.prompt.trim())
        throw new FormError("prompt", values.task === "rerank" ? "Write a query" : "Write a prompt");
      requests = chosen.map((deployment) => request({ ...values, deployment: deployment.deployment }));
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
      form.complain(error);
      return;
    }
    running?.abort();
    const ended = (running = new AbortController());
    const Kind = KINDS[values.task] ?? TextCard;
    const cards = chosen.map((deployment) => new Kind(deployment));
    compared.hidden = true;
    results.replaceChildren(...cards.map((card) => card.element));
    form.running(true);
    announce(`Asking ${chosen.map((usable) => usable.deployment).join(" and ")}`);
    await Promise.all(cards.map((card, index) => card.run(api, requests[index], ended.signal)));
    if (running !== ended) return;
    running = null;
    form.running(false);
    announce(cards.map((card) => card.words).join(" "));
    const answered = cards.filter((card) => card.text);
    if (answered.length > 1) {
      compared.replaceChildren(...comparison(answered.map((card) => ({ name: card.name, text: card.text }))));
      compared.hidden = false;
    }
  }

  function stop() {
    running?.abort();
  }

  return stop;
}
