// One answer, as its events arrive. Pure.

/** Assembles a stream of OpenAI's chat completions, completions or responses. */
export class Answer {
  /** @type {Piece[]} */
  pieces = []; // {text, tokens: [{token, logprob, others: [{token, logprob}]}]}
  /** @type {string[]} */
  thoughts = [];
  /** @type {{name: string, arguments: string}[]} */
  tools = [];
  /** @type {string | null} */
  finish = null;
  /** @type {{prompt_tokens: number, completion_tokens: number} | null} */
  usage = null;
  /** @type {string | null} */
  failure = null;
  #begunAt;
  /** @type {number | null} */
  #firstAt = null;
  #headMs;
  /** @type {number | null} */
  #wholeMs = null;
  #lastAt = 0;
  #longestMs = 0;
  #parts = 0;

  /**
   * @param {number} begunAt when the page has seen that the answer begins
   * @param {number} headMs the time from the request to then
   */
  constructor(begunAt, headMs) {
    this.#begunAt = begunAt;
    this.#headMs = headMs;
  }

  /**
   * Takes the times that the browser has measured on the wire: no work of the page delays them.
   *
   * @param {WireTimes} times
   */
  measured({ firstByteMs, wholeMs }) {
    this.#headMs = firstByteMs;
    this.#wholeMs = wholeMs - firstByteMs;
  }

  /**
   * Takes one event's data at `now`. Returns the pieces that it added.
   *
   * @param {string} data
   * @param {number} now
   * @returns {Piece[]}
   */
  read(data, now) {
    if (data === "[DONE]") return [];
    let event;
    try {
      event = asChunk(JSON.parse(data));
    } catch {
      this.failure = "The stream has an event that is not JSON";
      return [];
    }
    if (event.error) {
      this.failure = event.error.message ?? "The answer was cut off";
      return [];
    }
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return [];
    if (choice.finish_reason) this.finish = choice.finish_reason;
    const text = choice.delta?.content ?? choice.text ?? "";
    const reasoning = choice.delta?.reasoning ?? choice.delta?.reasoning_content ?? "";
    if (reasoning !== "") this.thoughts.push(reasoning);
    for (const call of choice.delta?.tool_calls ?? []) this.#tool(call);
    const tokens = tokensOf(choice.logprobs);
    if (text !== "" || reasoning !== "" || choice.delta?.tool_calls?.length) {
      if (this.#firstAt !== null) this.#longestMs = Math.max(this.#longestMs, now - this.#lastAt);
      this.#firstAt ??= now;
      this.#lastAt = now;
      this.#parts++;
    }
    const added = text === "" ? [] : pieces(text, tokens);
    this.pieces.push(...added);
    return added;
  }

  /** @param {any} call */
  #tool({ index = 0, function: called = {} }) {
    const tool = (this.tools[index] ??= { name: "", arguments: "" });
    tool.name += called.name ?? "";
    tool.arguments += called.arguments ?? "";
  }

  get text() {
    return this.pieces.map((piece) => piece.text).join("");
  }

  get reasoning() {
    return this.thoughts.join("");
  }

  get hasProbabilities() {
    return this.pieces.some((piece) => piece.tokens.length > 0);
  }

  /** The engine's count of the answer's tokens; until that arrives, the number of pieces so far. */
  get tokens() {
    return this.usage?.completion_tokens ?? this.#parts;
  }

  /** A piece may be of several tokens. */
  get tokensInWords() {
    return this.usage || !this.#parts ? String(this.tokens) : `about ${this.tokens}`;
  }

  /** Milliseconds to the first token; null before it. */
  get firstTokenMs() {
    return this.#firstAt === null ? null : this.#headMs + this.#firstAt - this.#begunAt;
  }

  /** The most milliseconds between two parts, where an engine was lost, too; null before the second one. */
  get longestPauseMs() {
    return this.#parts > 1 ? this.#longestMs : null;
  }

  /** Tokens per second after the first; null if no time has passed. */
  get tokensPerSecond() {
    const seen = this.#firstAt === null ? 0 : this.#lastAt - this.#firstAt;
    const seconds = (this.#wholeMs ?? seen) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }
}

/**
 * OpenAI's two formats of log-probabilities as one.
 *
 * @param {any} logprobs
 * @returns {Token[]}
 */
function tokensOf(logprobs) {
  if (Array.isArray(logprobs?.content))
    return logprobs.content.map((/** @type {any} */ token) => ({
      token: token.token,
      logprob: token.logprob,
      others: (token.top_logprobs ?? [])
        .filter((/** @type {Token} */ other) => other.token !== token.token)
        .map((/** @type {Token} */ { token, logprob }) => ({ token, logprob })),
    }));
  return (logprobs?.tokens ?? []).map((/** @type {string} */ token, /** @type {number} */ index) => ({
    token,
    logprob: logprobs.token_logprobs?.[index] ?? null,
    others: Object.entries(logprobs.top_logprobs?.[index] ?? {})
      .filter(([other]) => other !== token)
      .map(([other, logprob]) => ({ token: other, logprob })),
  }));
}

/**
 * A piece for each token if together they are the text; otherwise one, since a token may be half a character.
 *
 * @param {string} text
 * @param {Token[]} tokens
 * @returns {Piece[]}
 */
function pieces(text, tokens) {
  if (tokens.length > 1 && tokens.map((token) => token.token).join("") === text)
    return tokens.map((token) => ({ text: token.token, tokens: [token] }));
  return [{ text, tokens }];
}

/**
 * A probability in words: "83 %".
 *
 * @param {number} logprob
 */
export function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  if (logprob < 0 && value >= 99.95) return "over 99.9\u00a0%";
  if (value < 0.01) return "below 0.01\u00a0%";
  return `${value.toFixed(value >= 10 ? 0 : value >= 1 ? 1 : 2)}\u00a0%`;
}

const FAILED = "The answer was cut off";

/**
 * The chunk for an event of either stream; a chat's events are returned as they are.
 *
 * @param {any} event
 * @returns {any}
 */
export function asChunk(event) {
  switch (event.type) {
    case "response.output_text.delta":
      return delta({ content: event.delta });
    case "response.reasoning_text.delta":
      return delta({ reasoning: event.delta });
    case "response.completed":
    case "response.incomplete":
      return ended(event.response);
    case "response.failed":
      return { error: event.response.error ?? { message: FAILED } };
    case "error":
      return { error: event.error ?? { message: event.message ?? FAILED } };
    default:
      return event.type?.startsWith("response.") ? {} : event;
  }
}

/** @param {Record<string, unknown>} fields */
function delta(fields) {
  return { choices: [{ delta: fields }] };
}

/**
 * The last event also has the complete tool calls.
 *
 * @param {any} response
 */
function ended({ status, output, usage }) {
  const calls = output.filter((/** @type {any} */ item) => item.type === "function_call");
  const tool_calls = calls.map((/** @type {any} */ { name, arguments: text }, /** @type {number} */ index) => ({
    index,
    function: { name, arguments: text },
  }));
  const finish_reason = status === "incomplete" ? "length" : calls.length ? "tool_calls" : "stop";
  return {
    choices: [{ delta: calls.length ? { tool_calls } : {}, finish_reason }],
    usage: usage && { prompt_tokens: usage.input_tokens, completion_tokens: usage.output_tokens },
  };
}
