// Every word of the glossary.

import { h } from "../dom.js";
import { EVENTS, GLOSSARY } from "../glossary.js";

export const title = "Glossary";

/** @param {HTMLElement} root */
export async function mount(root) {
  root.append(
    h("h1", {}, title),
    h("dl", { class: "pairs words" }, GLOSSARY.map(entry)),
    h("h2", {}, "Events of guardrails"),
    h("dl", { class: "pairs" }, EVENTS.map(entry)),
  );
  return () => {};
}

/** @param {[string[], string]} of */
function entry([words, meaning]) {
  return h("div", {}, h("dt", {}, words.join(", ")), h("dd", {}, `${meaning}.`));
}
