// The shell: routing, sign-in, and announcements to screen readers.

import { Api, load } from "./api.js";
import { find, h } from "./dom.js";
import { describe, framed } from "./frame.js";
import { AGAIN, closeDialogs, notice } from "./parts.js";
import { askForKey, exchange, isKeyRequired, returned, waysToSignIn } from "./sign_in.js";

const PAGES = new Set(["traffic", "experiments", "models", "playground", "requests", "keys", "audit", "glossary"]);
const NAMED = new Set(["experiments", "requests"]); // whose addresses may go on with a name
const main = find(document, "#main");
const announcements = find(document, "#announcements");
const button = find(document, "#sign-in");
let canSignIn = false; // most servers on a developer's machine know no callers

async function signIn(message = "") {
  canSignIn = true;
  drawButton();
  for (let why = message; ;) {
    const answer = await askForKey(why);
    if (answer === null) return false;
    api.useKey(answer.key, answer.stored);
    const refusal = await api.whyRefused();
    if (refusal === null) break;
    why = refusal;
  }
  drawButton();
  drawFrame();
  return true;
}

const api = new Api(
  signIn,
  (message) => {
    drawButton();
    if (message) announce(message);
  },
  isKeyRequired,
);

/**
 * Completes a sign-in after the issuer's redirect.
 *
 * @param {Redirected} back
 */
async function finishSignIn(back) {
  main.replaceChildren(h("p", { class: "hint" }, "Signing in …"));
  try {
    const { token, lifetime_s } = await exchange((await waysToSignIn()).oidc, back);
    api.useToken(token, lifetime_s);
    drawButton();
    drawFrame();
    announce("Signed in");
  } catch (error) {
    api.ask(error.message).then((isSignedIn) => void (isSignedIn && show()));
  }
}

function drawButton() {
  button.textContent = api.hasKey ? "Sign out" : "Sign in";
  button.hidden = !(api.hasKey || canSignIn);
}

/** @type {() => void} */
let endFrame = () => {};

/** The page below says why nothing can be read. A server that fails is asked again: the menu depends on its answer. */
function drawFrame() {
  endFrame();
  const end = poll(
    async (signal) => {
      describe(await api.get("/api/me", { signal }));
      end();
    },
    {
      failed(error) {
        const { status } = /** @type {ApiError} */ (error);
        if (status === 401 || status === 403) end();
        describe(null);
      },
    },
  );
  endFrame = end;
}

button.addEventListener("click", async () => {
  if (api.hasKey) {
    const withIssuer = api.isSignedInWithIssuer;
    endFrame();
    api.signOut();
    drawButton();
    describe(null);
    announce(withIssuer ? "Signed out of this page. You may still be signed in with your issuer." : "Signed out");
    await show();
  } else if (await api.ask("")) await show();
});

/**
 * Announces a text to screen readers.
 *
 * @param {string} text
 */
export function announce(text) {
  announcements.textContent = "";
  requestAnimationFrame(() => (announcements.textContent = text));
}

/** @param {string} hash */
function navigate(hash) {
  if (location.hash === hash) show();
  else location.hash = hash;
}

const LATE_MS = 5000; // an answer takes milliseconds, the report of a large experiment some seconds
const lateness = h(
  "div",
  { role: "alert", hidden: true },
  notice("warn", "The server has not answered for more than 5 s: what this page shows may be old."),
);
let late = 0;

/**
 * Says on every page that the server does not answer, long before the browser gives an answer up.
 *
 * @param {number} more Tasks that wait for long.
 */
function waits(more) {
  late += more;
  lateness.hidden = late === 0 || document.querySelector("dialog[open]") !== null; // which waits for the visitor
}

/**
 * Calls `task` now, then again `every` milliseconds after each run has ended, but not while the page is hidden.
 * Returns a function that stops it. `task` gets an AbortSignal that stopping aborts; `failed` gets what it throws.
 *
 * @type {Poll}
 */
