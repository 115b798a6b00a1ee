// One deployment's ranking of some documents.

import { h } from "../dom.js";
import { AnyCard, seconds } from "./card.js";

export class RankCard extends AnyCard {
  async run(api, request, signal) {
    this.documents = request.body.documents;
    await super.run(api, request, signal);
  }

  async read(response) {
    this.answer = await response.json();
    this.ms = performance.now() - this.started;
  }

  draw() {
    this.fact(["Documents", String(this.documents.length)], ["Time", "–"], ["Tokens", "–"]);
  }

  end(stopped) {
    if (stopped) {
      this.state.textContent = stopped;
      this.words = `${this.name}: stopped.`;
      return;
    }
    const { results, meta } = this.answer;
    this.fact(
      ["Documents", String(this.documents.length)],
      ["Time", seconds(this.ms)],
      ["Tokens", String(meta?.tokens?.input_tokens ?? "–")],
    );
    this.state.textContent = "finished";
    this.state.className = "state good";
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
            results.map(({ index, relevance_score: score }) =>
              h(
                "tr",
                {},
                h("th", { scope: "row", class: "input" }, this.documents[index]),
                h("td", {}, score.toFixed(4)),
                h("td", {}, String(index + 1)),
              ),
            ),
          ),
        ),
      ),
    );
    this.words = results.length ? `${this.name}: best is line ${results[0].index + 1}.` : `${this.name}: no documents.`;
  }
}
