// Signing in: with a key, or with an OpenID Connect issuer if this server has one for the console: authorization code
// with PKCE (RFC 7636, RFC 9700), as a public client. `askForKey` shows the dialog, whose button redirects to the
// issuer; `returned` and `exchange` handle the redirect back. The state in sessionStorage between them is used once.
// The token is returned to the caller and stored nowhere.

import { find, h } from "./dom.js";
import { opened } from "./parts.js";

/**
 * The ways to sign in: the server's `{credentials, oidc}`. If they are unknown, a key may still work.
 *
 * @returns {Promise<Ways>}
 */
export async function waysToSignIn() {
  try {
    const response = await fetch("/ui/sign-in", { credentials: "omit", cache: "no-store" });
    if (response.ok) return await response.json();
  } catch {
    // The dialog then asks only for a key.
  }
  return { credentials: true, required: null, oidc: null };
}

/** @type {Promise<Ways> | null} */
let known = null;

/** Whether this server answers nothing without a key: false where that is not known. It is asked once per visit. */
export async function isKeyRequired() {
  known ??= waysToSignIn();
  const { required } = await known;
  if (required === null) known = null;
  return required ?? false;
}

/**
 * Asks for a key in a dialog. Resolves to `{key, stored}`, or null if the visitor cancels.
 *
 * @param {string} message
 * @returns {Promise<GivenKey | null>}
 */
export async function askForKey(message) {
  const { credentials, oidc } = await waysToSignIn();
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "sign-in-title" });
    dialog.append(
      h("h2", { id: "sign-in-title" }, "Sign in"),
      h(
        "p",
        { class: message ? "problem" : "hint", role: message ? "alert" : null },
        message || hint(credentials, oidc),
      ),
      ...(oidc ? [withIssuer(oidc)] : []),
      credentials
        ? keyForm(
            oidc,
            (given) => (resolve(given), dialog.close()),
            () => dialog.close(),
          )
        : h("div", { class: "actions" }, h("button", { type: "button", on: { click: () => dialog.close() } }, "Close")),
    );
    opened(dialog, find(dialog, ".issuer button:not(:disabled), input, button")).then(() => resolve(null));
  });
}

/**
 * @param {boolean} credentials
 * @param {Oidc | null} oidc
 */
function hint(credentials, oidc) {
  if (!credentials) return "Not needed: this server does not check keys.";
  return oidc ? "This server requires you to sign in." : "This server requires an API key.";
}

/** @param {Oidc} oidc */
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

/**
 * @param {Oidc | null} oidc
 * @param {(given: GivenKey) => void} give
 * @param {() => void} cancel
 */
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

const PENDING = "switchyard-sign-in";
const TIMEOUT_MS = 20_000;

/** A failed sign-in, with a message for the visitor. */
class SignInError extends Error {}

/**
 * Redirects to the issuer, which redirects back to this page. `oidc`: from `GET /ui/sign-in`.
 *
 * @param {Oidc} oidc
 */
async function begin(oidc) {
  const pending = { state: random(), nonce: random(), verifier: random(), hash: location.hash };
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(pending.verifier));
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  const url = new URL(oidc.authorization_endpoint);
  const fields = {
    ...oidc.parameters,
    response_type: "code",
    client_id: oidc.client_id,
    redirect_uri: redirectUri(),
    scope: oidc.scope,
    state: pending.state,
    nonce: pending.nonce,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(fields)) url.searchParams.set(name, value);
  location.assign(url);
}

/**
 * An issuer's redirect, for `exchange`; null if there was none. Clears it from the address and the storage.
 *
 * @returns {Redirected | null}
 */
export function returned() {
  const stored = sessionStorage.getItem(PENDING);
  sessionStorage.removeItem(PENDING);
  const fields = Object.fromEntries(new URLSearchParams(location.search));
  if (!("code" in fields || "error" in fields)) return null;
  const pending = stored === null ? null : parsed(stored);
  history.replaceState(null, "", `/ui${pending?.hash ?? ""}`);
  return { fields, pending };
}

/**
 * Exchanges the code for a token: `{token, lifetime_s}`. Throws SignInError.
 *
 * @param {Oidc | null} oidc
 * @param {Redirected} redirected
 */
