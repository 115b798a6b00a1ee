// One answer, as its events arrive, and its tokens, each with how likely it was.

import { h, morph } from "../dom.js";

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
function asChunk(event) {
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

const NO_TOKEN =
  "Point at a token, or move with the arrow keys, to see how likely it was. The most likely are plain; " +
  "dotted (blue) is below 90\u00a0%, underlined (amber) below 50\u00a0%, underlined twice (red) below 10\u00a0%.";

/** Shows `plain`, an answer's text, or in its place the tokens with their probabilities. */
export class TokenView {
  /** @type {Piece[]} */
  #pieces = [];
  /** @type {HTMLElement[]} */
  #spans = [];
  #active = -1;
  #plain;
  #tokens = h("div", { class: "plain" });

  /**
   * @param {string} name
   * @param {HTMLElement} plain
   */
  constructor(name, plain) {
    this.#plain = plain;
    this.text = h("div", { class: "answer-text", role: "group", "aria-label": `Answer of ${name}` }, plain);
    this.shown = h("p", { class: "token-facts", "aria-live": "polite", hidden: true }, NO_TOKEN);
    this.shade = h(
      "button",
      {
        type: "button",
        class: "quiet shade",
        "aria-pressed": "false",
        hidden: true,
        on: { click: () => this.#toggle() },
      },
      "Token probabilities",
    );
    this.text.addEventListener("keydown", (event) => this.#key(event));
    this.text.addEventListener("pointerover", (event) => this.#point(event));
    this.text.addEventListener("click", (event) => this.#point(event));
  }

  /** @param {Piece[]} pieces */
  add(pieces) {
    this.#pieces.push(...pieces);
    if (!this.shown.hidden) this.#draw();
    if (this.shade.hidden && pieces.some((piece) => piece.tokens.length)) this.shade.hidden = false;
  }

  /** Adds the tokens that are not shown yet. */
  #draw() {
    const spans = this.#pieces.slice(this.#spans.length).map((piece) => this.#span(piece));
    this.#spans.push(...spans);
    this.#tokens.append(...spans);
  }

  end() {
    if (!this.#pieces.length) this.text.classList.add("none");
  }

  /** @param {Piece} piece */
  #span({ text, tokens }) {
    if (!tokens.length) return h("span", {}, text);
    const probability = Math.exp(tokens.reduce((sum, token) => sum + (token.logprob ?? 0), 0));
    const doubt = probability >= 0.9 ? 0 : probability >= 0.5 ? 1 : probability >= 0.1 ? 2 : 3;
    const word = text.trimStart() || text;
    return h(
      "span",
      { class: `token doubt-${doubt}` },
      text.slice(0, text.length - word.length),
      h("span", { class: "ink" }, word),
    );
  }

  #toggle() {
    const on = this.shade.getAttribute("aria-pressed") !== "true";
    this.shade.setAttribute("aria-pressed", String(on));
    this.text.classList.toggle("shaded", on);
    this.shown.hidden = !on;
    this.text.replaceChildren(on ? this.#tokens : this.#plain);
    if (on) {
      this.#draw();
      this.text.tabIndex = 0;
      this.text.setAttribute("aria-description", "Arrow keys move from token to token");
    } else {
      this.text.removeAttribute("tabindex");
      this.text.removeAttribute("aria-description");
      this.#show(-1);
    }
  }

  /** @param {Event} event */
  #point({ target }) {
    const token = target instanceof Element ? target.closest(".token") : null;
    if (!this.shown.hidden && token instanceof HTMLElement) this.#show(this.#spans.indexOf(token));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (this.shown.hidden) return;
    const last = this.#spans.length - 1;
    /** @type {Record<string, number>} */
    const steps = { ArrowRight: this.#active + 1, ArrowLeft: this.#active - 1, Home: 0, End: last };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.#show(Math.min(Math.max(steps[event.key], 0), last));
  }

  /** @param {number} index */
  #show(index) {
    this.#spans[this.#active]?.classList.remove("active");
    this.#active = index;
    this.#spans[index]?.classList.add("active");
    const piece = this.#pieces[index];
    morph(this.shown, piece ? facts(piece) : NO_TOKEN);
  }
}

/**
 * @param {Piece} piece
 * @returns {Child[]}
 */
function facts({ tokens }) {
  return tokens.flatMap((token) => [
    h("strong", {}, visible(token.token)),
    ` ${token.logprob === null ? "without a probability" : percent(token.logprob)}`,
    ...(token.others.length
      ? [
          "; instead ",
          ...token.others.flatMap((other, index) => [
            index ? ", " : "",
            h("span", { class: "mono" }, visible(other.token)),
            ` ${percent(other.logprob)}`,
          ]),
        ]
      : []),
    ". ",
  ]);
}

/** @param {string} token */
function visible(token) {
  return `“${token
    .replaceAll("\n", "↵")
    .replaceAll("\t", "⇥")
    .replaceAll(/^ +| +$/g, (spaces) => "·".repeat(spaces.length))}”`;
}
