// The API's page: Swagger UI, in the console's theme, with examples for this server's endpoints.

import { Api } from "/ui/static/js/api.js";
import { CHANGED, describe, framed, isDark, nameEnvironment } from "/ui/static/js/frame.js";
import { isKeyRequired, waysToSignIn } from "/ui/static/js/sign_in.js";

const SPECIFICATION = "/openapi.json";

const dark = () => document.documentElement.classList.toggle("dark-mode", isDark());
document.addEventListener(CHANGED, dark);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dark);
document.querySelector('nav a[href="/docs"]')?.setAttribute("aria-current", "page");

const api = new Api(
  async () => false,
  () => {},
  isKeyRequired,
);
framed(api);

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

// Swagger UI does not know ranges of statuses, and calls a 404 undocumented where the document says 4XX.
const rangesOfStatuses = () => ({
  wrapComponents: {
    liveResponse:
      (/** @type {unknown} */ Original, /** @type {{React: any}} */ { React }) =>
      (/** @type {any} */ props) => {
        const { response, path, method, specSelectors } = props;
        const range = `${String(response.get("status"))[0]}XX`;
        const isKnown = specSelectors.specJson().hasIn(["paths", path, method, "responses", range]);
        return React.createElement(
          Original,
          isKnown ? { ...props, response: response.set("notDocumented", false) } : props,
        );
      },
  },
});

/** @type {Record<string, string>} */
let typed = {}; // the headers of the keys that the visitor has typed here

/**
 * The headers of these keys.
 *
 * @param {any} authorized As Swagger UI has them.
 */
function headersOf(authorized) {
  /** @type {Record<string, string>} */
  const headers = {};
  for (const { schema, value } of Object.values(authorized?.toJS() ?? {}))
    if (schema.type === "apiKey") headers[schema.name] = value;
    else headers.Authorization = `Bearer ${value}`;
  return headers;
}

// The examples are those of the key: they are read again with another one.
const examplesOfTheKey = () => {
  const wrap =
    (/** @type {Function} */ original, /** @type {any} */ system) =>
    (/** @type {unknown[]} */ ...given) => {
      const done = original(...given);
      typed = headersOf(system.authSelectors.authorized());
      system.specActions.download(SPECIFICATION);
      return done;
    };
  return {
    statePlugins: {
      auth: { wrapActions: { authorize: wrap, logout: wrap } },
      spec: { wrapActions: { updateJsonSpec: renamed } },
    },
  };
};

/** @param {any} operation Of a document, as plain data. */
const exampleOf = (operation) => operation.requestBody?.content?.["application/json"]?.example;

/**
 * Replaces in the forms what the document before had as examples, and the visitor has left as it was.
 *
 * @param {Function} original
 * @param {any} system
 */
function renamed(original, system) {
  return (/** @type {any} */ document) => {
    const { specSelectors, specActions, oas3Selectors, oas3Actions } = system;
    const before = specSelectors.specJson().toJS().paths ?? {};
    original(document);
    for (const [path, methods] of Object.entries(document.paths ?? {}))
      for (const [method, operation] of Object.entries(methods)) {
        const [former, pathMethod] = [before[path]?.[method], [path, method]];
        if (former === undefined) continue;
        if (isText(exampleOf(former), oas3Selectors.requestBodyValue(...pathMethod)))
          oas3Actions.setRequestBodyValue({ value: JSON.stringify(exampleOf(operation), null, 2), pathMethod });
        for (const parameter of operation.parameters ?? []) {
          const old = former.parameters.find((/** @type {any} */ one) => one.name === parameter.name)?.example;
          const value = old && specSelectors.parameterValues(pathMethod).get(`${parameter.in}.${parameter.name}`);
          if (value === old && value !== parameter.example)
            specActions.changeParam(pathMethod, parameter.name, parameter.in, parameter.example, false);
        }
      }
  };
}

/**
 * Whether the text is this example.
 *
 * @param {unknown} example
 * @param {unknown} text
 */
function isText(example, text) {
  if (example === undefined || typeof text !== "string") return false;
  try {
    return JSON.stringify(JSON.parse(text)) === JSON.stringify(example);
  } catch {
    return false; // the visitor is writing
  }
}

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
  // The title is followed by headings of the third level: each counts as one of the level above.
  for (const level of [3, 4, 5])
    for (const heading of document.querySelectorAll(`#main h${level}:not([aria-level])`))
      heading.setAttribute("aria-level", String(level - 1));
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
  url: SPECIFICATION,
  plugins: [plainPaths, rangesOfStatuses, examplesOfTheKey],
  // Examples name the endpoints of the key that the tab keeps, and are sent with it; the command for curl hides it.
  requestInterceptor(/** @type {{headers: Record<string, string>, loadSpec?: boolean}} */ request) {
    const { authorization } = api;
    const own = Object.keys(typed).length > 0;
    if (request.loadSpec && own) Object.assign(request.headers, typed);
    if (authorization !== null && !own) request.headers = { Authorization: authorization, ...request.headers };
    return request;
  },
  showMutatedRequest: false,
  dom_id: "#main",
  deepLinking: true,
  docExpansion: "none",
  tryItOutEnabled: true,
  validatorUrl: null,
});
