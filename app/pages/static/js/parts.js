// Elements that several pages use, and what their buttons do.

import { h } from "./dom.js";
import { moment } from "./format.js";

const ICONS = { good: "✓", bad: "✕", warn: "!", info: "•", wait: "…" };

/** Words with an icon, so that colour is never the only indicator. */
export function mark(kind, ...words) {
  return h(
    "span",
    { class: `mark mark-${kind}` },
    h("span", { "aria-hidden": "true", class: "icon" }, ICONS[kind]),
    ...words,
  );
}

export function notice(kind, ...content) {
  return h(
    "div",
    { class: `notice notice-${kind}` },
    h("span", { "aria-hidden": "true", class: "icon" }, ICONS[kind]),
    h("div", {}, ...content),
  );
}

/**
 * A notice that the page no longer updates, and since when. `error`: an ApiError, which may say when the controller
 * answered last; `since`: Unix seconds of the last answer that this page got, null if there was none.
 */
export function staleNotice(error, since) {
  const message = h("strong", {}, error.message.replace(/\.?$/, "."));
  return notice(
    "warn",
    message,
    since === null
      ? ` ${lastAnswer(error.body?.answered_at)}There is nothing to show until it answers.`
      : ` The data on this page is from ${moment(since)}.`,
  );
}

function lastAnswer(at) {
  if (at === undefined) return "";
  return at === null ? "It has not answered since this router started. " : `It last answered at ${moment(at)}. `;
}

/** A square in the colour of the deployment at `index`. */
export function swatch(index) {
  return h("span", { class: `swatch arm-${(index % 6) + 1}`, "aria-hidden": "true" });
}

/** A button that shows and hides the element with this `id`. */
export function toggle(label, open, id, press) {
  return h(
    "button",
    { type: "button", "aria-expanded": String(open), "aria-controls": id, on: { click: press } },
    label,
  );
}

export function table(caption, heads, rows, props = {}) {
  return h(
    "div",
    { class: "scroll", role: "region", "aria-label": caption, tabindex: props.focusable === false ? null : "0" },
    h(
      "table",
      { class: props.class },
      h("caption", { class: "unseen" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((it) =>
            h("th", { scope: "col", class: it.number ? "number" : null, title: it.title }, it.label ?? it),
          ),
        ),
      ),
      h("tbody", {}, rows),
    ),
  );
}

/** A cell; narrow screens show `label` next to it. */
export function cell(label, content, { number = false, header = false } = {}) {
  return h(
    header ? "th" : "td",
    { scope: header ? "row" : null, "data-label": header ? null : label, class: number ? "number" : null },
    h("div", {}, content),
  );
}

/**
 * Asks for a reason in a dialog. `explain`: nodes that describe the effect. `act(reason)` makes the change; its errors
 * are shown. `typed`: a name that must be typed, too. Resolves to whether the change was made.
 */
export function askForReason({ title, explain, label, danger = false, typed = null, act }) {
  return new Promise((resolve) => {
    let done = false;
    const name = h("input", {
      type: "text",
      id: "typed-name",
      required: true,
      autocomplete: "off",
      spellcheck: "false",
    });
    const reason = h("input", { type: "text", id: "reason", required: true, maxlength: "300", autocomplete: "off" });
    const problem = h("p", { class: "problem", role: "alert" });
    const button = h("button", { type: "submit", class: danger ? "danger" : "primary" }, label);
    const form = h(
      "form",
      {
        on: {
          submit: async (event) => {
            event.preventDefault();
            problem.textContent = "";
            if (typed !== null && name.value.trim() !== typed) {
              problem.textContent = `This is not the name: type ${typed}.`;
              return;
            }
            button.disabled = true;
            try {
              await act(reason.value.trim());
              done = true;
              dialog.close();
            } catch (error) {
              problem.textContent = error.message;
              button.disabled = false;
            }
          },
        },
      },
      h("h2", { id: "dialog-title" }, title),
      explain,
      h("label", { for: "reason" }, "Why?"),
      reason,
      h("p", { class: "hint" }, "It is recorded with the change."),
      typed === null ? null : [h("label", { for: "typed-name" }, `Type ${typed} to confirm`), name],
      problem,
      h(
        "div",
        { class: "actions" },
        button,
        h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"),
      ),
    );
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title", on: { close: () => (dialog.remove(), resolve(done)) } },
      form,
    );
    document.body.append(dialog);
    dialog.showModal();
    reason.focus();
  });
}

/**
 * Copies `text`. Where the browser does not allow that, selects `shown`, the element that has the text. Resolves to the
 * button's new label, and announces the result.
 */
export async function copy(text, shown, announce) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
    return "Copied";
  } catch {
    getSelection().selectAllChildren(shown);
    announce("The browser does not allow copying. The text is selected: copy it with the keyboard.");
    return "Selected: press Ctrl+C";
  }
}
