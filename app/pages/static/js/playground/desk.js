// The playground of a visitor with endpoints: settings, the conversation, and the request as code.

import { CONVERSATION } from "../api.js";
import { h } from "../dom.js";
import { RankCard, TextCard, VectorCard } from "./cards.js";
import { codePanel } from "./code_panel.js";
import { comparison } from "./comparison.js";
import { Kept, messages } from "./conversation.js";
import { Form } from "./form.js";
import { FormError, fieldOf, request } from "./request.js";

const kept = new Kept(CONVERSATION);

/**
 * Fills `root`. Returns a function that ends what runs.
 *
 * @param {HTMLElement} root
 * @param {Context} context
 * @param {string} caller
 * @param {MyEndpoint[]} endpoints
 */
export function desk(root, context, caller, endpoints) {
  const { api, announce, parameters } = context;
  kept.open(caller, api.visits);
  /** @type {AbortController | null} */
  let running = null;
  const log = h("section", { class: "log", "aria-label": "Answers" });
  const compared = h("section", { class: "comparison", "aria-label": "Comparison", hidden: true });
  const code = codePanel(context);
  const form = new Form(
    endpoints,
    { ...kept.typed, ...(parameters.endpoint ? { endpoint: parameters.endpoint } : {}) },
    { changed, run, stop },
  );
  const fresh = h("button", { type: "button", class: "small", on: { click: forget } }, "New conversation");
  const keep = h("input", { type: "checkbox", checked: kept.stores, on: { change: () => store() } });
  const edit = h("button", { type: "button", class: "small", on: { click: editLast } }, "Edit");
  const again = h("button", { type: "button", class: "small", on: { click: () => ask(last(), true) } }, "Regenerate");
  const actions = h("div", { class: "turn-actions" }, edit, again);
  form.composer.append(
    h("div", { class: "kept" }, h("label", { class: "check" }, keep, " Keep in this browser"), fresh),
  );
  root.append(
    h("div", { class: "playground" }, form.settings, h("div", { class: "talk" }, log, compared, form.composer)),
    code.element,
  );
  for (const turn of kept.turns) {
    const cards = turn.answers.map((saved) => {
      const card = new TextCard(
        { deployment: saved.column || null, title: saved.name, weight: null },
        announce,
        saved.plain,
      );
      card.restore(saved);
      return card;
    });
    show(turn, cards);
  }
  changed();
  settle();

  function last() {
    return kept.turns[kept.turns.length - 1];
  }

  /** Remembers what was typed, and shows it as code: the next request, or the last one while nothing is typed. */
  function changed() {
    const values = form.values();
    kept.typed = values;
    const isSent = form.talks && !values.prompt.trim() && kept.turns.length > 0;
    const before = isSent || form.isEditing ? kept.turns.slice(0, -1) : kept.turns;
    const { prompt, image } = isSent ? last() : values;
    code.show({ ...values, prompt, image, history: form.talks ? messages(before, "") : [] }, form.deployments());
  }

  /**
   * Adds a turn to the page.
   *
   * @param {Turn} turn
   * @param {{element: HTMLElement}[]} cards
   */
  function show({ prompt, image }, cards) {
    const sent = h(
      "div",
      { class: "sent", role: "group", "aria-label": "Your message" },
      image === null ? null : h("img", { class: "preview", alt: "The image of the message", src: image }),
      h("p", {}, prompt),
    );
    const element = h(
      "section",
      { class: "turn" },
      sent,
      h(
        "div",
        { class: "answers" },
        cards.map((card) => card.element),
      ),
    );
    log.append(element);
    return element;
  }

  /** Shows what can be done now. */
  function settle() {
    const talks = form.talks && kept.turns.length > 0;
    fresh.disabled = !log.children.length;
    actions.hidden = !talks || running !== null;
    if (talks) log.lastElementChild?.append(actions);
    form.running(running !== null);
  }

  /** Keeps the conversation in the browser, or not. */
  function store() {
    try {
      kept.stores = keep.checked;
    } catch {
      keep.checked = false;
      announce("The conversation is too large for this browser's storage");
    }
  }

  function forget() {
    stop();
    kept.turns = [];
    log.replaceChildren();
    compared.hidden = true;
    keep.checked = kept.stores = false;
    form.complain(null);
    form.edit(null);
    settle();
    announce("The conversation is deleted");
  }

  function editLast() {
    form.edit(last());
  }

  async function run() {
    const values = form.values();
    await ask(values, form.isEditing);
  }

  /**
   * Asks for the answers to one more prompt. `replaces`: the last turn is left out.
   *
   * @param {{prompt: string, image: string | null}} sent
   * @param {boolean} replaces
   */
  async function ask({ prompt, image }, replaces) {
    form.complain(null);
    const { talks } = form;
    const values = form.values();
    const chosen = form.chosen();
    const before = !talks ? [] : replaces ? kept.turns.slice(0, -1) : kept.turns;
    let requests;
    try {
      if (!chosen.length) throw new FormError("by", "Choose a deployment");
      if (!prompt.trim()) throw new FormError("prompt", values.task === "rerank" ? "Write a query" : "Write a prompt");
      requests = chosen.map(({ deployment }) =>
        request({ ...values, prompt, image, deployment, history: messages(before, deployment ?? "") }),
      );
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
      form.complain(error);
      return;
    }
    running?.abort();
    const ended = (running = new AbortController());
    const cards = chosen.map((column) => cardOf(column, values, announce));
    const turn = { prompt, image, answers: [] };
    if (!talks) log.replaceChildren();
    else if (replaces) log.lastElementChild?.remove();
    kept.turns = talks ? [...before, turn] : [];
    compared.hidden = true;
    const element = show(turn, cards);
    if (talks) form.edit(null);
    settle();
    if (before.length) element.scrollIntoView({ block: "start" });
    announce(`Asking ${chosen.map(({ title }) => title).join(" and ")}`);
    await Promise.all(cards.map((card, index) => card.run(api, requests[index], ended.signal)));
    if (running !== ended) return;
    running = null;
    Object.assign(turn, { answers: cards.map((card) => card.saved()) });
    store();
    changed();
    settle();
    announce(cards.map((card) => card.words).join(" "));
    const refused = cards.map((card) => card.refused).find((error) => error?.param);
    const field = refused && fieldOf(refused.param ?? "");
    if (field) form.complain({ field, message: refused.message }, { focus: false });
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

/**
 * @param {Column} column
 * @param {FormValues} values
 * @param {Announce} announce
 */
function cardOf(column, { task, schema }, announce) {
  if (task === "embeddings") return new VectorCard(column, announce);
  if (task === "rerank") return new RankCard(column, announce);
  return new TextCard(column, announce, task === "completions" || schema !== "");
}
