// What the playground sends: OpenAI's dialect, to the endpoint, with the deployment in a header.

export const DEPLOYMENT_HEADER = "azureml-model-deployment";
export const ALTERNATIVES = 3; // other tokens shown beside each one
const PATHS = { chat: "/v1/chat/completions", completions: "/v1/completions", embeddings: "/v1/embeddings" };

/** What a task's form can be filled with; the others are served, but not shown in the playground. */
export const TASKS = Object.keys(PATHS);

/** A field of the form that cannot be sent; `field` is its name. */
export class FormError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/**
 * The request of a filled form: `{method, path, headers, body}`.
 *
 * The form: `endpoint`, `task`, `deployment` (null: as the traffic decides), `prompt`, `system`, `temperature`, `seed`,
 * `maxTokens`, `tools`, `schema` (each as typed), `image` (a data URL or null), `probabilities` (whether each token's
 * is asked for). Raises FormError.
 */
export function request(form) {
  const headers = form.deployment ? { [DEPLOYMENT_HEADER]: form.deployment } : {};
  const bodies = { chat, completions, embeddings };
  return { method: "POST", path: PATHS[form.task], headers, body: { model: form.endpoint, ...bodies[form.task](form) } };
}

function chat(form) {
  const content = form.image
    ? [{ type: "text", text: form.prompt }, { type: "image_url", image_url: { url: form.image } }]
    : form.prompt;
  const messages = [{ role: "user", content }];
  if (form.system) messages.unshift({ role: "system", content: form.system });
  const tools = json(form, "tools", "The tools are");
  const schema = json(form, "schema", "The JSON schema is");
  if (tools !== undefined && !Array.isArray(tools)) throw new FormError("tools", "The tools are a list: […]");
  if (schema !== undefined && (typeof schema !== "object" || schema === null || Array.isArray(schema)))
    throw new FormError("schema", "The JSON schema is an object: {…}");
  return present({
    messages,
    ...sampling(form),
    tools: tools?.length ? tools : undefined,
    response_format: schema && { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
    logprobs: form.probabilities ? true : undefined,
    top_logprobs: form.probabilities ? ALTERNATIVES : undefined,
    ...STREAMED,
  });
}

function completions(form) {
  return present({ prompt: form.prompt, ...sampling(form), logprobs: form.probabilities ? ALTERNATIVES : undefined, ...STREAMED });
}

function embeddings(form) {
  return { input: inputs(form.prompt) };
}

/** Embeddings are asked for line by line. */
export function inputs(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new FormError("prompt", "Write a text, or several: one a line");
  return lines;
}

const STREAMED = { stream: true, stream_options: { include_usage: true } };

function sampling(form) {
  return {
    max_tokens: number(form, "maxTokens", "Max tokens", { whole: true, least: 1 }),
    temperature: number(form, "temperature", "The temperature", { least: 0 }),
    seed: number(form, "seed", "The seed", { whole: true }),
  };
}

function number(form, field, title, { whole = false, least = -Infinity }) {
  const typed = String(form[field] ?? "").trim();
  if (typed === "") return undefined;
  const value = Number(typed);
  if (!Number.isFinite(value) || (whole && !Number.isSafeInteger(value)) || value < least)
    throw new FormError(field, `${title} is ${whole ? "a whole number" : "a number"}${least > -Infinity ? ` from ${least}` : ""}`);
  return value;
}

function json(form, field, title) {
  const typed = (form[field] ?? "").trim();
  if (typed === "") return undefined;
  try {
    return JSON.parse(typed);
  } catch (error) {
    throw new FormError(field, `${title} not valid JSON: ${error.message}`);
  }
}

function present(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
