// The API's page: Swagger UI, in the console's theme, with examples for this server's endpoints.

import { Api } from "/ui/static/js/api.js";
import { describe, framed, nameEnvironment } from "/ui/static/js/frame.js";
import { isKeyRequired, waysToSignIn } from "/ui/static/js/sign_in.js";
import { CHANGED, isDark } from "/ui/static/js/theme.js";

const dark = () => document.documentElement.classList.toggle("dark-mode", isDark());
document.addEventListener(CHANGED, dark);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dark);
framed();
document.querySelector('nav a[href="/docs"]')?.setAttribute("aria-current", "page");

const api = new Api(
  async () => false,
  () => {},
  isKeyRequired,
);

/**
 * Who the visitor is, with the key that the tab keeps; null without one.
 *
 * @returns {Promise<Me | null>}
 */
async function visitor() {
  const isKnown = api.hasKey || (await waysToSignIn()).required === false;
  return isKnown ? api.get("/api/me").catch(() => null) : null;
}

// An operation's line is a button: keyboards cannot reach the link that Swagger UI puts inside it.
/** @param {{React: any}} system */
const plainPaths = ({ React }) => ({
  wrapComponents: {
    DeepLink: (/** @type {unknown} */ Original) => (/** @type {{path: string, text: string}} */ props) =>
      props.path.includes("/") ? React.createElement("span", null, props.text) : React.createElement(Original, props),
  },
});
/** Names what Swagger UI leaves without a name, and lets keyboards scroll what scrolls. */
function labelled() {
  /** @type {[string, string, string][]} */
  const missing = [
    ["#servers", "aria-label", "Server"],
    [".body-param__text", "aria-label", "Body"],
    [".copy-to-clipboard button", "aria-label", "Copy"],
    ["pre.microlight", "tabindex", "0"],
    [".close-modal", "aria-label", "Close"],
  ];
  for (const [selector, attribute, value] of missing)
    for (const element of document.querySelectorAll(`${selector}:not([${attribute}])`))
      element.setAttribute(attribute, value);
  for (const select of document.querySelectorAll("[data-param-name] select"))
    select.setAttribute("aria-label", select.closest("tr")?.dataset.paramName ?? "");
  // These buttons say other words than their labels do.
  for (const button of document.querySelectorAll(".auth-btn-wrapper button")) button.removeAttribute("aria-label");
}
/** Takes away ids that several elements have: a label's that is its field's, and those of the fields for keys. */
function distinguished() {
  for (const label of document.querySelectorAll("label[id]:has(select[id])")) label.removeAttribute("id");
  document.querySelectorAll(".auth-container").forEach((container, index) => {
    const label = container.querySelector("label[for=api_key_value]");
    const field = container.querySelector("#api_key_value");
    if (label === null || field === null) return;
    field.id = `api_key_value-${index}`;
    label.setAttribute("for", field.id);
  });
}
// Swagger UI has no event for what it draws, which may be long after a click: at an answer.
new MutationObserver(() => {
  labelled();
  distinguished();
}).observe(document.body, { childList: true, subtree: true });

const me = await visitor();
if (me === null) nameEnvironment();
else describe(me);
SwaggerUIBundle({
  url: "/openapi.json",
  plugins: [plainPaths],
  // Examples name the endpoints of the key that the tab keeps, and are sent with it; the command for curl hides it.
  requestInterceptor(/** @type {{headers: Record<string, string>}} */ request) {
    const { authorization } = api;
    if (authorization !== null) request.headers = { Authorization: authorization, ...request.headers };
    return request;
  },
  showMutatedRequest: false,
  dom_id: "#main",
  deepLinking: true,
  docExpansion: "none",
  tryItOutEnabled: true,
  validatorUrl: null,
});
