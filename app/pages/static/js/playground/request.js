// The playground's requests: OpenAI's dialect, to the endpoint, with the deployment in a header.

export const DEPLOYMENT_HEADER = "azureml-model-deployment";
export const ALTERNATIVES = 3; // other tokens shown for each one
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
 * The form: `endpoint`, `task`, `deployment` (null: as the traffic decides), `prompt`, `documents`, `system`,
 * `temperature`, `seed`, `maxTokens`, `tools`, `schema` (each as typed), `image` (a data URL or null), `probabilities`
 * (whether each token's is asked for). Raises FormError.
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
  const content = form.image
    ? [
        { type: "text", text: form.prompt },
        { type: "image_url", image_url: { url: form.image } },
      ]
    : form.prompt;
  const messages = [{ role: "user", content }];
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
  const { max_tokens: max_output_tokens, ...sampled } = sampling(form);
  const schema = schemaOf(form);
  return present({
    instructions: form.system || undefined,
    input: form.prompt,
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

/** @param {FormValues} form */
function sampling(form) {
  return {
    max_tokens: number(form, "maxTokens", "Max tokens", { whole: true, least: 1 }),
    temperature: number(form, "temperature", "The temperature", { least: 0 }),
    seed: number(form, "seed", "The seed", { whole: true }),
  };
}

/**
 * @param {FormValues} form
 * @param {"maxTokens" | "temperature" | "seed"} field
 * @param {string} title
 * @param {{whole?: boolean, least?: number}} bounds
 */
function number(form, field, title, { whole = false, least = -Infinity }) {
  const typed = String(form[field] ?? "").trim();
  if (typed === "") return undefined;
  const value = Number(typed);
  if (!Number.isFinite(value) || (whole && !Number.isSafeInteger(value)) || value < least)
    throw new FormError(
      field,
      `${title} is ${whole ? "a whole number" : "a number"}${least > -Infinity ? ` from ${least}` : ""}`,
    );
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
