// Shows the difference between two answers.

import { h } from "../dom.js";
import { diff, likeness } from "./diff.js";

const MARKS = { same: ["span", null], removed: ["del", "removed: "], added: ["ins", "added: "] };

/** The elements that compare two of these answers (`{name, text}`). With more than two, the visitor chooses. */
export function comparison(answers) {
  const chosen = [answers[0], answers[1]];
  const said = h("p", { role: "status" });
  const text = h("div", { class: "diff" });
  const choice = (at, label) => {
    const id = `compare-${at}`;
    const select = h(
      "select",
      { id, on: { change: () => ((chosen[at] = answers[select.selectedIndex]), draw()) } },
      answers.map((it) => h("option", { selected: it === chosen[at] }, it.name)),
    );
    return h("div", { class: "field" }, h("label", { for: id }, label), select);
  };

  function draw() {
    const [before, after] = chosen;
    const pieces = diff(before.text, after.text);
    const same = pieces.every((it) => it.kind === "same");
    said.textContent = same
      ? `The answers of ${before.name} and ${after.name} are the same, word for word.`
      : `${Math.round(100 * likeness(pieces))}\u00a0% of the words are the same. ` +
        `Struck out: only ${before.name}. Underlined: only ${after.name}.`;
    text.replaceChildren(
      ...pieces.map(({ kind, text: words }) => {
        const [tag, mark] = MARKS[kind];
        return h(tag, {}, mark && h("span", { class: "unseen" }, mark), words);
      }),
    );
  }

  draw();
  return [
    h("h2", {}, "Difference"),
    answers.length > 2 && h("div", { class: "where" }, choice(0, "From"), choice(1, "To")),
    said,
    text,
  ].filter(Boolean);
}