function poll(task, { every = 2000, failed = () => {} } = {}) {
  const ended = new AbortController();
  /** @type {number | undefined} */
  let timer;
  let running = false;

  async function run() {
    clearTimeout(timer);
    if (running || document.hidden || ended.signal.aborted) return;
    running = true;
    let isLate = false;
    const patience = setTimeout(() => {
      isLate = true;
      waits(1);
    }, LATE_MS);
    try {
      await task(ended.signal);
    } catch (error) {
      if (!ended.signal.aborted) failed(error);
    }
    clearTimeout(patience);
    if (isLate) waits(-1);
    running = false;
    if (!ended.signal.aborted) timer = setTimeout(run, every);
  }

  document.addEventListener("visibilitychange", run, { signal: ended.signal });
  run();
  return () => {
    clearTimeout(timer);
    ended.abort();
  };
}

/**
 * The route of a hash: the page's module, and the names and parameters after it.
 *
 * @param {string} hash
 */
function route(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  let names;
  try {
    names = rest.filter(Boolean).map(decodeURIComponent);
  } catch {
    return null;
  }
  const parameters = Object.fromEntries(new URLSearchParams(query));
  if (page === "") return { module: "traffic", page: "traffic", names: [], parameters };
  if (!PAGES.has(page) || names.length > Number(NAMED.has(page))) return null;
  return { module: page === "experiments" && names.length ? "experiment" : page, page, names, parameters };
}

/** @param {string} name */
const titled = (name) => `${name} · Switchyard`;

/** @type {(() => void) | null} */
let unmount = null;
let shown = 0;

async function show() {
  const turn = ++shown;
  unmount?.();
  unmount = null;
  api.begin();
  const matched = route(location.hash);
  for (const link of document.querySelectorAll("nav a")) {
    if (matched && link.getAttribute("href") === `#/${matched.page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const root = h("div", { class: `page page-${matched?.module ?? "none"}` });
  if (matched === null) {
    document.title = titled("Page not found");
    root.append(h("h1", {}, "Page not found"), h("p", {}, h("a", { href: "#/traffic" }, "Traffic")));
    main.replaceChildren(lateness, root);
    return;
  }
  const script = `pages/${matched.module}.js`;
  let isLoaded = false;
  try {
    /** @type {PageModule} */
    const page = await load(script);
    isLoaded = true;
    if (turn !== shown) return;
    document.title = titled(matched.names[0] ?? page.title);
    main.replaceChildren(lateness, root);
    if (turn > 1) main.focus({ preventScroll: true }); // not at the start: the first Tab goes to the first link
    const context = { api, poll, announce, navigate, names: matched.names, parameters: matched.parameters };
    const ended = await page.mount(root, context);
    if (turn === shown) unmount = ended;
    else ended?.();
  } catch (error) {
    const isUp = await answers();
    if (turn === shown) notShown(root, isUp ? error.message : null, isLoaded ? null : script);
  }
}

/**
 * Says why a page cannot be shown, until it can.
 *
 * @param {HTMLElement} root
 * @param {string | null} problem null: the server does not answer.
 * @param {string | null} missing The script that did not load.
 */
function notShown(root, problem, missing) {
  const heading = problem === null ? "The server does not answer" : "This page cannot be shown";
  document.title = titled(heading);
  root.replaceChildren(
    h("h1", {}, heading),
    h(
      "p",
      { class: "problem", role: "alert" },
      problem === null ? "It may be stopped, or starting. This page appears as soon as it answers." : problem,
      problem !== null && missing !== null ? ` ${AGAIN}` : "",
    ),
  );
  main.replaceChildren(lateness, root);
  if (problem !== null && missing === null) return;
  unmount = poll(async (signal) => {
    if (missing !== null) await load(missing);
    else if (!(await answers(signal))) return;
    await show();
  });
}

/**
 * Whether the server answers.
 *
 * @param {AbortSignal} [signal]
 */
async function answers(signal) {
  try {
    return (await fetch("/health", { signal, credentials: "omit", cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

window.addEventListener("hashchange", async () => {
  // The last announcement was about the previous page.
  announcements.textContent = "";
  window.scrollTo(0, 0);
  await closeDialogs();
  show();
});
framed(api);
drawButton();
waysToSignIn().then(({ credentials, required, oidc }) => {
  if (api.hasKey || required === false) drawFrame(); // the page asks for a key, not the frame
  canSignIn ||= credentials || oidc !== null;
  drawButton();
});
const back = returned();
if (back !== null) await finishSignIn(back);
show();
