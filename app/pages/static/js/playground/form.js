// The playground's settings, and the box in which a prompt is written.

import { find, h } from "../dom.js";
import { term } from "../parts.js";
import { TASKS } from "./request.js";

const MOST_IMAGE_BYTES = 8 * 1024 * 1024;
const WIDE = "(min-width: 64rem)";
/** @type {Record<string, string>} */
const TITLES = {
  chat: "Chat",
  completions: "Text completion",
  responses: "Response",
  embeddings: "Embeddings",
  rerank: "Reranking",
};
/** The tasks in which a prompt goes on from the messages before it. */
const TALKS = ["chat", "responses"];
const GENERATES = ["chat", "completions", "responses"];
/**
 * The tasks that each field belongs to; those that are not here belong to all.
 *
 * @type {Record<string, string[]>}
 */
const FIELDS = {
  documents: ["rerank"],
  system: TALKS,
  tools: TALKS,
  schema: TALKS,
  minP: ["chat", "completions"],
  probabilities: ["chat", "completions"],
};
/** @type {[NumberName, string, string, string][]} */
const NUMBERS = [
  ["temperature", "Temperature", "decimal", "model's own"],
  ["topP", "Top P", "decimal", "model's own"],
  ["topK", "Top K", "numeric", "model's own"],
  ["minP", "Min P", "decimal", "0"],
  ["maxTokens", "Max tokens", "numeric", "no limit"],
  ["seed", "Seed", "numeric", "none"],
  ["frequencyPenalty", "Frequency penalty", "decimal", "0"],
  ["presencePenalty", "Presence penalty", "decimal", "0"],
];
const ALL = "*";
/** @type {FormValues} */
const EMPTY = {
  endpoint: "",
  task: "",
  prompt: "",
  documents: "",
  system: "",
  temperature: "",
  topP: "",
  topK: "",
  minP: "",
  maxTokens: "256",
  seed: "",
  frequencyPenalty: "",
  presencePenalty: "",
  stop: "",
  tools: "",
  schema: "",
  image: null,
  probabilities: false,
  by: ALL,
  without: [],
};
const PARAMETERS = /** @type {(keyof FormValues)[]} */ ([
  ...NUMBERS.map(([name]) => name).filter((name) => name !== "maxTokens"),
  ...["system", "stop", "tools", "schema", "probabilities"],
]);

/** `on`: the handlers `changed()`, `run()` and `stop()`. `endpoints`: from /api/me. */
export class Form {
  #endpoints;
  #on;
  /** @type {string | null} */
  #image;
  /** @type {Set<string>} */
  #without; // deployments that are left out
  /** @type {Record<string, any>} */
  #fields = {};

