// One deployment's answer, as it arrives.

import { h } from "../dom.js";
import { Answer } from "./answer.js";
import { eventsOf } from "./events.js";
import { TokenView } from "./token_view.js";
import { cosine, norm } from "./vectors.js";

const FINISHES = {
  stop: "finished",
  length: "cut at max tokens",
  tool_calls: "calls a tool",
  content_filter: "stopped by the content filter",
};
const REQUEST_ID = "x-request-id";

export function seconds(ms) {
  return ms === null
    ? "–"
    : ms < 1000
      ? `${Math.round(ms)}\u00a0ms`
      : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)}\u00a0s`;
}

export class AnyCard {
  constructor({ deployment, weight }, endpoint) {
    this.name = deployment;
    this.endpoint = endpoint;
    this.text = "";
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

  /** Sends the request and shows the answer. Never rejects: the card shows failures. */
  async run(api, request, signal) {
    try {
      const options = {
        method: request.method,
        headers: { "content-type": "application/json", ...request.headers },
        body: JSON.stringify(request.body),
        signal,
        timeout: null,
      };
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

  fail(message) {
    this.state.textContent = "failed";
    this.state.className = "state bad";
    this.problem.textContent = message;
    this.problem.hidden = false;
    this.words = `${this.name} failed: ${message}`;
  }

  link(id) {
    if (id)
      this.foot.replaceChildren(
        "Request ",
        h("a", { href: `#/requests?id=${encodeURIComponent(id)}`, class: "mono" }, id),
      );
  }

  fact(...pairs) {
    this.facts.replaceChildren(...pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }
}

/** A text answer: chat, completions or responses. */
export class Card extends AnyCard {
  constructor(...known) {
    super(...known);
    this.view = new TokenView(this.name);
    this.reasoning = h("div", { class: "reasoning-text" });
    this.thoughts = h("details", { class: "reasoning", hidden: true }, h("summary", {}, "Reasoning"), this.reasoning);
    this.tools = h("div", { class: "tool-calls" });
    this.body.append(this.thoughts, ...this.view.elements, this.tools);
  }

  async read(response) {
    const answer = (this.answer = new Answer(this.started));
    for await (const data of eventsOf(response)) {
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
      this.tools.replaceChildren(...answer.tools.map((it) => h("pre", {}, `${it.name}(${it.arguments})`)));
    if (answer && answer.firstTokenMs !== null && answer.finish === null) this.state.textContent = "streaming";
    const speed = answer?.tokensPerSecond ?? null;
    this.fact(
      ["First token", seconds(answer?.firstTokenMs ?? null)],
      ["Tokens/s", speed === null ? "–" : speed.toFixed(speed < 10 ? 1 : 0)],
      ["Tokens", answer ? String(answer.tokens) : "–"],
      ["Prompt", answer?.usage ? String(answer.usage.prompt_tokens) : "–"],
    );
  }

  end(stopped) {
    const { answer } = this;
    this.text = answer?.text || (answer?.tools ?? []).map((it) => `${it.name}(${it.arguments})`).join("\n");
    this.draw();
    this.view.end();
    if (answer?.failure && !stopped) {
      this.fail(answer.failure);
      return;
    }
    const finish = stopped ?? FINISHES[answer.finish] ?? answer.finish;
    this.state.textContent = finish;
    this.state.className = `state ${!stopped && ["stop", "tool_calls"].includes(answer.finish) ? "good" : "warn"}`;
    this.words = stopped
      ? `${this.name}: stopped.`
      : `${this.name}: ${finish}, ${answer.tokens} tokens, the first after ${seconds(answer.firstTokenMs)}.`;
  }
}

/** The dimension, lengths and cosines of some texts' embeddings. */
export class VectorCard extends AnyCard {
  async run(api, request, signal) {
    this.inputs = request.body.input;
    await super.run(api, request, signal);
  }

  async read(response) {
    this.answer = await response.json();
    this.ms = performance.now() - this.started;
  }

  draw() {
    this.fact(["Dimension", "–"], ["Time", "–"], ["Tokens", "–"]);
  }

  end(stopped) {
    if (stopped) {
      this.state.textContent = stopped;
      this.words = `${this.name}: stopped.`;
      return;
    }
    const vectors = this.answer.data.map((it) => it.embedding);
    const sizes = [...new Set(vectors.map((it) => it.length))].join(", ");
    this.fact(
      ["Dimension", sizes],
      ["Time", seconds(this.ms)],
      ["Tokens", String(this.answer.usage?.prompt_tokens ?? "–")],
    );
    this.state.textContent = "finished";
    this.state.className = "state good";
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
                h("th", { scope: "row", class: "input" }, `${row + 1}. ${this.inputs[row]}`),
                h("td", {}, number(norm(vector))),
                several && vectors.map((other) => h("td", {}, number(cosine(vector, other)))),
              ),
            ),
          ),
        ),
      ),
    );
    this.words = `${this.name}: ${vectors.length} vectors of dimension ${sizes}.`;
  }
}
