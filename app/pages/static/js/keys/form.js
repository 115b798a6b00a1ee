// The dialogs of a key: what it may do, and once, its secret.

import { h } from "../dom.js";
import { moment } from "../format.js";
import { copy, opened } from "../parts.js";

const DAYS = [7, 30, 90, 365];
/** @type {readonly (readonly [string, string])[]} */
const LIMITS = [
  ["requests_per_minute", "Requests per minute"],
  ["tokens_per_minute", "Tokens per minute"],
  ["concurrent_requests", "Requests at once"],
];

/**
 * Asks what a key may do. Resolves to what `act(wanted)` returns, or to null if it was cancelled.
 *
 * @param {KeyQuestion} question
 * @returns {Promise<any>}
 */
export function askForKey({ title, label, document: held, key, act }) {
  return new Promise((resolve) => {
    /** @type {any} */
    let done = null;
    const name = h("input", {
      id: "key-name",
      required: true,
      maxlength: "200",
      autocomplete: "off",
      spellcheck: "false",
      value: key?.name ?? "",
      disabled: key !== null,
    });
    const endpoints = held.endpoints.map((endpoint) =>
      h("input", {
        type: "checkbox",
        id: `key-endpoint-${endpoint}`,
        value: endpoint,
        checked: key?.endpoints?.includes(endpoint) ?? false,
      }),
    );
    const ends = h(
      "select",
      { id: "key-ends", value: key === null ? "90" : "as-now" },
      key === null ? null : h("option", { value: "as-now" }, `as now: ${moment(key.expires) ?? "never"}`),
      DAYS.map((days) => h("option", { value: String(days) }, `in ${days} days`)),
      h("option", { value: "" }, "never"),
    );
    const limits = LIMITS.map(([kind]) =>
      h("input", { type: "number", id: `key-${kind}`, min: "1", step: "1", value: key?.limits?.[kind] ?? "" }),
    );
    const reason = h("input", { id: "key-reason", maxlength: "300", autocomplete: "off" });
    const problem = h("p", { class: "problem", role: "alert" });
    const button = h("button", { type: "submit", class: "primary" }, label);
    const dialog = h("dialog", { "aria-labelledby": "key-title" });

    function wanted() {
      const chosen = endpoints.filter((box) => box.checked).map((box) => box.value);
      const own = LIMITS.flatMap(([kind], index) => (limits[index].value ? [[kind, Number(limits[index].value)]] : []));
      const days = Number(ends.value);
      return {
        ...(key === null ? { name: name.value.trim() } : {}),
        endpoints: chosen.length ? chosen : null,
        ...(ends.value === "as-now"
          ? {}
          : { expires: days ? new Date(Date.now() + days * 86_400_000).toISOString() : null }),
        limits: own.length ? Object.fromEntries(own) : null,
        ...(reason.value.trim() ? { reason: reason.value.trim() } : {}),
      };
    }

    const form = h(
      "form",
      {
        on: {
          submit: async (event) => {
            event.preventDefault();
            problem.textContent = "";
            button.disabled = true;
            try {
              done = await act(wanted());
              dialog.close();
            } catch (error) {
              problem.textContent = error.message;
              button.disabled = false;
            }
          },
        },
      },
      h("h2", { id: "key-title" }, title),
      h("label", { for: name.id }, "Name"),
      name,
      h("p", { class: "hint" }, "In logs, limits and roles. No other key has it."),
      h(
        "fieldset",
        {},
        h("legend", {}, "Endpoints"),
        endpoints.map((box) => h("label", { class: "check", for: box.id }, box, box.value)),
        h("p", { class: "hint" }, "None ticked: all, also those of the future."),
      ),
      h("label", { for: ends.id }, "Ends"),
      ends,
      LIMITS.map(([kind, words], index) => [h("label", { for: `key-${kind}` }, words), limits[index]]),
      h("p", { class: "hint" }, "Left out: the limits of the configuration."),
      h("label", { for: reason.id }, "Why? (for the audit log)"),
      reason,
      problem,
      h(
        "div",
        { class: "actions" },
        button,
        h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"),
      ),
    );
    dialog.append(form);
    opened(dialog, key === null ? name : reason).then(() => resolve(done));
  });
}

/**
 * Shows a new key's secret, which nothing else has. Resolves once "Done" is pressed: Escape does not close the dialog,
 * and leaving the page asks first.
 *
 * @param {{name: string, key: string}} created
 * @param {Announce} announce
 * @returns {Promise<void>}
 */
export function showSecret({ name, key }, announce) {
  const secret = h("code", { class: "secret", tabindex: "0" }, key);
  const button = h("button", { type: "button", class: "primary" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = await copy(key, secret, announce);
  });
  const shown = new AbortController();
  addEventListener("beforeunload", (event) => event.preventDefault(), { signal: shown.signal });
  const dialog = h("dialog", {
    "aria-labelledby": "secret-title",
    closedby: "none", // and for browsers that do not know it:
    on: { keydown: (event) => event.key === "Escape" && event.preventDefault() },
  });
  dialog.append(
    h("h2", { id: "secret-title" }, `The key of ${name}`),
    h("p", {}, "This is the only time that it is shown: the server keeps a hash. It works on every router in seconds."),
    h("p", { class: "hint" }, "It stays here until you press Done."),
    secret,
    h(
      "div",
      { class: "actions" },
      button,
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Done"),
    ),
  );
  return opened(dialog, button).finally(() => shown.abort());
}
