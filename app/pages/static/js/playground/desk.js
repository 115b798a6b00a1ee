// The playground of a visitor with endpoints: settings, the conversation, and the request as code.

import { CONVERSATION } from "../api.js";
import { find, h } from "../dom.js";
import { copyButton } from "../parts.js";
import { RankCard, TextCard, VectorCard } from "./cards.js";
import { comparison } from "./comparison.js";
import { Form } from "./form.js";
import { fieldOf, FormError, Kept, messages, request } from "./request.js";
import { snippets } from "./snippets.js";

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

const AS_TRAFFIC_DECIDES = "as the traffic decides";

/**
 * `{element, show(form values, deployments)}`.
 *
 * @param {Context} context
 */
function codePanel({ announce }) {
  let chosen = "curl";
  /** @type {string | null} */
  let deployment = null;
  /** @type {FormValues | null} */
  let values = null;
  /** @type {Usable[]} */
  let deployments = [];
  const code = h("code", {});
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Program", on: { keydown: move } });
  /** @type {HTMLSelectElement} */
  const select = h("select", {
    id: "code-deployment",
    on: { change: () => ((deployment = select.value || null), draw()) },
  });
  const copy = copyButton("Copy", () => [current()?.code ?? "", code], announce);
  const pre = h("pre", { tabindex: 0, role: "tabpanel", "aria-label": "Program" }, code);
  const element = h(
    "section",
    { class: "as-code", "aria-label": "As code" },
    h("h2", {}, "As code"),
    h(
      "p",
      { class: "hint" },
      "The next request, or the last one, for a program. It calls the endpoint: the traffic decides on the " +
        "deployment, unless you choose one. " +
        "The key is read from the environment variable SWITCHYARD_API_KEY.",
    ),
    h(
      "div",
      { class: "where" },
      h("div", { class: "field" }, h("label", { for: "code-deployment" }, "Deployment"), select),
      copy,
    ),
    tabs,
    pre,
  );

  /** The programs, or why there are none. */
  function made() {
    try {
      const programs = values === null ? [] : snippets(request({ ...values, deployment }), location.origin);
      return { programs, problem: "" };
    } catch (error) {
      if (error instanceof FormError) return { programs: [], problem: error.message };
      throw error;
    }
  }

  function draw() {
    const { programs, problem } = made();
    tabs.replaceChildren(
      ...programs.map(({ id, title }) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            id: `code-${id}`,
            "aria-selected": String(id === chosen),
            tabindex: id === chosen ? 0 : -1,
            on: { click: () => choose(id) },
          },
          title,
        ),
      ),
    );
    const program = programs.find((program) => program.id === chosen);
    code.textContent = program ? shortened(program.code) : problem;
    copy.disabled = !program;
    pre.classList.toggle("none", !program);
  }

  /** @param {string} id */
  function choose(id) {
    chosen = id;
    draw();
    find(tabs, `#code-${id}`).focus();
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const all = [...tabs.children];
    const at = all.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    /** @type {Record<string, number>} */
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 };
    if (!(event.key in steps) || !all.length) return;
    event.preventDefault();
    choose(all[steps[event.key] % all.length].id.slice("code-".length));
  }

  function current() {
    return made().programs.find((program) => program.id === chosen);
  }

  return {
    element,
    /**
     * @param {FormValues} nowValues
     * @param {Usable[]} nowDeployments
     */
    show(nowValues, nowDeployments) {
      if (nowDeployments !== deployments) {
        deployments = nowDeployments;
        deployment = null;
        select.replaceChildren(
          h("option", { value: "" }, AS_TRAFFIC_DECIDES),
          ...deployments.map((deployment) => h("option", { value: deployment.deployment }, deployment.deployment)),
        );
      }
      values = nowValues;
      draw();
    },
  };
}

/**
 * An image is thousands of characters: the page shows its ends, and copies all of it.
 *
 * @param {string} code
 */
function shortened(code) {
  return code.replace(
    /(data:image\/[a-z+]+;base64,|"data": ")([A-Za-z0-9+/=]{120,})/g,
    (_, head, data) => `${head}${data.slice(0, 40)}…${data.slice(-8)}`,
  );
}
