// The text of an answer, token by token, with probabilities: for mouse, keyboard and screen readers.

import { h } from "../dom.js";
import { percent } from "./answer.js";

const NO_TOKEN =
  "Point at a token, or move with the arrow keys, to see how likely it was. The most likely are plain; " +
  "dotted (blue) is below 90\u00a0%, underlined (amber) below 50\u00a0%, underlined twice (red) below 10\u00a0%.";

export class TokenView {
  #pieces = [];
  #spans = [];
  #active = -1;

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
    this.text.addEventListener("pointerover", (event) => this.#point(event.target));
    this.text.addEventListener("click", (event) => this.#point(event.target));
  }

  add(pieces) {
    const spans = pieces.map((piece) => this.#span(piece));
    this.#pieces.push(...pieces);
    this.#spans.push(...spans);
    this.text.append(...spans);
    if (this.shade.hidden && pieces.some((it) => it.tokens.length)) this.shade.hidden = false;
  }

  end() {
    if (!this.#pieces.length) this.text.classList.add("none");
  }

  #span({ text, tokens }) {
    if (!tokens.length) return h("span", {}, text);
    const probability = Math.exp(tokens.reduce((sum, it) => sum + (it.logprob ?? 0), 0));
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

  #point(target) {
    const token = target.closest(".token");
    if (!this.shown.hidden && token !== null) this.#show(this.#spans.indexOf(token));
  }

  #key(event) {
    if (this.shown.hidden) return;
    const last = this.#spans.length - 1;
    const steps = { ArrowRight: this.#active + 1, ArrowLeft: this.#active - 1, Home: 0, End: last };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.#show(Math.min(Math.max(steps[event.key], 0), last));
  }

  #show(index) {
    this.#spans[this.#active]?.classList.remove("active");
    this.#active = index;
    this.#spans[index]?.classList.add("active");
    const piece = this.#pieces[index];
    this.shown.replaceChildren(...(piece ? facts(piece) : [NO_TOKEN]));
  }
}

function facts({ tokens }) {
  return tokens.flatMap((it) => [
    h("strong", {}, visible(it.token)),
    ` ${it.logprob === null ? "without a probability" : percent(it.logprob)}`,
    ...(it.others.length
      ? [
          "; instead ",
          ...it.others.flatMap((other, index) => [
            index ? ", " : "",
            h("span", { class: "mono" }, visible(other.token)),
            ` ${percent(other.logprob)}`,
          ]),
        ]
      : []),
    ". ",
  ]);
}

function visible(token) {
  return `“${token
    .replaceAll("\n", "↵")
    .replaceAll("\t", "⇥")
    .replaceAll(/^ +| +$/g, (it) => "·".repeat(it.length))}”`;
}
