// The tokens of an answer, each with how likely it was.

import { h, morph } from "../dom.js";
import { percent } from "./answer.js";

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
