// Elements that several pages use, and what their buttons do.

import { h, morph } from "./dom.js";
import { moment, or } from "./format.js";

/** @type {Record<Mark, string>} */
const ICONS = { good: "✓", bad: "✕", warn: "!", info: "•", wait: "…" };

/**
 * Words with an icon, so that colour is never the only indicator.
 *
 * @param {Mark} kind
 * @param {...Child} words
 */
export function mark(kind, ...words) {
  return h(
    "span",
    { class: `mark mark-${kind}` },
    h("span", { "aria-hidden": "true", class: "icon" }, ICONS[kind]),
    ...words,
  );
}

/** A request that its client has left, with the same mark on every page: it is nobody's failure. */
export function clientLeft() {
  return mark("info", "client left");
}

/**
 * @param {Mark} kind
 * @param {...Child} content
 */
export function notice(kind, ...content) {
  return h(
    "div",
    { class: `notice notice-${kind}` },
    h("span", { "aria-hidden": "true", class: "icon" }, ICONS[kind]),
    h("div", {}, ...content),
  );
}

/**
 * The point of a chart that a key leads to from another one; null for other keys.
 *
 * @param {string} key
 * @param {number} point From 0.
 * @param {number} count
 */
export function pointAt(key, point, count) {
  /** @type {Record<string, number>} */
  const points = {
    ArrowLeft: point - 1,
    ArrowDown: point - 1,
    ArrowRight: point + 1,
    ArrowUp: point + 1,
    Home: 0,
    End: count - 1,
  };
  return Object.hasOwn(points, key) ? Math.max(0, Math.min(points[key], count - 1)) : null;
}

export const AGAIN = "This page asks again by itself.";

/**
 * A notice that the page no longer updates, and since when. `error`: an ApiError, which may say when the controller
 * answered last; `since`: Unix seconds of the last answer that this page got, null if there was none.
 *
 * @param {ApiError} error
 * @param {number | null} since
 */
export function staleNotice(error, since) {
  const message = h("strong", {}, error.message.replace(/\.?$/, "."));
  return notice(
    "warn",
    message,
    since === null
      ? error.status === 401 || error.status === 403
        ? ""
        : ` ${lastAnswer(error.body?.answered_at)}There is nothing to show until it answers. ${AGAIN}`
      : ` The data on this page is from ${moment(since)}.`,
  );
}

/** The place of that notice on a page that draws it apart from its data. `read()`: the page has new data. */
export function staleness() {
  /** @type {number | null} */
  let since = null;
  const element = h("div", { role: "alert", hidden: true });
  return {
    element,
    read() {
      since = Date.now() / 1000;
      element.hidden = true;
    },
    /** @param {Error} error */
    failed(error) {
      element.hidden = false;
      morph(element, staleNotice(/** @type {ApiError} */ (error), since));
    },
  };
}

/**
 * The parts of a page that are read apart from the rest: each says for itself that it is old. `draw()` draws the page
 * again.
 *
 * @param {() => void} draw
 */
export function partsOf(draw) {
  /** @type {Map<string, {since: number | null, error: Error | null}>} */
  const parts = new Map();
  /**
   * @param {string} what
   * @param {Error | null} error
   * @param {number} at
   */
  function tell(what, error, at = Date.now() / 1000) {
    parts.set(what, { since: error === null ? at : (parts.get(what)?.since ?? null), error });
  }
  return {
    /**
     * Tells of a part that the page does not poll whether it is up to date (null).
     *
     * @param {string} what
     * @returns {(error: Error | null) => void}
     */
    told: (what) => (error) => (tell(what, error), draw()),
    /**
     * `read`, as a task of `poll`. It may return as of when the part is, in Unix seconds, if not as of now; null: it
     * was not to be read.
     *
     * @param {string} what As in a notice: "The charts".
     * @param {(signal?: AbortSignal) => Promise<number | null | void>} read
     * @returns {(signal?: AbortSignal) => Promise<void>}
     */
    reading: (what, read) => async (signal) => {
      try {
        const at = await read(signal);
        if (at === null) return;
        tell(what, null, at ?? undefined);
      } catch (error) {
        if (signal?.aborted) return;
        tell(what, error);
      }
      draw();
    },
    /**
     * The notice that a part does not update; null if it does.
     *
     * @param {string} what
     */
    notice(what) {
      const { since, error } = parts.get(what) ?? { since: null, error: null };
      if (error === null) return null;
      const old = since === null ? `${what} cannot be shown.` : `${what} are as of ${moment(since)}.`;
      return notice("warn", h("strong", {}, `${old} `), `${error.message.replace(/\.?$/, ".")} ${AGAIN}`);
    },
  };
}

