// The sign-in dialog: with the issuer, if this server has one for the console, or with a key.

import { h } from "../dom.js";
import { begin } from "./issuer.js";

/** The ways to sign in: the server's `{credentials, oidc}`. If they are unknown, a key may still work. */
export async function waysToSignIn() {
  try {
    const response = await fetch("/ui/sign-in", { credentials: "omit", cache: "no-store" });
    if (response.ok) return await response.json();
  } catch {
    // The dialog then asks only for a key.
  }
  return { credentials: true, oidc: null };
}

/** Asks for a key in a dialog. Resolves to `{key, stored}`, or null if the visitor cancels. */
export async function askForKey(message) {
  const { credentials, oidc } = await waysToSignIn();
  return new Promise((resolve) => {
    let answer = null;
    const dialog = h(
      "dialog",
      { "aria-labelledby": "sign-in-title", on: { close: () => (dialog.remove(), resolve(answer)) } },
      h("h2", { id: "sign-in-title" }, "Sign in"),
      h(
        "p",
        { class: message ? "problem" : "hint", role: message ? "alert" : null },
        message || hint(credentials, oidc),
      ),
      oidc ? withIssuer(oidc) : null,
      credentials
        ? keyForm(
            oidc,
            (given) => ((answer = given), dialog.close()),
            () => dialog.close(),
          )
        : h("div", { class: "actions" }, h("button", { type: "button", on: { click: () => dialog.close() } }, "Close")),
    );
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector(".issuer button:not(:disabled), input, button").focus();
  });
}

function hint(credentials, oidc) {
  if (!credentials) return "Not needed: this server does not check keys.";
  return oidc ? "This server requires you to sign in." : "This server requires an API key.";
}

function withIssuer(oidc) {
  const where = new URL(oidc.issuer).host;
  const problem = h("p", { class: "problem", role: "alert" });
  const why = !oidc.token_endpoint
    ? `${where} does not answer this server at the moment, or does not offer what the console needs.`
    : !isSecureContext
      ? "To sign in with an issuer this page must be opened over https, or from the server's own machine."
      : null;
  const button = h(
    "button",
    {
      type: "button",
      class: "primary",
      disabled: why !== null,
      on: {
        click: async () => {
          button.disabled = true;
          try {
            await begin(oidc);
          } catch (error) {
            problem.textContent = error.message;
            button.disabled = false;
          }
        },
      },
    },
    `Sign in with ${where}`,
  );
  return h(
    "div",
    { class: "issuer" },
    button,
    h(
      "p",
      { class: "hint" },
      why ?? "You will leave this page and return to it. What you have typed here will be lost.",
    ),
    problem,
  );
}

function keyForm(oidc, give, cancel) {
  const key = h("input", {
    type: "password",
    id: "key",
    name: "key",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
  });
  const stored = h("input", { type: "checkbox", id: "stored" });
  return h(
    "form",
    {
      on: {
        submit: (event) => {
          event.preventDefault(); // nothing is sent here: the key goes into the next request's header
          give({ key: key.value.trim(), stored: stored.checked });
        },
      },
    },
    h("label", { for: "key" }, oidc ? "Or with an API key" : "API key"),
    key,
    h("label", { class: "check" }, stored, " Keep it until this tab is closed"),
    h("p", { class: "hint" }, "The key stays in this page. It is sent to this server only, with each request."),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "submit", class: oidc ? null : "primary" }, oidc ? "Use the key" : "Sign in"),
      h("button", { type: "button", on: { click: cancel } }, "Cancel"),
    ),
  );
}
