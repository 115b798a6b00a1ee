// Every word of the glossary.

import { h } from "../dom.js";
import { GLOSSARY } from "../glossary.js";

export const title = "Glossary";

/** @param {HTMLElement} root */
export async function mount(root) {
  root.append(
    h("h1", {}, title),
    h(
      "dl",
      { class: "pairs words" },
      GLOSSARY.map(([words, meaning]) => h("div", {}, h("dt", {}, words.join(", ")), h("dd", {}, `${meaning}.`))),
    ),
  );
  return () => {};
}
