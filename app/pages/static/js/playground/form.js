// The playground's form.

import { find, h } from "../dom.js";
import { TASKS } from "./request.js";

const MOST_IMAGE_BYTES = 8 * 1024 * 1024;
/** @type {Record<string, string>} */
const TITLES = {
  chat: "Chat",
  completions: "Text completion",
  responses: "Response",
  embeddings: "Embeddings",
  rerank: "Reranking",
};
/**
 * The tasks that each field belongs to; the prompt belongs to all.
 *
 * @type {Record<string, string[]>}
 */
const FIELDS = {
  documents: ["rerank"],
  system: ["chat", "responses"],
  tools: ["chat", "responses"],
  schema: ["chat", "responses"],
  probabilities: ["chat", "completions"],
};
/** @type {FormValues} */
const EMPTY = {
  endpoint: "",
  task: "",
  prompt: "",
  documents: "",
  system: "",
  temperature: "",
  seed: "",
  maxTokens: "256",
  tools: "",
  schema: "",
  image: null,
  probabilities: false,
  without: [],
};

/** `on`: the handlers `changed()`, `run()` and `stop()`. `endpoints`: from /api/me. */
export class Form {
  #endpoints;
  #image;
  #without = new Set(); // deployments that are left out
  /** @type {Record<string, any>} */
  #fields = {};