/** @param {Maybe<number>} at */
function lastAnswer(at) {
  if (at === undefined) return "";
  return at === null ? "It has not answered since this router started. " : `It last answered at ${moment(at)}. `;
}

/**
 * A page of the documentation: a link where the operator has named a copy of it, and else what it is called.
 *
 * @param {string | null} base
 * @param {string} path
 * @param {string} label
 */
export function documented(base, path, label) {
  if (base === null) return `See “${label}” in the documentation.`;
  return h("a", { href: `${base.replace(/\/$/, "")}/${path}`, rel: "noreferrer", target: "_blank" }, label);
}

/**
 * A large number and what it counts.
 *
 * @param {string | null} value
 * @param {string} label
 */
export function figure(value, label) {
  return h("span", { class: "figure" }, h("b", {}, or(value)), " ", label);
}

/**
 * A square in a deployment's colour.
 *
 * @param {number | null} colour
 */
export function swatch(colour) {
  return colour === null ? null : h("span", { class: `swatch arm-${colour}`, "aria-hidden": "true" });
}

const NAMED_FROM = 12; // the percentage from which a part has room for its name

/**
 * An endpoint's traffic as a bar with a part for each deployment. `share`: percent.
 *
 * @param {string} label
 * @param {readonly {name: string, colour: number | null, share: number}[]} parts
 */
export function shareBar(label, parts) {
  return h(
    "div",
    { class: "split" },
    h("span", { class: "hint" }, label),
    h(
      "div",
      { class: "share-bar", "aria-hidden": "true" },
      parts
        .filter(({ share }) => share > 0)
        .map(({ name, colour, share }) =>
          h(
            "span",
            { class: `part arm-${colour}`, key: name, title: name, style: { "flex-grow": String(share) } },
            share >= NAMED_FROM ? name : "",
          ),
        ),
    ),
  );
}

/**
 * A word that says what it means when it is pressed. `word`: as the glossary has it.
 *
 * @param {string} word
 * @param {Child} [label]
 */
export function term(word, label = word) {
  return h(
    "button",
    {
      type: "button",
      class: "term",
      title: `What “${word}” means`,
      on: {
        click: async (event) => {
          const button = event.currentTarget;
          (await import("./pages/glossary.js")).explainTerm(word, button);
        },
      },
    },
    label,
  );
}

/**
 * A button that shows and hides the element with this `id`.
 *
 * @param {string} label
 * @param {boolean} open
 * @param {string} id
 * @param {() => void} press
 */
export function toggle(label, open, id, press) {
  return h(
    "button",
    { type: "button", "aria-expanded": String(open), "aria-controls": id, on: { click: press } },
    label,
  );
}

/**
 * @param {string} caption
 * @param {readonly (string | Head)[]} heads
 * @param {Child} rows
 * @param {{class?: string, focusable?: boolean}} [props]
 */
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
          heads.map((head) => {
            const { label, number = false, title } = typeof head === "string" ? { label: head } : head;
            return h("th", { scope: "col", class: number ? "number" : null, title }, label);
          }),
        ),
      ),
      h("tbody", {}, rows),
    ),
  );
}

/**
 * A cell; narrow screens show `label` next to it.
 *
 * @param {string} label
 * @param {Child} content
 * @param {{number?: boolean, header?: boolean}} [options]
 */
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
 *
 * @param {Question} question
 * @returns {Promise<boolean>}
 */
