// One deployment's answer, as it arrives: a text token by token, vectors, or a ranking.

import { h } from "../dom.js";
import { eventsOf } from "../events.js";
import { seconds } from "../format.js";
import { copyButton } from "../parts.js";
import { REASONS } from "../request.js";
import { Answer, TokenView } from "./answer.js";
import { MarkdownView, PlainView } from "./markdown.js";
import { DEPLOYMENT_HEADER } from "./request.js";

/** @type {Record<string, string>} */
const FINISHES = {
  stop: "finished",
  length: "cut at max tokens",
  tool_calls: "calls a tool",
  content_filter: "stopped by the content filter",
};
const REQUEST_ID = "x-request-id";
const REASON = "x-switchyard-reason";
const WAIT_MS = 500;
/** @type {Record<string, string>} */
const TITLES = {
  "First token": "From the sending of the request, as the browser's network measured it",
  Time: "From the sending of the request to the end of the answer, as the browser's network measured it",
};
let made = 0;

/**
 * Milliseconds in words; a dash if unknown.
 *
 * @param {number | null} ms
 */
function elapsed(ms) {
  return seconds(ms === null ? null : ms / 1000) ?? "–";
}

/**
 * The times of one request as the browser's network has them, from its sending on: the page's own clock would also
 * count what the page draws, and what its visitor types to sign in. `url` tells it from all others, and the server does
 * not see the difference.
 */
class Wire {
  /** @type {PerformanceResourceTiming | null} */
  #last = null;
  #seen = () => {};

