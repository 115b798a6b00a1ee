// A request of the playground as programs: curl, JavaScript, and Python for each SDK whose dialect this server speaks.
//
// What a caller typed is data: it appears only in string literals, quoted for the language. The key is never part of a
// program: it comes from the environment.

import { DEPLOYMENT_HEADER } from "./request.js";

const KEY = 'os.environ.get("SWITCHYARD_API_KEY", "none")';
const DEFAULT_MAX_TOKENS = 1024;

/**
 * The programs for `request` (of request.js) against the server at `url`:
 * `[{id, title, language, code, left}]`, where `left` are the request's fields that the SDK cannot send. A comment of
 * the program names them.
 *
 * @param {ApiRequest} request
 * @param {string} url
 * @returns {Snippet[]}
 */
export function snippets(request, url) {
  const task = TASKS[request.path];
  const javascript = NODE[task]?.(request, url) ?? none("The SDK of OpenAI", "//", task);
  const [openai, ...others] = PYTHON.filter((sdk) => sdk[task] || !sdk.apart).map(({ id, title, ...tasks }) => {
    const made = tasks[task]?.(request, url) ?? none(`The SDK of ${title}`, "#", task);
    return { id, title, language: "python", ...made };
  });
  return [
    { id: "curl", title: "curl", language: "sh", ...curl(request, url) },
    openai,
    { id: "node", title: "Node.js", language: "javascript", ...javascript },
    ...others,
  ];
}

/**
 * @param {string} sdk
 * @param {string} comment
 * @param {string} task
 * @returns {Program}
 */
function none(sdk, comment, task) {
  return { code: `${comment} ${sdk} has no ${NOUNS[task]}.\n`, left: ["*"] };
}

/** @type {Record<string, string>} */
const NOUNS = {
  chat: "chat",
  completions: "text completions",
  responses: "responses",
  embeddings: "embeddings",
  rerank: "reranking",
};

/** @type {Record<string, string>} */
const TASKS = {
  "/v1/chat/completions": "chat",
  "/v1/completions": "completions",
  "/v1/responses": "responses",
  "/v1/embeddings": "embeddings",
  "/v2/rerank": "rerank",
};

/**
 * A program: its imports, a note on fields that are left out, and its lines.
 *
 * @param {string[]} imports
 * @param {string[]} lines
 * @param {{left?: string[], notes?: string[]}} [about]
 * @returns {Program}
 */
function program(imports, lines, { left = [], notes = [] } = {}) {
  const comments = [
    ...(left.length ? [`# This SDK cannot send: ${left.join(", ")}.`] : []),
    ...notes.map((note) => `# ${note}`),
  ];
  return { code: `${[...imports, "", ...comments, ...lines].join("\n")}\n`, left };
}

// --- Literals: what was typed is data, and stays data ---

// Invisible characters, and those that change the writing direction, are escaped.
const INVISIBLE = /(?! )[\p{C}\p{Z}]/gu;
/**
 * @param {number} code
 * @param {number} digits
 */
const hex = (code, digits) => code.toString(16).padStart(digits, "0");
/** @param {string} character */
const utf16 = (character) =>
  [...Array(character.length).keys()].map((i) => `\\u${hex(character.charCodeAt(i), 4)}`).join("");

/**
 * A JSON text, with escapes where characters need them.
 *
 * @param {unknown} value
 * @param {number} [indent]
 */
export function jsonText(value, indent = 0) {
  return JSON.stringify(value, null, indent).replace(INVISIBLE, (character) =>
    character === "\n" && indent ? character : utf16(character),
  );
}

/**
 * A word of a POSIX shell.
 *
 * @param {string} text
 */
export function shellWord(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * A string literal of Python: JSON's, but for characters beyond 16 bits.
 *
 * @param {string} text
 */
function pythonString(text) {
  return JSON.stringify(text).replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code > 0xffff ? `\\U${hex(code, 8)}` : `\\u${hex(code, 4)}`;
  });
}

/** Code that is put into a literal unchanged. */
class Code {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }
}