export async function askForReason({ title, explain, label, danger = false, typed = null, act }) {
  const name = h("input", {
    type: "text",
    id: "typed-name",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const reason = h("input", { type: "text", id: "reason", required: true, maxlength: "300", autocomplete: "off" });
  async function made() {
    if (typed !== null && name.value.trim() !== typed) throw new Error(`This is not the name: type ${typed}.`);
    await act(reason.value.trim());
    return true;
  }
  const done = await askInDialog(
    { title, label, danger, first: reason, act: made },
    explain,
    h("label", { for: "reason" }, "Why?"),
    reason,
    h("p", { class: "hint" }, "It is recorded with the change."),
    typed === null ? null : [h("label", { for: "typed-name" }, `Type ${typed} to confirm`), name],
  );
  return done ?? false;
}

/**
 * Asks with a form in a dialog. `act()` does what was asked for; its errors are shown. Resolves to what it returns, or
 * to null if it was cancelled.
 *
 * @template T
 * @param {{title: string, label: string, danger?: boolean, first: HTMLElement, act: () => Promise<T>}} question
 * @param {any[]} fields
 * @returns {Promise<T | null>}
 */
export async function askInDialog({ title, label, danger = false, first, act }, ...fields) {
  /** @type {T | null} */
  let done = null;
  const problem = h("p", { class: "problem", role: "alert" });
  const button = h("button", { type: "submit", class: danger ? "danger" : "primary" }, label);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" });
  const form = h(
    "form",
    {
      on: {
        submit: async (event) => {
          event.preventDefault();
          problem.textContent = "";
          button.disabled = true;
          try {
            done = await act();
            dialog.close();
          } catch (error) {
            problem.textContent = error.message;
            button.disabled = false;
          }
        },
      },
    },
    h("h2", { id: "dialog-title" }, title),
    fields,
    problem,
    h(
      "div",
      { class: "actions" },
      button,
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"),
    ),
  );
  dialog.append(form);
  await opened(dialog, first);
  return done;
}

/**
 * Shows a dialog, with the focus on `first`. Resolves once it is closed, and gone.
 *
 * @param {HTMLDialogElement} dialog
 * @param {HTMLElement} first
 * @returns {Promise<void>}
 */
export function opened(dialog, first) {
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => (dialog.remove(), resolve()));
    document.body.append(dialog);
    dialog.showModal();
    first.focus();
  });
}

/**
 * Closes what lies over the page that is left: every dialog, but a new key's secret, which nothing else has, and the
 * meaning of a word. Resolves once whoever opened a dialog knows.
 */
export async function closeDialogs() {
  for (const shown of document.querySelectorAll(":popover-open")) if (shown instanceof HTMLElement) shown.hidePopover();
  /** @type {NodeListOf<HTMLDialogElement>} */
  const dialogs = document.querySelectorAll('dialog[open]:not([closedby="none"])');
  await Promise.all(
    [...dialogs].map(
      (dialog) =>
        new Promise((resolve) => {
          dialog.addEventListener("close", () => setTimeout(resolve));
          dialog.close();
        }),
    ),
  );
}

/**
 * Copies `text`. Where the browser does not allow that, selects `shown`, the element that has the text. Resolves to the
 * button's new label, and announces the result.
 *
 * @param {string} text
 * @param {Node} shown
 * @param {Announce} announce
 */
export async function copy(text, shown, announce) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
    return "Copied";
  } catch {
    getSelection()?.selectAllChildren(shown);
    announce("The browser does not allow copying. The text is selected: copy it with the keyboard.");
    return "Selected: press Ctrl+C";
  }
}

/**
 * A button that copies. `what()`: the text, and the element that has it.
 *
 * @param {string} label
 * @param {() => [string, Node]} what
 * @param {Announce} announce
 */
export function copyButton(label, what, announce) {
  const button = h(
    "button",
    {
      type: "button",
      class: "small",
      on: {
        click: async () => {
          button.textContent = await copy(...what(), announce);
          setTimeout(() => (button.textContent = label), 2000);
        },
      },
    },
    label,
  );
  return button;
}