export async function exchange(oidc, { fields, pending }) {
  if (pending === null || fields.state !== pending.state)
    throw new SignInError(
      "This sign-in was not started in this tab, or has already ended. Nothing was sent. Please sign in again.",
    );
  if (!oidc?.token_endpoint)
    throw new SignInError("The issuer cannot be reached at the moment. Please try again shortly.");
  if (fields.iss !== undefined ? fields.iss !== oidc.issuer : oidc.names_itself)
    throw new SignInError(
      "The answer to this sign-in does not come from the issuer that this server trusts. Nothing was sent.",
    );
  if (fields.error !== undefined) throw new SignInError(`The issuer did not sign you in: ${reason(fields)}`);
  const answer = await redeemed(oidc.token_endpoint, oidc, fields.code, pending.verifier);
  if (String(answer.token_type).toLowerCase() !== "bearer")
    throw new SignInError("The issuer's answer has no bearer token.");
  if (oidc.scope.split(" ").includes("openid")) checkIdentity(answer.id_token, oidc, pending.nonce);
  const token = answer[oidc.token],
    claims = claimsOf(token);
  if (claims === null)
    throw new SignInError(
      `The issuer's ${oidc.token.replace("_", " ")} is not a JWT, so this server cannot check it. ` +
        "Its operator can change `access.oidc.console`.",
    );
  return { token, lifetime_s: lifetime(oidc, answer, claims) };
}

/**
 * @param {string} endpoint
 * @param {Oidc} oidc
 * @param {string} code
 * @param {string} verifier
 * @returns {Promise<any>}
 */
async function redeemed(endpoint, oidc, code, verifier) {
  let response, answer;
  try {
    response = await fetch(endpoint, {
      method: "POST",
      body: new URLSearchParams({
        grant_type: "authorization_code",
        code,
        redirect_uri: redirectUri(),
        client_id: oidc.client_id,
        code_verifier: verifier,
      }),
      credentials: "omit",
      redirect: "error",
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    answer = await response.json();
  } catch {
    if (response === undefined)
      throw new SignInError(
        "The issuer's token endpoint cannot be reached from this page. " +
          `It must be up, and allow requests of ${location.origin}.`,
      );
    throw new SignInError(`The issuer's token endpoint answered ${response.status} without JSON.`);
  }
  if (!response.ok) throw new SignInError(`The issuer did not sign you in: ${reason(answer)}`);
  return answer;
}

/**
 * OpenID Connect Core 1.0, section 3.1.3.7. The signature needs no check: the token came from the issuer over TLS.
 *
 * @param {unknown} token
 * @param {Oidc} oidc
 * @param {string} nonce
 */
function checkIdentity(token, oidc, nonce) {
  const claims = claimsOf(token);
  if (claims === null) throw new SignInError("The issuer's answer has no ID token.");
  const isOurs =
    claims.iss === oidc.issuer &&
    [claims.aud].flat().includes(oidc.client_id) &&
    (claims.azp === undefined || claims.azp === oidc.client_id);
  if (!isOurs) throw new SignInError("The issuer's ID token was issued to another client.");
  if (claims.nonce !== nonce)
    throw new SignInError("The issuer's ID token belongs to another sign-in. Please sign in again.");
}

/**
 * In seconds from now, null if unknown. Computed from the issuer's clock alone: this machine's may be wrong.
 *
 * @param {Oidc} oidc
 * @param {{expires_in?: unknown}} answer
 * @param {{exp?: unknown, iat?: unknown}} claims
 * @returns {number | null}
 */
function lifetime(oidc, answer, { exp, iat }) {
  if (oidc.token === "access_token" && typeof answer.expires_in === "number") return answer.expires_in;
  if (typeof exp !== "number") return null;
  return exp - (typeof iat === "number" ? iat : Date.now() / 1000);
}

/**
 * The claims of a JWT; null if `token` is not one.
 *
 * @param {unknown} token
 * @returns {Record<string, any> | null}
 */
function claimsOf(token) {
  if (typeof token !== "string" || token.split(".").length !== 3) return null;
  try {
    const bytes = Uint8Array.from(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")), (character) =>
      character.charCodeAt(0),
    );
    return parsed(new TextDecoder().decode(bytes));
  } catch {
    return null;
  }
}

/** @param {Record<string, string>} fields */
function reason({ error, error_description: description }) {
  const words = error === "access_denied" ? "access denied" : (error ?? "no reason given");
  return description ? `${words} (${description}).` : `${words}.`;
}

/**
 * @param {string} text
 * @returns {any}
 */
function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}

const redirectUri = () => `${location.origin}/ui`;
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
/** @param {Uint8Array} bytes */
const base64url = (bytes) =>
  btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