  /**
   * @param {MyEndpoint[]} endpoints
   * @param {Partial<FormValues>} values
   * @param {{changed: () => void, run: () => void, stop: () => void}} on
   */
  constructor(endpoints, values, on) {
    this.#endpoints = endpoints;
    /** @type {Record<string, any> & FormValues} */
    const start = { ...EMPTY, ...values };
    this.#image = start.image;
    this.#without = new Set(start.without);
    const change = { input: on.changed };
    /**
     * @param {string} name
     * @param {(props: Props) => HTMLElement} make
     * @param {string} label
     * @param {Props} [props]
     */
    const field = (name, make, label, props = {}) => {
      const element = make({ id: `playground-${name}`, name, value: start[name], on: change, ...props });
      this.#fields[name] = element;
      return h("div", { class: `field field-${name}` }, h("label", { for: element.id }, label), element);
    };
    /** @param {Props} props */
    const input = (props) => h("input", { autocomplete: "off", ...props });
    /** @param {Props} props */
    const area = (props) => h("textarea", { spellcheck: "false", ...props });
    const refresh = { change: () => (this.#refresh(), on.changed()) };

    this.#fields.endpoint = h(
      "select",
      { id: "playground-endpoint", on: refresh },
      endpoints.map((endpoint) =>
        h("option", { value: endpoint.endpoint, selected: endpoint.endpoint === start.endpoint }, endpoint.endpoint),
      ),
    );
    this.#fields.task = h("select", { id: "playground-task", on: refresh });
    this.deploymentBoxes = h("fieldset", { class: "deployments" });
    this.problem = h("p", { class: "problem", role: "alert", id: "playground-problem", hidden: true });
    this.runButton = h("button", { type: "submit", class: "primary" }, "Run");
    this.stopButton = h("button", { type: "button", disabled: true, on: { click: on.stop } }, "Stop");
    this.imageField = this.#imageField(on);
    this.options = h(
      "details",
      {
        class: "options",
        open: ["system", "tools", "schema", "temperature", "seed", "probabilities"].some((name) => start[name]),
      },
      h("summary", {}, "Options"),
      h(
        "div",
        { class: "option-grid" },
        field("system", area, "System prompt", { rows: 2 }),
        h(
          "div",
          { class: "numbers" },
          field("temperature", input, "Temperature", { inputmode: "decimal", placeholder: "model's own" }),
          field("seed", input, "Seed", { inputmode: "numeric", placeholder: "none" }),
          field("maxTokens", input, "Max tokens", { inputmode: "numeric", placeholder: "no limit" }),
        ),
        field("tools", area, "Tools (JSON list)", {
          rows: 3,
          placeholder: '[{"type": "function", "function": {"name": "…", "parameters": {…}}}]',
          class: "mono",
        }),
        field("schema", area, "JSON schema of the answer", {
          rows: 3,
          placeholder: '{"type": "object", "properties": {…}}',
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
    this.element = h(
      "form",
      {
        class: "playground-form",
        novalidate: true,
        on: {
          submit: (event) => (event.preventDefault(), on.run()),
          keydown: (event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) (event.preventDefault(), on.run());
            else if (event.key === "Escape") on.stop();
          },
        },
      },
      h(
        "div",
        { class: "where" },
        h("div", { class: "field" }, h("label", { for: "playground-endpoint" }, "Endpoint"), this.#fields.endpoint),
        h("div", { class: "field" }, h("label", { for: "playground-task" }, "Task"), this.#fields.task),
        this.deploymentBoxes,
      ),
      field("prompt", area, "Prompt", { rows: 4, spellcheck: "true", "aria-describedby": "playground-problem" }),
      h("p", { class: "hint lines-hint", hidden: true }, "One input a line."),
      field("documents", area, "Documents", { rows: 5, spellcheck: "true", placeholder: "One document a line" }),
      this.imageField,
      this.options,
      this.problem,
      h(
        "div",
        { class: "actions" },
        this.runButton,
        this.stopButton,
        h("span", { class: "hint keys-hint" }, "Ctrl + Enter runs, Escape stops"),
      ),
    );
    this.changed = on.changed;
    this.#refresh(start.task);
  }

  /** The chosen endpoint's deployments. */
  deployments() {
    return this.#endpoint.deployments;
  }

  /** The deployments that get the prompt. */
  chosen() {
    return this.deployments().filter((usable) => !this.#without.has(usable.deployment));
  }

  /**
   * The values that `request` of request.js takes, without a deployment.
   *
   * @returns {FormValues}
   */
  values() {
    /** @param {string} name */
    const text = (name) => this.#fields[name].value.toWellFormed();
    const chat = this.#fields.task.value === "chat";
    return {
      endpoint: this.#fields.endpoint.value,
      task: this.#fields.task.value,
      image: chat && this.#takesImages ? this.#image : null,
      prompt: text("prompt"),
      documents: text("documents"),
      system: text("system"),
      temperature: text("temperature"),
      seed: text("seed"),
      maxTokens: text("maxTokens"),
      tools: text("tools"),
      schema: text("schema"),
      probabilities: this.#fields.probabilities.checked,
      without: [...this.#without],
    };
  }

  /**
   * Shows a FormError and focuses its field; null clears it.
   *
   * @param {{field: string, message: string} | null} error
   */
  complain(error) {
    this.problem.hidden = error === null;
    this.problem.textContent = error?.message ?? "";
    for (const [name, field] of Object.entries(this.#fields))
      field.toggleAttribute("aria-invalid", error?.field === name);
    const field = this.#fields[error?.field ?? ""];
    if (field && this.options.contains(field)) this.options.open = true;
    field?.focus();
  }

  /** @param {boolean} is */
  running(is) {
    this.stopButton.disabled = !is;
    this.runButton.textContent = is ? "Run again" : "Run";
  }

  get #endpoint() {
    return this.#endpoints.find((endpoint) => endpoint.endpoint === this.#fields.endpoint.value) ?? this.#endpoints[0];
  }

  get #takesImages() {
    return this.deployments().some((usable) => usable.images);
  }

  /** @param {string} [task] */
  #refresh(task = this.#fields.task.value) {
    const tasks = TASKS.filter((task) => this.#endpoint.tasks.includes(task));
    this.#fields.task.replaceChildren(
      ...tasks.map((name) => h("option", { value: name, selected: name === task }, TITLES[name])),
    );
    const now = this.#fields.task.value;
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
    this.options.hidden = ["embeddings", "rerank"].includes(now);
    find(this.element, ".lines-hint").hidden = now !== "embeddings";
    find(this.element, ".field-prompt label").textContent = now === "rerank" ? "Query" : "Prompt";
    this.imageField.hidden = now !== "chat" || !this.#takesImages;
    for (const [name, tasks] of Object.entries(FIELDS)) this.#fields[name].parentElement.hidden = !tasks.includes(now);
  }

  /**
   * @param {string} deployment
   * @param {boolean} is
   */
  #choose(deployment, is) {
    if (is) this.#without.delete(deployment);
    else this.#without.add(deployment);
    this.changed();
  }

  /** @param {{changed: () => void}} on */
  #imageField(on) {
    const preview = h("img", { class: "preview", alt: "The chosen image", hidden: true });
    const remove = h("button", { type: "button", class: "quiet", hidden: true }, "Remove");
    const file = h("input", {
      type: "file",
      id: "playground-image",
      accept: "image/png,image/jpeg,image/webp,image/gif",
    });
    /** @param {string | null} url */
    const show = (url) => {
      this.#image = url;
      if (url) preview.src = url;
      preview.hidden = remove.hidden = !url;
      on.changed();
    };
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
    });
    remove.addEventListener("click", () => {
      file.value = "";
      show(null);
      file.focus();
    });
    if (this.#image) preview.src = this.#image;
    preview.hidden = remove.hidden = !this.#image;
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