  /** @param {string} path */
  constructor(path) {
    this.url = `${path}#${(made += 1)}`;
    this.observer = new PerformanceObserver((list) => {
      for (const entry of /** @type {PerformanceResourceTiming[]} */ (list.getEntries()))
        if (entry.name.endsWith(this.url) && entry.requestStart > 0) this.#last = entry;
      if (this.#last !== null) this.#seen();
    });
    this.observer.observe({ type: "resource" });
  }

  /**
   * Once the answer has ended; null if the browser does not say.
   *
   * @returns {Promise<WireTimes | null>}
   */
  async times() {
    if (this.#last === null)
      await new Promise((resolve) => {
        this.#seen = () => resolve(null);
        setTimeout(resolve, WAIT_MS);
      });
    this.observer.disconnect();
    if (this.#last === null) return null;
    const { requestStart, responseStart, responseEnd } = this.#last;
    return { firstByteMs: responseStart - requestStart, wholeMs: responseEnd - requestStart };
  }
}

/** What all cards have. Those of an answer in one piece read it here. */
class AnyCard {
  text = "";
  words = "";
  started = 0;
  begun = 0;
  ms = 0;
  why = "";
  id = "";
  /** @type {ApiError | null} The refusal of the request, if it was one. */
  refused = null;
  /** @type {Record<string, any>} */
  asked = {};
  /** @type {any} */
  answer = null;
  /** @type {[string, string][]} */
  #facts = [];

  /**
   * @param {Column} column
   * @param {Announce} announce
   */
  constructor({ deployment, title, weight }, announce) {
    this.column = deployment ?? "";
    this.name = title;
    this.announce = announce;
    this.state = h("span", { class: "state" }, "waiting");
    this.facts = h("dl", { class: "facts" });
    this.body = h("div", { class: "answer-body" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.foot = h("p", { class: "hint foot" });
    this.tools = h("div", { class: "answer-tools" });
    const id = `answer-${(made += 1)}`;
    this.heading = h("h2", { id }, title);
    this.element = h(
      "article",
      { class: "answer", "aria-labelledby": id, "aria-busy": "true" },
      h(
        "header",
        {},
        this.heading,
        weight === null ? null : h("span", { class: "hint" }, `${weight}\u00a0% of traffic`),
        this.state,
      ),
      this.body,
      this.problem,
      this.facts,
      this.foot,
      this.tools,
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
    const wire = new Wire(request.path);
    try {
      const options = {
        method: request.method,
        headers: { "content-type": "application/json", ...request.headers },
        body: JSON.stringify(request.body),
        signal,
        timeout: null,
        sent: () => (this.started = performance.now()),
      };
      this.asked = request.body;
      this.draw();
      const response = await api.fetch(wire.url, options);
      this.begun = performance.now();
      this.head(response.headers);
      await this.read(response);
      const times = await wire.times();
      if (times !== null) this.measured(times);
      this.end();
    } catch (error) {
      if (signal.aborted) this.end("stopped");
      else {
        if (error.name === "ApiError") {
          this.refused = error;
          this.head(error.headers);
        }
        this.fail(error.name === "TypeError" ? "The connection was lost" : error.message);
      }
    }
    wire.observer.disconnect();
    this.element.setAttribute("aria-busy", "false");
  }

  /** @param {Response} response */
  async read(response) {
    this.answer = await response.json();
    this.ms = performance.now() - this.started;
  }

  /** @param {WireTimes} times */
  measured({ wholeMs }) {
    this.ms = wholeMs;
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

  /**
   * Who answered, and why.
   *
   * @param {Headers} headers
   */
  head(headers) {
    const reason = headers.get(REASON) ?? "";
    if (this.column === "") {
      this.name = headers.get(DEPLOYMENT_HEADER) ?? this.name;
      this.why = reason && `Answered by ${this.name}: ${REASONS[reason] ?? reason}.`;
    }
    this.id = headers.get(REQUEST_ID) ?? "";
    this.drawHead();
  }

  drawHead() {
    this.heading.textContent = this.name;
    this.foot.replaceChildren(this.why);
    if (this.id)
      this.foot.append(
        this.why ? " Request " : "Request ",
        h("a", { href: `#/requests?id=${encodeURIComponent(this.id)}`, class: "mono" }, this.id),
      );
  }

  /** @param {...[string, string]} pairs */
  fact(...pairs) {
    this.#facts = pairs;
    this.facts.replaceChildren(
      ...pairs.map(([name, value]) => h("div", { title: TITLES[name] }, h("dt", {}, name), h("dd", {}, value))),
    );
  }

  /** @returns {SavedAnswer} */
  saved() {
    const { column, name, text, why, id } = this;
    const look = this.state.className.replace("state", "").trim();
    const about = { state: this.state.textContent ?? "", look, problem: this.problem.textContent ?? "" };
    return { column, name, text, why, id, facts: this.#facts, ...about, reasoning: "", plain: true };
  }

  /**
   * Shows a saved answer.
   *
   * @param {SavedAnswer} saved
   */
  restore({ name, text, why, id, facts, state, look, problem }) {
    Object.assign(this, { name, text, why, id });
    this.drawHead();
    this.fact(...facts);
    if (problem) this.fail(problem);
    this.done(state, look, "");
    this.element.setAttribute("aria-busy", "false");
  }
}

/** A text answer: chat, completions or responses. */
export class TextCard extends AnyCard {
  /** @type {Answer | null} */
  answer = null;
  #waits = false;
  #cost = 0; // of the last drawing, in milliseconds
  #thoughts = 0; // the pieces of reasoning that are shown
  /** @type {{element: Text, shown: number}[]} */
  #calls = [];

  /**
   * @param {Column} column
   * @param {Announce} announce
   * @param {boolean} plain whether the text is no Markdown
   */
  constructor(column, announce, plain) {
    super(column, announce);
    this.plain = plain;
    this.written = plain ? new PlainView() : new MarkdownView(announce);
    this.view = new TokenView(this.name, this.written.element);
    this.reasoning = h("div", { class: "reasoning-text" });
    this.thoughts = h("details", { class: "reasoning", hidden: true }, h("summary", {}, "Reasoning"), this.reasoning);
    this.calls = h("div", { class: "tool-calls" });
    this.body.append(this.thoughts, this.view.text, this.calls, this.view.shown);
    this.copy = copyButton("Copy", () => [this.text, this.view.text], announce);
    this.copy.hidden = true;
    this.tools.append(this.copy, this.view.shade);
  }

  /** @param {Response} response */
  async read(response) {
    const answer = (this.answer = new Answer(this.begun, this.begun - this.started));
    for await (const { data } of eventsOf(response)) {
      const added = answer.read(data, performance.now());
      this.view.add(added);
      for (const { text } of added) this.written.add(text);
      this.#drawSoon();
    }
    if (!answer.failure && answer.finish === null) answer.failure = "The answer ended before it was complete";
  }

  /** @param {WireTimes} times */
  measured(times) {
    this.answer?.measured(times);
  }

  /** Draws in the next frame, and at most a quarter of the time: to lay out a long paragraph takes long. */
  #drawSoon() {
    if (this.#waits) return;
    this.#waits = true;
    setTimeout(
      () =>
        requestAnimationFrame((begun) => {
          this.#waits = false;
          if (this.element.getAttribute("aria-busy") === "false") return;
          this.draw();
          setTimeout(() => (this.#cost = performance.now() - begun)); // after the layout
        }),
      3 * this.#cost,
    );
  }

  /** Shows what has come since the last time: what was shown is not touched again. */
  draw() {
    const { answer } = this;
    this.written.draw();
    if (answer !== null) {
      const thoughts = answer.thoughts.slice(this.#thoughts);
      this.#thoughts += thoughts.length;
      this.reasoning.append(thoughts.join(""));
      this.thoughts.hidden = this.#thoughts === 0;
      this.#drawCalls(answer);
      if (answer.firstTokenMs !== null && answer.finish === null) this.state.textContent = "streaming";
    }
    const speed = answer?.tokensPerSecond ?? null;
    this.fact(
      ["First token", elapsed(answer?.firstTokenMs ?? null)],
      ["Tokens/s", speed === null ? "–" : speed.toFixed(speed < 10 ? 1 : 0)],
      ["Longest pause", elapsed(answer?.longestPauseMs ?? null)],
      ["Tokens", answer?.tokensInWords ?? "–"],
      ["Prompt", answer?.usage ? String(answer.usage.prompt_tokens) : "–"],
    );
  }

  /** @param {Answer} answer */
  #drawCalls({ tools }) {
    for (const [index, { name, arguments: text }] of tools.entries()) {
      if (!(index in this.#calls)) {
        const element = document.createTextNode("");
        this.#calls[index] = { element, shown: 0 };
        this.calls.append(h("pre", {}, `${name}(`, element, ")"));
      }
      const call = this.#calls[index];
      call.element.appendData(text.slice(call.shown));
      call.shown = text.length;
    }
  }

  /** @param {string} [stopped] */
  end(stopped) {
    const { answer } = this;
    this.draw();
    this.#shown(answer?.text || (answer?.tools ?? []).map((tool) => `${tool.name}(${tool.arguments})`).join("\n"));
    this.written.end(answer?.text ?? "");
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
    const tokens = answer.tokensInWords;
    const words = `${this.name}: ${finish}, ${tokens} tokens, the first after ${elapsed(answer.firstTokenMs)}.`;
    this.done(finish, ["stop", "tool_calls"].includes(how) ? "good" : "warn", words);
  }

  /** @param {string} text */
  #shown(text) {
    this.text = text;
    this.copy.hidden = text === "";
  }

  /** @returns {SavedAnswer} */
  saved() {
    return { ...super.saved(), reasoning: this.reasoning.textContent ?? "", plain: this.plain };
  }

  /** @param {SavedAnswer} saved */
  restore(saved) {
    super.restore(saved);
    this.#shown(saved.text);
    this.reasoning.textContent = saved.reasoning;
    this.thoughts.hidden = saved.reasoning === "";
    this.written.end(saved.text);
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
