// One deployment's answer, as it arrives: a text token by token, vectors, or a ranking.

import { h, morph } from "../dom.js";
import { eventsOf } from "../events.js";
import { seconds } from "../format.js";
import { Answer, percent } from "./answer.js";

/** @type {Record<string, string>} */
const FINISHES = {
  stop: "finished",
  length: "cut at max tokens",
  tool_calls: "calls a tool",
  content_filter: "stopped by the content filter",
};
const REQUEST_ID = "x-request-id";

/**
 * Milliseconds in words; a dash if unknown.
 *
 * @param {number | null} ms
 */
function elapsed(ms) {
  return seconds(ms === null ? null : ms / 1000) ?? "–";
}

/** What all cards have. Those of an answer in one piece read it here. */
class AnyCard {
  text = "";
  words = "";
  started = 0;
  ms = 0;
  /** @type {Record<string, any>} */
  asked = {};
  /** @type {any} */
  answer = null;

  /** @param {Usable} usable */
  constructor({ deployment, weight }) {
    this.name = deployment;
    this.state = h("span", { class: "state" }, "waiting");
    this.facts = h("dl", { class: "facts" });
    this.body = h("div", { class: "answer-body" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.foot = h("p", { class: "hint foot" });
    const id = `answer-${deployment}`;
    this.element = h(
      "article",
      { class: "answer", "aria-labelledby": id, "aria-busy": "true" },
      h(
        "header",
        {},
        h("h2", { id }, deployment),
        h("span", { class: "hint" }, `${weight}\u00a0% of traffic`),
        this.state,
      ),
      this.facts,
      this.body,
      this.problem,
      this.foot,
    );
  }

  /**
   * Sends the request and shows the answer. Never rejects: the card shows failures.
   *
   * @param {Api} api
   * @param {ApiRequest} request
   * @param {AbortSignal} signal
   */
  async run(api, request, signal) {
    try {
      const options = {
        method: request.method,
        headers: { "content-type": "application/json", ...request.headers },
        body: JSON.stringify(request.body),
        signal,
        timeout: null,
      };
      this.asked = request.body;
      this.started = performance.now();
      this.draw();
      const response = await api.fetch(request.path, options);
      this.link(response.headers.get(REQUEST_ID));
      await this.read(response);
      this.end();
    } catch (error) {
      if (signal.aborted) this.end("stopped");
      else this.fail(error.name === "TypeError" ? "The connection was lost" : error.message);
    }
    this.element.setAttribute("aria-busy", "false");
  }

  /** @param {Response} response */
  async read(response) {
    this.answer = await response.json();
    this.ms = performance.now() - this.started;
  }

  /** Shows the facts so far. */
  draw() {}

  /**
   * Shows the whole answer, or what there is when the visitor has stopped it.
   *
   * @param {string} [stopped]
   */
  end(stopped) {
    if (stopped) this.done(stopped, "", `${this.name}: stopped.`);
  }

  /**
   * @param {string} state
   * @param {string} look
   * @param {string} words
   */
  done(state, look, words) {
    this.state.textContent = state;
    this.state.className = `state ${look}`.trim();
    this.words = words;
  }

  /** @param {string} message */
  fail(message) {
    this.problem.textContent = message;
    this.problem.hidden = false;
    this.done("failed", "bad", `${this.name} failed: ${message}`);
  }

  /** @param {string | null} id */
  link(id) {
    if (id)
      this.foot.replaceChildren(
        "Request ",
        h("a", { href: `#/requests?id=${encodeURIComponent(id)}`, class: "mono" }, id),
      );
  }

  /** @param {...[string, string]} pairs */
  fact(...pairs) {
    this.facts.replaceChildren(...pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }
}

/** A text answer: chat, completions or responses. */
export class TextCard extends AnyCard {
  /** @type {Answer | null} */
  answer = null;

  /** @param {Usable} usable */
  constructor(usable) {
    super(usable);
    this.view = new TokenView(this.name);
    this.reasoning = h("div", { class: "reasoning-text" });
    this.thoughts = h("details", { class: "reasoning", hidden: true }, h("summary", {}, "Reasoning"), this.reasoning);
    this.tools = h("div", { class: "tool-calls" });
    this.body.append(this.thoughts, ...this.view.elements, this.tools);
  }

  /** @param {Response} response */
  async read(response) {
    const answer = (this.answer = new Answer(this.started));
    for await (const { data } of eventsOf(response)) {
      this.view.add(answer.read(data, performance.now()));
      this.draw();
    }
    if (!answer.failure && answer.finish === null) answer.failure = "The answer ended before it was complete";
  }

  draw() {
    const { answer } = this;
    if (answer?.reasoning) {
      this.thoughts.hidden = false;
      this.reasoning.textContent = answer.reasoning;
    }
    if (answer?.tools.length)
      this.tools.replaceChildren(...answer.tools.map((tool) => h("pre", {}, `${tool.name}(${tool.arguments})`)));
    if (answer && answer.firstTokenMs !== null && answer.finish === null) this.state.textContent = "streaming";
    const speed = answer?.tokensPerSecond ?? null;
    this.fact(
      ["First token", elapsed(answer?.firstTokenMs ?? null)],
      ["Tokens/s", speed === null ? "–" : speed.toFixed(speed < 10 ? 1 : 0)],
      ["Longest pause", elapsed(answer?.longestPauseMs ?? null)],
      ["Tokens", answer ? String(answer.tokens) : "–"],
      ["Prompt", answer?.usage ? String(answer.usage.prompt_tokens) : "–"],
    );
  }

  /** @param {string} [stopped] */
  end(stopped) {
    const { answer } = this;
    this.text = answer?.text || (answer?.tools ?? []).map((tool) => `${tool.name}(${tool.arguments})`).join("\n");
    this.draw();
    this.view.end();
    if (answer?.failure && !stopped) {
      this.fail(answer.failure);
      return;
    }
    if (stopped || answer === null) {
      this.done("stopped", "warn", `${this.name}: stopped.`);
      return;
    }
    const how = answer.finish ?? "";
    const finish = FINISHES[how] ?? how;
    const words = `${this.name}: ${finish}, ${answer.tokens} tokens, the first after ${elapsed(answer.firstTokenMs)}.`;
    this.done(finish, ["stop", "tool_calls"].includes(how) ? "good" : "warn", words);
  }
}

/** The dimension, lengths and cosines of some texts' embeddings. */
export class VectorCard extends AnyCard {
  draw() {
    this.fact(["Dimension", "–"], ["Time", "–"], ["Tokens", "–"]);
  }

  /** @param {string} [stopped] */
  end(stopped) {
    if (stopped) return super.end(stopped);
    /** @type {number[][]} */
    const vectors = this.answer.data.map((/** @type {any} */ item) => item.embedding);
    const sizes = [...new Set(vectors.map((vector) => vector.length))].join(", ");
    this.fact(
      ["Dimension", sizes],
      ["Time", elapsed(this.ms)],
      ["Tokens", String(this.answer.usage?.prompt_tokens ?? "–")],
    );
    /** @param {number | null} value */
    const number = (value) => (value === null ? "–" : value.toFixed(3));
    const several = vectors.length > 1;
    this.body.replaceChildren(
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": `Vectors of ${this.name}` },
        h(
          "table",
          {},
          h(
            "caption",
            {},
            several ? "The cosine between each two inputs, and each vector's length" : "The vector's length",
          ),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, "Input"),
              h("th", { scope: "col" }, "Norm"),
              several && vectors.map((_, index) => h("th", { scope: "col" }, `cos ${index + 1}`)),
            ),
          ),
          h(
            "tbody",
            {},
            vectors.map((vector, row) =>
              h(
                "tr",
                {},
                h("th", { scope: "row", class: "input" }, `${row + 1}. ${this.asked.input[row]}`),
                h("td", {}, number(norm(vector))),
                several && vectors.map((other) => h("td", {}, number(cosine(vector, other)))),
              ),
            ),
          ),
        ),
      ),
    );
    this.done("finished", "good", `${this.name}: ${vectors.length} vectors of dimension ${sizes}.`);
  }
}

