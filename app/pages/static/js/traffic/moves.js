// The answer of a dry run in words: which traffic a change would move.

import { h } from "../dom.js";
import { count, percent } from "../format.js";
import { changes } from "../weights.js";

export function movesInWords(before, answer) {
  const different = changes(before, answer.after.weights);
  if (different.length === 0) return h("p", {}, "No traffic moves.");
  const { made_up_keys: any, recent_keys: recent } = answer.moves;
  return h(
    "div",
    { class: "moves" },
    h(
      "ul",
      {},
      different.map(([name, a, b]) =>
        h("li", {}, h("strong", {}, name), ` ${b > a ? "rises" : "falls"} from ${a}\u00a0% to ${b}\u00a0%`),
      ),
    ),
    h("p", {}, `${percent(any.share)} of all keys get another deployment`, pairs(any), "."),
    recent.keys > 0
      ? h(
          "p",
          { class: "hint" },
          `Of the ${count(recent.keys, "key", "keys")} that this router saw recently: ${percent(recent.share)}.`,
        )
      : null,
  );
}

function pairs({ pairs: all }) {
  if (all.length === 0) return "";
  const name = (it) => h("span", { class: "name" }, it);
  const named = all
    .slice(0, 3)
    .map((it, index) => [index ? ", " : "", `${percent(it.share)} from `, name(it.from), " to ", name(it.to)]);
  return [" (", named, all.length > 3 ? " …" : "", ")"];
}