/** `name(arguments)`: positional arguments first, then named ones. */
class Call extends Code {
  /**
   * @param {string} name
   * @param {unknown[]} positional
   * @param {Record<string, unknown>} named
   */
  constructor(name, positional, named) {
    super("");
    this.name = name;
    this.positional = positional;
    this.named = named;
  }
}

const WIDTH = 88;

/**
 * A literal of Python, over several lines where one is too long.
 *
 * @param {unknown} value
 * @param {string} [indent]
 * @returns {string}
 */
export function python(value, indent = "") {
  const line = flat(value);
  if (indent.length + line.length <= WIDTH) return line;
  const inner = `${indent}    `;
  /**
   * @param {string} open
   * @param {string[]} items
   * @param {string} close
   */
  const lines = (open, items, close) =>
    `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
  if (value instanceof Call)
    return lines(
      `${value.name}(`,
      [
        ...value.positional.map((argument) => python(argument, inner)),
        ...named(value.named, (argument) => python(argument, inner)),
      ],
      ")",
    );
  if (value instanceof Code) return value.text;
  if (Array.isArray(value))
    return value.length
      ? lines(
          "[",
          value.map((item) => python(item, inner)),
          "]",
        )
      : "[]";
  if (value !== null && typeof value === "object")
    return lines(
      "{",
      Object.entries(value).map(([key, item]) => `${pythonString(key)}: ${python(item, inner)}`),
      "}",
    );
  return line;
}

/**
 * @param {unknown} value
 * @returns {string}
 */
function flat(value) {
  if (value instanceof Call)
    return `${value.name}(${[...value.positional.map(flat), ...named(value.named, flat)].join(", ")})`;
  if (value instanceof Code) return value.text;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return pythonString(value);
  if (Array.isArray(value)) return `[${value.map(flat).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, item]) => `${pythonString(key)}: ${flat(item)}`)
      .join(", ")}}`;
  return String(value);
}

/**
 * @param {Record<string, unknown>} values
 * @param {(value: unknown) => string} literal
 */
function named(values, literal) {
  return Object.entries(values)
    .filter(([, item]) => item !== undefined)
    .map(([name, item]) => `${name}=${literal(item)}`);
}

/**
 * `name(positional, named)` as a literal.
 *
 * @param {string} name
 * @param {Record<string, unknown>} named
 * @param {...unknown} positional
 */
const call = (name, named, ...positional) => new Call(name, positional, named);

// --- curl ---

/**
 * @param {ApiRequest} request
 * @param {string} url
 * @returns {Program}
 */
function curl(request, url) {
  const headers = [
    "Content-Type: application/json",
    ...Object.entries(request.headers).map(([name, value]) => `${name}: ${value}`),
  ];
  const lines = [
    `curl --no-buffer ${shellWord(url + request.path)}`,
    '  -H "Authorization: Bearer $SWITCHYARD_API_KEY"',
    ...headers.map((header) => `  -H ${shellWord(header)}`),
    `  --data-raw ${shellWord(jsonText(request.body, 2))}`,
  ];
  return { code: `${lines.join(" \\\n")}\n`, left: [] };
}

// --- Python ---

/** @param {ApiRequest} request */
const deploymentOf = (request) => request.headers[DEPLOYMENT_HEADER];
/** @param {ApiRequest} request */
const headersOf = (request) => (Object.keys(request.headers).length ? request.headers : undefined);
/**
 * @param {Record<string, any>} body
 * @param {...string} names
 * @returns {Record<string, any>}
 */
const without = (body, ...names) => Object.fromEntries(Object.entries(body).filter(([name]) => !names.includes(name)));
/**
 * @param {Record<string, any>} body
 * @param {...string} names
 * @returns {Record<string, any>}
 */
const only = (body, ...names) => Object.fromEntries(Object.entries(body).filter(([name]) => names.includes(name)));
/**
 * @param {Record<string, any>} body
 * @param {...string} names
 */
const missing = (body, ...names) => names.filter((name) => name in body);
/**
 * The body without the fields `names`, and those; undefined if there are none.
 *
 * @param {Record<string, any>} body
 * @param {string[]} names
 * @returns {[Record<string, any>, Record<string, any> | undefined]}
 */
function split(body, names) {
  const extras = only(body, ...names);
  return [without(body, ...names), Object.keys(extras).length ? extras : undefined];
}

const VLLM_FIELDS = ["top_k", "min_p"];
const RESPONSE_EXTRAS = ["seed", "stop", "top_k", "frequency_penalty", "presence_penalty"];
const READ_CHAT = [
  "for chunk in stream:",
  "    for choice in chunk.choices:",
  '        print(choice.delta.content or choice.delta.tool_calls or "", end="", flush=True)',
];
const READ_TEXT = [
  "for chunk in stream:",
  "    for choice in chunk.choices:",
  '        print(choice.text, end="", flush=True)',
];
const READ_VECTORS = ["for item in answer.data:", "    print(len(item.embedding), item.embedding[:4])"];

/**
 * @param {string} method
 * @param {string[]} read
 * @param {string} result
 * @returns {Programmer}
 */
function openai(method, read, result) {
  return (request, url) => {
    const [own, extra_body] = split(request.body, VLLM_FIELDS);
    const asked = { ...own, extra_body, extra_headers: headersOf(request) };
    return program(
      ["import os", "", "from openai import OpenAI"],
      [
        `client = ${python(call("OpenAI", { base_url: `${url}/v1`, api_key: new Code(KEY) }))}`,
        `${result} = ${python(call(`client.${method}.create`, asked))}`,
        ...read,
      ],
    );
  };
}

/**
 * Fields without an argument of the SDK go into `extra_body`.
 *
 * @param {ApiRequest} request
 * @param {string} url
 */
function openaiResponses(request, url) {
  const [own, extras] = split(request.body, RESPONSE_EXTRAS);
  const asked = { ...own, extra_body: extras, extra_headers: headersOf(request) };
  return program(
    ["import os", "", "from openai import OpenAI"],
    [
      `client = ${python(call("OpenAI", { base_url: `${url}/v1`, api_key: new Code(KEY) }))}`,
      `stream = ${python(call("client.responses.create", asked))}`,
      "for event in stream:",
      '    if event.type == "response.output_text.delta":',
      '        print(event.delta, end="", flush=True)',
    ],
  );
}

/** @param {unknown} value */
const script = (value) => jsonText(value, 2).replaceAll('"__proto__":', '["__proto__"]:');

/**
 * @param {string} method
 * @param {string[]} read
 * @param {string} result
 * @returns {Programmer}
 */
function node(method, read, result) {
  return (request, url) => {
    const headers = headersOf(request);
    const options = headers ? `, ${script({ headers })}` : "";
    const lines = [
      'import OpenAI from "openai";',
      "",
      'const apiKey = process.env.SWITCHYARD_API_KEY ?? "none";',
      `const client = new OpenAI({ baseURL: ${script(`${url}/v1`)}, apiKey });`,
      `const ${result} = await client.${method}.create(${script(request.body)}${options});`,
      ...read,
    ];
    return { code: `${lines.join("\n")}\n`, left: [] };
  };
}

/**
 * @param {string} text
 * @returns {string[]}
 */
const NODE_READ = (text) => [
  "for await (const chunk of stream)",
  `  for (const choice of chunk.choices) process.stdout.write(${text});`,
];

/** @type {Record<string, Programmer>} */
const NODE = {
  chat: node("chat.completions", NODE_READ('choice.delta.content ?? ""'), "stream"),
  completions: node("completions", NODE_READ("choice.text"), "stream"),
  responses: node(
    "responses",
    [
      "for await (const event of stream)",
      '  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);',
    ],
    "stream",
  ),
  embeddings: node(
    "embeddings",
    ["for (const item of answer.data) console.log(item.embedding.length, item.embedding.slice(0, 4));"],
    "answer",
  ),
};

const AZURE_KEY = new Code(`AzureKeyCredential(${KEY})`);
/**
 * @param {ApiRequest} request
 * @param {string} url
 */
const azureUrl = (request, url) => `${url}/endpoints/${encodeURIComponent(request.body.model)}`;

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function azureChat(request, url) {
  const { response_format, ...body } = request.body;
  const schema =
    response_format && call("JsonSchemaFormat", only(response_format.json_schema, "name", "schema", "strict"));
  const own = only(
    body,
    ...["messages", "stream", "max_tokens", "temperature", "top_p", "seed", "stop", "tools"],
    ...["frequency_penalty", "presence_penalty"],
  );
  const extras = without(body, "model", ...Object.keys(own));
  const model_extras = Object.keys(extras).length ? extras : undefined;
  const asked = { ...own, response_format: schema, model_extras, headers: headersOf(request) };
  const models = schema ? ["from azure.ai.inference.models import JsonSchemaFormat"] : [];
  return program(
    [
      "import os",
      "",
      "from azure.ai.inference import ChatCompletionsClient",
      ...models,
      "from azure.core.credentials import AzureKeyCredential",
    ],
    [
      `client = ${python(call("ChatCompletionsClient", { endpoint: azureUrl(request, url), credential: AZURE_KEY }))}`,
      `stream = ${python(call("client.complete", asked))}`,
      ...READ_CHAT,
    ],
  );
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function azureEmbeddings(request, url) {
  return program(
    [
      "import os",
      "",
      "from azure.ai.inference import EmbeddingsClient",
      "from azure.core.credentials import AzureKeyCredential",
    ],
    [
      `client = ${python(call("EmbeddingsClient", { endpoint: azureUrl(request, url), credential: AZURE_KEY }))}`,
      `answer = ${python(call("client.embed", { input: request.body.input, headers: headersOf(request) }))}`,
      ...READ_VECTORS,
    ],
  );
}

/** @param {string} url */
const DATABRICKS = (url) => `client = ${python(call("WorkspaceClient", { host: url, token: new Code(KEY) }))}`;

/**
 * `extra_params` is a map of strings, which are read as JSON. It names the deployment, too.
 *
 * @param {ApiRequest} request
 * @param {string[]} own
 * @param {(body: Record<string, any>) => Record<string, unknown>} fields
 * @param {string[]} answer
 */
function databricks(request, own, fields, answer) {
  const { model, ...body } = request.body;
  const left = missing(body, "stream", "stream_options", "min_p");
  const extras = {
    ...without(body, ...own, ...left),
    ...(deploymentOf(request) ? { model: deploymentOf(request) } : {}),
  };
  const params = Object.fromEntries(
    Object.entries(extras).map(([name, value]) => [name, call("json.dumps", {}, value)]),
  );
  const asked = call(
    "client.serving_endpoints.query",
    { ...fields(body), extra_params: Object.keys(params).length ? params : undefined },
    model,
  );
  return {
    left,
    lines: [`answer = ${python(asked)}`, ...answer],
    json: Object.keys(params).length ? ["import json"] : [],
  };
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function databricksChat(request, url) {
  /** @param {Record<string, any>} body */
  const messages = (body) =>
    body.messages.map((/** @type {any} */ { role, content }) =>
      call("ChatMessage", { role: new Code(`ChatMessageRole.${role.toUpperCase()}`), content }),
    );
  const made = databricks(
    request,
    ["messages", "max_tokens", "temperature"],
    (body) => ({ messages: messages(body), ...only(body, "max_tokens", "temperature") }),
    ["print(answer.choices[0].message.content)"],
  );
  const imports = [
    ...made.json,
    "import os",
    "",
    "from databricks.sdk import WorkspaceClient",
    "from databricks.sdk.service.serving import ChatMessage, ChatMessageRole",
  ];
  return program(imports, [DATABRICKS(url), ...made.lines], made);
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function databricksCompletions(request, url) {
  const own = ["prompt", "max_tokens", "temperature"];
  const made = databricks(request, own, (body) => only(body, ...own), ["print(answer.choices[0].text)"]);
  return program(
    [...made.json, "import os", "", "from databricks.sdk import WorkspaceClient"],
    [DATABRICKS(url), ...made.lines],
    made,
  );
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function databricksEmbeddings(request, url) {
  const made = databricks(request, ["input"], (body) => only(body, "input"), READ_VECTORS);
  return program(
    [...made.json, "import os", "", "from databricks.sdk import WorkspaceClient"],
    [DATABRICKS(url), ...made.lines],
    made,
  );
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function huggingFace(request, url) {
  const base = `${url}/tgi/${encodeURIComponent(request.body.model)}`;
  const client = call("InferenceClient", { base_url: base, api_key: new Code(KEY), headers: headersOf(request) });
  return `client = ${python(client)}`;
}

const HUGGING_FACE = ["import os", "", "from huggingface_hub import InferenceClient"];

/**
 * TGI accepts only schemas with `properties`.
 *
 * @param {ApiRequest} request
 * @param {string} url
 */
function tgiChat(request, url) {
  const schema = request.body.response_format?.json_schema.schema;
  const hasNoProperties = schema && !schema.properties;
  const left = missing(request.body, ...VLLM_FIELDS, ...(hasNoProperties ? ["response_format"] : []));
  const asked = call("client.chat_completion", without(request.body, "model", ...left));
  const notes = hasNoProperties ? ["TGI's schemas have `properties`."] : [];
  return program(HUGGING_FACE, [huggingFace(request, url), `stream = ${python(asked)}`, ...READ_CHAT], {
    left,
    notes,
  });
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function tgiCompletions(request, url) {
  const { prompt, max_tokens, temperature, seed, logprobs, stop, ...rest } = request.body;
  const asked = call(
    "client.text_generation",
    {
      max_new_tokens: max_tokens,
      temperature: temperature || undefined,
      do_sample: temperature === 0 ? false : undefined,
      seed,
      stop,
      ...only(rest, "top_p", "top_k", "frequency_penalty"),
      stream: true,
      details: true,
    },
    prompt,
  );
  const notes = logprobs === undefined ? [] : ["Every token comes with its log-probability: item.token.logprob."];
  const read = ["for item in stream:", '    print(item.token.text, end="", flush=True)'];
  return program(HUGGING_FACE, [huggingFace(request, url), `stream = ${python(asked)}`, ...read], {
    left: missing(request.body, "stream_options", "min_p", "presence_penalty"),
    notes,
  });
}

const FRIENDLI = ["import os", "", "from friendli import SyncFriendli"];
/** @param {string} url */
const friendliClient = (url) => `client = ${python(call("SyncFriendli", { token: new Code(KEY), server_url: url }))}`;

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function friendliChat(request, url) {
  const { response_format, ...body } = request.body;
  const left = response_format && body.tools ? ["response_format (Friendli has either tools or a schema)"] : [];
  const schema =
    left.length || !response_format
      ? undefined
      : { type: "json_schema", json_schema: only(response_format.json_schema, "schema") };
  const notes =
    "temperature" in body ? [] : ["Friendli's default temperature is 1; the other dialects take the model's own."];
  const asked = call("client.serverless.chat.complete", {
    ...body,
    response_format: schema,
    http_headers: headersOf(request),
  });
  return program(
    FRIENDLI,
    [friendliClient(url), `stream = ${python(asked)}`, ...FRIENDLI_READ("choice.delta.content")],
    { left, notes },
  );
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function friendliCompletions(request, url) {
  const asked = call("client.serverless.completions.complete", {
    serverless_completions_body: request.body,
    http_headers: headersOf(request),
  });
  return program(FRIENDLI, [friendliClient(url), `stream = ${python(asked)}`, ...FRIENDLI_READ("choice.text")]);
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function friendliResponses(request, url) {
  const { input, ...body } = request.body;
  const [own, extras] = split(body, RESPONSE_EXTRAS);
  const asked = call("client.serverless.responses.responses", {
    ...own,
    input_: input,
    additional_properties: extras,
    http_headers: headersOf(request),
  });
  const read = [
    "with stream as events:",
    "    for event in events:",
    '        if event.data.TYPE == "response.output_text.delta":',
    '            print(event.data.delta, end="", flush=True)',
  ];
  return program(FRIENDLI, [friendliClient(url), `stream = ${python(asked)}`, ...read]);
}

/** @param {string} text */
const FRIENDLI_READ = (text) => [
  "for event in stream:",
  "    for choice in event.data.choices:",
  `        print(${text} or "", end="", flush=True)`,
];

const ANTHROPIC_LACKS = [
  ...["seed", "logprobs", "top_logprobs", "stream_options", "min_p"],
  ...["frequency_penalty", "presence_penalty"],
];
/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function anthropic(request, url) {
  const { model, messages, max_tokens, tools, response_format, stream, stop, ...rest } = request.body;
  const system = messages.find((/** @type {any} */ message) => message.role === "system")?.content;
  const others = messages
    .filter((/** @type {any} */ message) => message.role !== "system")
    .map((/** @type {any} */ { role, content }) => ({ role, content: anthropicContent(content) }));
  const left = missing(request.body, ...ANTHROPIC_LACKS);
  const extras = without(rest, ...left);
  const asked = call("client.messages.create", {
    model,
    max_tokens: max_tokens ?? DEFAULT_MAX_TOKENS,
    system,
    messages: others,
    stop_sequences: stop,
    tools: tools?.map((/** @type {any} */ { function: tool }) => ({
      name: tool.name,
      description: tool.description ?? "",
      input_schema: tool.parameters ?? { type: "object" },
    })),
    output_config: response_format && { format: { type: "json_schema", schema: response_format.json_schema.schema } },
    stream,
    extra_body: Object.keys(extras).length ? extras : undefined,
    extra_headers: headersOf(request),
  });
  const read = [
    "for event in stream:",
    '    if event.type == "content_block_delta" and event.delta.type == "text_delta":',
    '        print(event.delta.text, end="", flush=True)',
  ];
  return program(
    ["import os", "", "from anthropic import Anthropic"],
    [
      `client = ${python(call("Anthropic", { base_url: url, api_key: new Code(KEY) }))}`,
      `stream = ${python(asked)}`,
      ...read,
    ],
    { left, notes: max_tokens === undefined ? [`Anthropic's API requires max_tokens.`] : [] },
  );
}

