import { h } from "./dom.js";

/** Asks for a key in a dialog. Resolves to `{key, stored}`, or null if the visitor does not give one. */
export function askForKey(message) {
  return new Promise((resolve) => {
    const key = h("input", { type: "password", id: "key", name: "key", autocomplete: "off", spellcheck: "false", required: true });
    const stored = h("input", { type: "checkbox", id: "stored" });
    let answer = null;
    const form = h(
      "form",
      {
        on: {
          submit: (event) => {
            event.preventDefault(); // nothing is sent here: the key goes into the next request's header
            answer = { key: key.value.trim(), stored: stored.checked };
            dialog.close();
          },
        },
      },
      h("h2", { id: "sign-in-title" }, "Sign in"),
      h("p", { class: message ? "problem" : "hint", role: message ? "alert" : null }, message || "This server asks for an API key."),
      h("label", { for: "key" }, "API key"),
      key,
      h("label", { class: "check" }, stored, " Keep it until this tab is closed"),
      h("p", { class: "hint" }, "The key stays in this page. It is sent to this server only, with each request."),
      h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Sign in"), h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel")),
    );
    const dialog = h("dialog", { "aria-labelledby": "sign-in-title", on: { close: () => (dialog.remove(), resolve(answer)) } }, form);
    document.body.append(dialog);
    dialog.showModal();
    key.focus();
  });
}
