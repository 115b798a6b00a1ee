// The playground's requests: OpenAI's dialect, to the endpoint, with the deployment in a header, and the conversation
// of which a request is the next turn.

export const DEPLOYMENT_HEADER = "azureml-model-deployment";
const ALTERNATIVES = 3; // other tokens shown for each one
/** @type {Record<string, string>} */
const PATHS = {
  chat: "/v1/chat/completions",
  completions: "/v1/completions",
  responses: "/v1/responses",
  embeddings: "/v1/embeddings",
  rerank: "/v2/rerank",
};

export const TASKS = Object.keys(PATHS);

/** A field of the form that cannot be sent; `field` is its name. */
export class FormError extends Error {
  /**
   * @param {string} field
   * @param {string} message
   */
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/**
 * The request of a filled form: `{method, path, headers, body}`.
 *
 * The form: `endpoint`, `task`, `deployment` (null: as the traffic decides), `prompt`, `documents`, `system`, `stop`,
 * `tools`, `schema` and the names of NUMBERS (each as typed), `image` (a data URL or null), `history` (the messages
 * before the prompt), `probabilities` (whether each token's is asked for). Raises FormError.
 *
 * @param {FormValues} form
 * @returns {ApiRequest}
 */
export function request(form) {
  /** @type {Record<string, string>} */
  const headers = form.deployment ? { [DEPLOYMENT_HEADER]: form.deployment } : {};
  /** @type {Record<string, (form: FormValues) => Record<string, unknown>>} */
  const bodies = { chat, completions, responses, embeddings, rerank };
  return {
    method: "POST",
    path: PATHS[form.task],
    headers,
    body: { model: form.endpoint, ...bodies[form.task](form) },
  };
}

/** @param {FormValues} form */
function chat(form) {
  /** @type {Message[]} */
  const messages = [...(form.history ?? []), asked(form.prompt, form.image)];
  if (form.system) messages.unshift({ role: "system", content: form.system });
  const schema = schemaOf(form);
  return present({
    messages,
    ...sampling(form),
    tools: toolsOf(form),
    response_format: schema && { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
    logprobs: form.probabilities ? true : undefined,
    top_logprobs: form.probabilities ? ALTERNATIVES : undefined,
    ...STREAMED,
  });
}

/** @param {FormValues} form */
function completions(form) {
  return present({
    prompt: form.prompt,
    ...sampling(form),
    logprobs: form.probabilities ? ALTERNATIVES : undefined,
    ...STREAMED,
  });
}

/**
 * Tools and schemas are typed in the format of chats; responses take their inner objects.
 *
 * @param {FormValues} form
 */
function responses(form) {
  const { max_tokens: max_output_tokens, ...sampled } = sampling({ ...form, minP: "" });
  const schema = schemaOf(form);
  return present({
    instructions: form.system || undefined,
    input: form.history?.length ? [...form.history, asked(form.prompt, null)] : form.prompt,
    max_output_tokens,
    ...sampled,
    tools: toolsOf(form)?.map(({ function: inner, ...tool }) => ({ ...tool, ...inner })),
    text: schema && { format: { type: "json_schema", name: "answer", schema, strict: true } },
    stream: true,
  });
}

/** @param {FormValues} form */
function embeddings(form) {
  return { input: lines(form, "prompt", "a text") };
}

/** @param {FormValues} form */
function rerank(form) {
  return { query: form.prompt, documents: lines(form, "documents", "a document") };
}

/**
 * Inputs and documents are typed one a line.
 *
 * @param {FormValues} form
 * @param {"prompt" | "documents"} field
 * @param {string} noun
 */
function lines(form, field, noun) {
  const found = (form[field] ?? "").split("\n").filter((line) => line.trim());
  if (!found.length) throw new FormError(field, `Write ${noun}, or several: one a line`);
  return found;
}

/**
 * @param {FormValues} form
 * @returns {Tool[] | undefined}
 */
function toolsOf(form) {
  const tools = json(form, "tools", "The tools are");
  if (tools !== undefined && !Array.isArray(tools)) throw new FormError("tools", "The tools are a list: […]");
  return tools?.length ? tools : undefined;
}

/**
 * @param {FormValues} form
 * @returns {object | undefined}
 */
function schemaOf(form) {
  const schema = json(form, "schema", "The JSON schema is");
  if (schema !== undefined && (typeof schema !== "object" || schema === null || Array.isArray(schema)))
    throw new FormError("schema", "The JSON schema is an object: {…}");
  return schema;
}

const STREAMED = { stream: true, stream_options: { include_usage: true } };

/**
 * The user's message.
 *
 * @param {string} text
 * @param {Maybe<string>} image a data URL
 * @returns {Message}
 */
function asked(text, image) {
  if (!image) return { role: "user", content: text };
  return {
    role: "user",
    content: [
      { type: "text", text },
      { type: "image_url", image_url: { url: image } },
    ],
  };
}

/** @typedef {{whole?: boolean, least?: number, most?: number}} Bounds */
/**
 * The numbers of the form: the field of the request, what messages call it, and its bounds.
 *
 * @type {Record<NumberName, {field: string, title: string} & Bounds>}
 */
const NUMBERS = {
  maxTokens: { field: "max_tokens", title: "Max tokens", whole: true, least: 1 },
  temperature: { field: "temperature", title: "The temperature", least: 0 },
  topP: { field: "top_p", title: "Top p", least: 0, most: 1 },
  topK: { field: "top_k", title: "Top k", whole: true, least: -1 },
  minP: { field: "min_p", title: "Min p", least: 0, most: 1 },
  seed: { field: "seed", title: "The seed", whole: true },
  frequencyPenalty: { field: "frequency_penalty", title: "The frequency penalty", least: -2, most: 2 },
  presencePenalty: { field: "presence_penalty", title: "The presence penalty", least: -2, most: 2 },
};
const NAMES = /** @type {NumberName[]} */ (Object.keys(NUMBERS));

/**
 * The form's field for the field of a request that an error names, such as `messages[0].content`; null: none.
 *
 * @param {string} param
 * @returns {string | null}
 */
export function fieldOf(param) {
  const [name] = param.split(/[.[]/);
  const number = NAMES.find((own) => NUMBERS[own].field === name);
  return number ?? OTHERS[name] ?? null;
}

/** @type {Record<string, string>} */
const OTHERS = {
  messages: "prompt",
  prompt: "prompt",
  input: "prompt",
  query: "prompt",
  documents: "documents",
  instructions: "system",
  max_output_tokens: "maxTokens",
  stop: "stop",
  tools: "tools",
  response_format: "schema",
  text: "schema",
  logprobs: "probabilities",
  top_logprobs: "probabilities",
  model: "endpoint",
  [DEPLOYMENT_HEADER]: "by",
};

/**
 * @param {FormValues} form
 * @returns {Record<string, unknown>}
 */
function sampling(form) {
  return {
    ...Object.fromEntries(NAMES.map((name) => [NUMBERS[name].field, number(form, name)])),
    stop: stops(form),
  };
}

/**
 * One a line; `\n` in one is a new line.
 *
 * @param {FormValues} form
 */
function stops(form) {
  const found = (form.stop ?? "").split("\n").filter(Boolean);
  return found.length ? found.map((text) => text.replaceAll("\\n", "\n")) : undefined;
}

/**
 * @param {FormValues} form
 * @param {NumberName} name
 */
function number(form, name) {
  const { title, whole = false, least = -Infinity, most = Infinity } = NUMBERS[name];
  const typed = String(form[name] ?? "").trim();
  if (typed === "") return undefined;
  const value = Number(typed);
  if (!Number.isFinite(value) || (whole && !Number.isSafeInteger(value)) || value < least || value > most) {
    const bounds = most < Infinity ? ` from ${least} to ${most}` : least > -Infinity ? ` from ${least}` : "";
    throw new FormError(name, `${title} is ${whole ? "a whole number" : "a number"}${bounds}`);
  }
  return value;
}

/**
 * @param {FormValues} form
 * @param {"tools" | "schema"} field
 * @param {string} title
 * @returns {any}
 */
function json(form, field, title) {
  const typed = (form[field] ?? "").trim();
  if (typed === "") return undefined;
  try {
    return JSON.parse(typed);
  } catch (error) {
    throw new FormError(field, `${title} not valid JSON: ${error.message}`);
  }
}

/** @param {object} fields */
function present(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/**
 * The messages of the turns for `column`, which goes on from its own answers, or from the first one of a turn where it
 * was not asked. A turn without a text is left out.
 *
 * @param {readonly Turn[]} turns
 * @param {string} column
 * @returns {Message[]}
 */
export function messages(turns, column) {
  return turns.flatMap(({ prompt, image, answers }) => {
    const { text = "" } = answers.find((answer) => answer.column === column) ?? answers.find(({ text }) => text) ?? {};
    return text ? [asked(prompt, image), { role: "assistant", content: text }] : [];
  });
}

/** What a visit keeps: in memory, and in the browser's storage if the visitor wants that. */
export class Kept {
  #stored;
  #visit = 0;
  /** @type {string | null} */
  caller = null;
  /** @type {Partial<FormValues>} */
  typed = {};
  /** @type {Turn[]} */
  turns = [];

  /** @param {string} name The item of localStorage. */
  constructor(name) {
    this.#stored = name;
  }

  /**
   * What `caller` has in this visit: another's is forgotten.
   *
   * @param {string} caller
   * @param {number} visit
   */
  open(caller, visit) {
    if (this.caller === caller && this.#visit === visit) return;
    this.#visit = visit;
    Object.assign(this, { caller, typed: {}, turns: [] });
    const stored = JSON.parse(localStorage.getItem(this.#stored) ?? "null");
    if (stored?.caller === caller) Object.assign(this, stored);
    else this.stores = false;
  }

  /** Whether the browser keeps it. */
  get stores() {
    return localStorage.getItem(this.#stored) !== null;
  }

  set stores(is) {
    if (is) this.#store();
    else localStorage.removeItem(this.#stored);
  }

  /** Raises a QuotaExceededError where the browser's storage is too small; then nothing is stored. */
  #store() {
    const { caller, typed, turns } = this;
    try {
      localStorage.setItem(this.#stored, JSON.stringify({ caller, typed, turns }));
    } catch (error) {
      localStorage.removeItem(this.#stored);
      throw error;
    }
  }
}