  /**
   * @param {MyEndpoint[]} endpoints
   * @param {Partial<FormValues>} values
   * @param {{changed: () => void, run: () => void, stop: () => void}} on
   */
  constructor(endpoints, values, on) {
    this.#endpoints = endpoints;
    this.#on = on;
    /** @type {Record<string, any> & FormValues} */
    const start = { ...EMPTY, ...values };
    this.#image = start.image;
    this.#without = new Set(start.without);
    /**
     * @param {string} name
     * @param {(props: Props) => HTMLElement} make
     * @param {string} label
     * @param {Props} [props]
     */
    const field = (name, make, label, props = {}) => {
      const element = make({ id: `playground-${name}`, name, value: start[name], on: { input: on.changed }, ...props });
      this.#fields[name] = element;
      return h("div", { class: `field field-${name}` }, h("label", { for: element.id }, label), element);
    };
    /** @param {Props} props */
    const input = (props) => h("input", { autocomplete: "off", ...props });
    /** @param {Props} props */
    const area = (props) => h("textarea", { spellcheck: "false", ...props });
    /** @param {Props} props */
    const select = (props) => h("select", { ...props, on: { change: () => (this.#refresh(), on.changed()) } });

    this.problem = h("p", { class: "problem", role: "alert", id: "playground-problem", hidden: true });
    this.deploymentBoxes = h("fieldset", { class: "deployments" });
    this.counted = h("p", { class: "hint" });
    this.options = h(
      "details",
      { class: "options", open: matchMedia(WIDE).matches || PARAMETERS.some((name) => start[name]) },
      h("summary", {}, "Options"),
      h(
        "div",
        { class: "option-grid" },
        field("system", area, "System prompt", { rows: 2, spellcheck: "true" }),
        h(
          "div",
          { class: "numbers" },
          NUMBERS.map(([name, label, inputmode, placeholder]) =>
            field(name, input, label, { inputmode, placeholder, maxlength: 30 }),
          ),
        ),
        field("stop", area, "Stop sequences", { rows: 1, placeholder: "One a line; \\n is a new line", class: "mono" }),
        field("schema", area, "JSON schema of the answer", {
          rows: 2,
          placeholder: '{"type": "object", "properties": {…}}',
          class: "mono",
        }),
        field("tools", area, "Tools (JSON list)", {
          rows: 2,
          placeholder: '[{"type": "function", "function": {"name": "…", "parameters": {…}}}]',
          class: "mono",
        }),
        h(
          "label",
          { class: "check field-probabilities" },
          (this.#fields.probabilities = h("input", {
            type: "checkbox",
            checked: start.probabilities,
            on: { change: on.changed },
          })),
          " Ask for each token's probability",
        ),
      ),
    );
    this.settings = h(
      "section",
      { class: "settings", "aria-label": "Settings" },
      h(
        "div",
        { class: "where" },
        field("endpoint", select, "Endpoint"),
        field("task", select, "Task"),
        field("by", select, "Answered by"),
      ),
      this.deploymentBoxes,
      this.counted,
      this.options,
    );
    this.runButton = h("button", { type: "submit", class: "primary" }, "Run");
    this.stopButton = h("button", { type: "button", disabled: true, on: { click: on.stop } }, "Stop");
    this.cancelButton = h("button", { type: "button", hidden: true, on: { click: () => this.edit(null) } }, "Cancel");
    this.imageField = this.#imageField();
    this.composer = h(
      "form",
      { class: "composer", novalidate: true, on: { submit: (event) => (event.preventDefault(), on.run()) } },
      field("prompt", area, "Prompt", { rows: 2, spellcheck: "true" }),
      h("p", { class: "hint lines-hint", hidden: true }, "One input a line."),
      field("documents", area, "Documents", { rows: 4, spellcheck: "true", placeholder: "One document a line" }),
      this.imageField,
      h(
        "div",
        { class: "actions" },
        this.runButton,
        this.stopButton,
        this.cancelButton,
        h("span", { class: "hint keys-hint" }),
      ),
    );
    for (const part of [this.settings, this.composer]) part.addEventListener("keydown", (event) => this.#key(event));
    this.#fields.endpoint.append(
      ...endpoints.map(({ endpoint }) =>
        h("option", { value: endpoint, selected: endpoint === start.endpoint }, endpoint),
      ),
    );
    this.#refresh(start.task, start.by);
  }

  /** The chosen endpoint's deployments. */
  deployments() {
    return this.#endpoint.deployments;
  }

  /**
   * Those that get the prompt.
   *
   * @returns {Column[]}
   */
  chosen() {
    const { by } = this.#fields;
    if (by.value === "") return [{ deployment: null, title: this.#endpoint.endpoint, weight: null }];
    const named = this.deployments().filter(({ deployment }) =>
      by.value === ALL ? !this.#without.has(deployment) : deployment === by.value,
    );
    return named.map(({ deployment, weight }) => ({ deployment, title: deployment, weight }));
  }

  /** Whether a prompt goes on from the messages before it. */
  get talks() {
    return TALKS.includes(this.#fields.task.value);
  }

  /**
   * The values that `request` of request.js takes, without a deployment.
   *
   * @returns {FormValues}
   */
  values() {
    const { probabilities, ...others } = this.#fields;
    const typed = Object.fromEntries(Object.entries(others).map(([name, field]) => [name, field.value.toWellFormed()]));
    return {
      ...EMPTY,
      ...typed,
      image: this.imageField.hidden ? null : this.#image,
      probabilities: probabilities.checked,
      without: [...this.#without],
    };
  }

  /**
   * Shows a problem next to its field; null clears it.
   *
   * @param {{field: string, message: string} | null} error
   * @param {{focus?: boolean}} [options]
   */
  complain(error, { focus = true } = {}) {
    this.problem.hidden = error === null;
    this.problem.textContent = error?.message ?? "";
    for (const [name, field] of Object.entries(this.#fields)) {
      field.toggleAttribute("aria-invalid", error?.field === name);
      if (error?.field === name) field.setAttribute("aria-describedby", this.problem.id);
      else field.removeAttribute("aria-describedby");
    }
    const field = this.#fields[error?.field ?? ""];
    if (field && this.options.contains(field)) this.options.open = true;
    (field?.closest(".field, .check") ?? this.#fields.prompt.parentElement).append(this.problem);
    if (focus) field?.focus();
  }

  /**
   * Puts a sent prompt into the box, to change it; null: the box is for the next one.
   *
   * @param {{prompt: string, image: string | null} | null} sent
   */
  edit(sent) {
    this.cancelButton.hidden = sent === null;
    this.#fields.prompt.value = sent?.prompt ?? "";
    this.#showImage(sent?.image ?? null);
    this.#fields.prompt.focus();
    this.#on.changed();
  }

  get isEditing() {
    return !this.cancelButton.hidden;
  }

  /** @param {boolean} is */
  running(is) {
    this.stopButton.disabled = !is;
    this.runButton.textContent = this.talks ? "Send" : is ? "Run again" : "Run";
    this.runButton.disabled = is && this.talks;
  }

  get #endpoint() {
    return this.#endpoints.find((endpoint) => endpoint.endpoint === this.#fields.endpoint.value) ?? this.#endpoints[0];
  }

  /** @param {string} name */
  #belongs(name) {
    return FIELDS[name]?.includes(this.#fields.task.value) ?? true;
  }

  /**
   * Shows what the endpoint and the task have.
   *
   * @param {string} [task]
   * @param {string} [by]
   */
  #refresh(task = this.#fields.task.value, by = this.#fields.by.value) {
    const tasks = TASKS.filter((task) => this.#endpoint.tasks.includes(task));
    this.#fields.task.replaceChildren(
      ...tasks.map((name) => h("option", { value: name, selected: name === task }, TITLES[name])),
    );
    const several = this.deployments().length > 1;
    /** @type {[string, string][]} */
    const answerers = [
      ...(several ? /** @type {[string, string][]} */ ([[ALL, "deployments, side by side"]]) : []),
      ["", "the traffic's choice"],
      ...this.deployments().map(
        ({ deployment, weight }) => /** @type {[string, string]} */ ([deployment, `${deployment} (${weight}\u00a0%)`]),
      ),
    ];
    this.#fields.by.replaceChildren(
      ...answerers.map(([value, label]) => h("option", { value, selected: value === by }, label)),
    );
    const now = this.#fields.by.value;
    this.deploymentBoxes.hidden = now !== ALL;
    this.deploymentBoxes.replaceChildren(
      h("legend", {}, "Deployments"),
      ...this.deployments().map(({ deployment, weight }) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: !this.#without.has(deployment),
            on: { change: (event) => this.#choose(deployment, event.target.checked) },
          }),
          ` ${deployment} `,
          h("span", { class: "hint" }, `${weight}\u00a0%`),
        ),
      ),
    );
    this.counted.replaceChildren(
      ...(now === ""
        ? ["As for every client, the ", term("split"), " decides, and a running experiment counts the requests."]
        : ["No experiment counts requests that name a ", term("deployment"), " as these do."]),
    );
    const { value } = this.#fields.task;
    this.options.hidden = !GENERATES.includes(value);
    find(this.composer, ".lines-hint").hidden = value !== "embeddings";
    find(this.composer, ".field-prompt label").textContent =
      value === "rerank" ? "Query" : this.talks ? "Message" : "Prompt";
    find(this.composer, ".keys-hint").textContent = this.talks
      ? "Enter sends, Shift + Enter starts a line, Escape stops"
      : "Ctrl + Enter runs, Escape stops";
    this.imageField.hidden = value !== "chat" || !this.deployments().some((usable) => usable.images);
    for (const name of Object.keys(FIELDS)) this.#fields[name].closest(".field, .check").hidden = !this.#belongs(name);
    this.running(!this.stopButton.disabled);
  }

  /**
   * @param {string} deployment
   * @param {boolean} is
   */
  #choose(deployment, is) {
    if (is) this.#without.delete(deployment);
    else this.#without.add(deployment);
    this.#on.changed();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const held = event.ctrlKey || event.metaKey;
    const sends = this.talks && event.target === this.#fields.prompt && !event.shiftKey && !event.isComposing;
    if (event.key === "Enter" && (held || sends)) {
      event.preventDefault();
      if (!this.runButton.disabled) this.#on.run();
    } else if (event.key === "Escape") this.#on.stop();
  }

  /** @type {(url: string | null) => void} */
  #showImage = () => {};

  #imageField() {
    const preview = h("img", { class: "preview", alt: "The chosen image" });
    const remove = h("button", { type: "button", class: "quiet" }, "Remove");
    const file = h("input", {
      type: "file",
      id: "playground-image",
      accept: "image/png,image/jpeg,image/webp,image/gif",
    });
    /** @param {string | null} url */
    const show = (url) => {
      this.#image = url;
      if (url) preview.src = url;
      else file.value = "";
      preview.hidden = remove.hidden = !url;
    };
    this.#showImage = show;
    show(this.#image);
    file.addEventListener("change", async () => {
      const [chosen] = file.files ?? [];
      this.complain(null);
      if (!chosen) return;
      if (chosen.size > MOST_IMAGE_BYTES) {
        file.value = "";
        this.complain({ field: "image", message: "The image is larger than 8 MB" });
        return;
      }
      show(await dataUrl(chosen));
      this.#on.changed();
    });
    remove.addEventListener("click", () => {
      show(null);
      file.focus();
      this.#on.changed();
    });
    return h(
      "div",
      { class: "field field-image" },
      h("label", { for: file.id }, "Image"),
      h("div", { class: "image-row" }, file, preview, remove),
    );
  }
}

/**
 * @param {File} file
 * @returns {Promise<string>}
 */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(String(reader.result)));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