/**
 * @param {any} content
 * @returns {any}
 */
function anthropicContent(content) {
  if (typeof content === "string") return content;
  return content.map((/** @type {any} */ part) => {
    if (part.type !== "image_url") return part;
    const [, media_type, data] = /^data:([^;,]+);base64,(.*)$/s.exec(part.image_url.url) ?? [];
    return { type: "image", source: { type: "base64", media_type, data } };
  });
}

/**
 * @param {ApiRequest} request
 * @param {string} url
 */
function cohere(request, url) {
  const headers = headersOf(request);
  const request_options = headers && { additional_headers: headers };
  return program(
    ["import os", "", "import cohere"],
    [
      `client = ${python(call("cohere.ClientV2", { api_key: new Code(KEY), base_url: url }))}`,
      `answer = ${python(call("client.rerank", { ...request.body, request_options }))}`,
      "for result in answer.results:",
      "    print(result.index, result.relevance_score)",
    ],
  );
}

/**
 * `apart`: its programs are shown only for its own tasks.
 *
 * @type {({id: string, title: string, apart?: boolean} & {[task: string]: any})[]}
 */
const PYTHON = [
  {
    id: "openai",
    title: "OpenAI",
    chat: openai("chat.completions", READ_CHAT, "stream"),
    completions: openai("completions", READ_TEXT, "stream"),
    responses: openaiResponses,
    embeddings: openai("embeddings", READ_VECTORS, "answer"),
  },
  { id: "azure", title: "Azure AI Inference", chat: azureChat, embeddings: azureEmbeddings },
  {
    id: "databricks",
    title: "Databricks",
    chat: databricksChat,
    completions: databricksCompletions,
    embeddings: databricksEmbeddings,
  },
  { id: "tgi", title: "Hugging Face (TGI)", chat: tgiChat, completions: tgiCompletions },
  {
    id: "friendli",
    title: "Friendli",
    chat: friendliChat,
    completions: friendliCompletions,
    responses: friendliResponses,
  },
  { id: "anthropic", title: "Anthropic", chat: anthropic },
  { id: "cohere", title: "Cohere", apart: true, rerank: cohere },
];