/** A ranking of documents. */
export class RankCard extends AnyCard {
  draw() {
    this.fact(["Documents", String(this.asked.documents.length)], ["Time", "–"], ["Tokens", "–"]);
  }

  /** @param {string} [stopped] */
  end(stopped) {
    if (stopped) return super.end(stopped);
    const { results, meta } = this.answer;
    this.fact(
      ["Documents", String(this.asked.documents.length)],
      ["Time", elapsed(this.ms)],
      ["Tokens", String(meta?.tokens?.input_tokens ?? "–")],
    );
    this.body.replaceChildren(
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": `Documents ranked by ${this.name}` },
        h(
          "table",
          {},
          h("caption", {}, "The documents, best match first"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, "Document"),
              h("th", { scope: "col" }, "Score"),
              h("th", { scope: "col" }, "Line"),
            ),
          ),
          h(
            "tbody",
            {},
            results.map((/** @type {any} */ { index, relevance_score: score }) =>
              h(
                "tr",
                {},
                h("th", { scope: "row", class: "input" }, this.asked.documents[index]),
                h("td", {}, score.toFixed(4)),
                h("td", {}, String(index + 1)),
              ),
            ),
          ),
        ),
      ),
    );
    const best = results.length ? `best is line ${results[0].index + 1}` : "no documents";
    this.done("finished", "good", `${this.name}: ${best}.`);
  }
}

/**
 * The length of a vector.
 *
 * @param {number[]} vector
 */
export function norm(vector) {
  return Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
}

/**
 * The cosine of the angle between two vectors of one dimension; null if one of them has no direction.
 *
 * @param {number[]} a
 * @param {number[]} b
 */
export function cosine(a, b) {
  const length = norm(a) * norm(b);
  return length > 0 ? a.reduce((sum, value, index) => sum + value * b[index], 0) / length : null;
}

const NO_TOKEN =
  "Point at a token, or move with the arrow keys, to see how likely it was. The most likely are plain; " +
  "dotted (blue) is below 90\u00a0%, underlined (amber) below 50\u00a0%, underlined twice (red) below 10\u00a0%.";

class TokenView {
  /** @type {Piece[]} */
  #pieces = [];
  /** @type {HTMLElement[]} */
  #spans = [];
  #active = -1;

  /** @param {string} name */
  constructor(name) {
    this.text = h("div", { class: "answer-text", role: "group", "aria-label": `Answer of ${name}` });
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
    this.elements = [this.text, this.shade, this.shown];
    this.text.addEventListener("keydown", (event) => this.#key(event));
    this.text.addEventListener("pointerover", (event) => this.#point(event));
    this.text.addEventListener("click", (event) => this.#point(event));
  }

  /** @param {Piece[]} pieces */
  add(pieces) {
    const spans = pieces.map((piece) => this.#span(piece));
    this.#pieces.push(...pieces);
    this.#spans.push(...spans);
    this.text.append(...spans);
    if (this.shade.hidden && pieces.some((piece) => piece.tokens.length)) this.shade.hidden = false;
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
    if (on) {
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
