// The bars above and below each page, which say what this server is, and who the visitor is; and the theme.

import { find, h } from "./dom.js";

const STORED = "switchyard-theme";
/** @type {Record<string, string>} */
const NAMES = { "": "Auto", light: "Light", dark: "Dark" };
const THEMES = Object.keys(NAMES);

/** The event of the document after a change: what scripts have painted must be painted again. */
export const CHANGED = "themechange";

/** "light", "dark", or "" for the system's. */
function chosen() {
  const stored = localStorage.getItem(STORED) ?? "";
  return stored in NAMES ? stored : "";
}

export function isDark() {
  return chosen() === "dark" || (chosen() === "" && matchMedia("(prefers-color-scheme: dark)").matches);
}

/**
 * Applies the theme, and lets `button` change it.
 *
 * @param {HTMLElement} button
 */
function themed(button) {
  function draw() {
    const name = NAMES[chosen()];
    document.documentElement.style.colorScheme = chosen() || "light dark";
    const icon = document.createElement("span");
    icon.className = "half";
    const label = document.createElement("span");
    label.textContent = name;
    button.replaceChildren(icon, label);
    button.setAttribute("aria-label", `Theme: ${name}`);
    document.dispatchEvent(new Event(CHANGED));
  }
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
    if (next) localStorage.setItem(STORED, next);
    else localStorage.removeItem(STORED);
    draw();
  });
  draw();
}

const PAGES = new Set(["/ui", "/docs"]); // the console, and the API's page

/**
 * Lets the theme be chosen, and the first link lead to the content. Between the console and the API's page the key goes
 * along, in the same tab.
 *
 * @param {{passOn: () => void}} api
 */
export function framed(api) {
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    const isElsewhere = event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
    if (link === null || link.target || link.origin !== location.origin || isElsewhere) return;
    if (PAGES.has(link.pathname) && link.pathname !== location.pathname) api.passOn();
  });
  themed(find(document, "#theme"));
  find(document, ".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash is a page's address
    find(document, "main").focus();
  });
}

const ENVIRONMENT = "switchyard-environment"; // the item of sessionStorage with the name that the server has told

/**
 * Shows what the server says of itself and of the visitor, if it says that to them, and the pages that they may open.
 *
 * @param {Me | null} me
 */
export function describe(me) {
  const who = find(document, "#who");
  who.hidden = me === null;
  who.replaceChildren(
    ...(me === null ? [] : [h("span", { class: "caller" }, me.caller), h("span", { class: "role" }, ` · ${role(me)}`)]),
  );
  who.title = me === null ? "" : `${me.caller} · ${role(me)}: your rights and your limits`;
  find(document, 'nav a[href$="#/models"]').hidden = !(me?.views || me?.operates.length);
  find(document, 'nav a[href$="#/audit"]').hidden = !me?.views;
  const { version = null, environment = null, docs_url = null } = me?.server ?? {};
  find(document, "#version").textContent = `Switchyard ${version ?? ""}`;
  const documentation = find(document, "#documentation");
  documentation.textContent = docs_url === null ? "API documentation" : "Documentation";
  documentation.setAttribute("href", docs_url ?? "/docs");
  if (environment === null) sessionStorage.removeItem(ENVIRONMENT);
  else sessionStorage.setItem(ENVIRONMENT, environment);
  nameEnvironment();
}

/** Shows the environment's name, as this tab knows it: also on a page to which the visitor's key did not come. */
export function nameEnvironment() {
  const environment = sessionStorage.getItem(ENVIRONMENT);
  const name = find(document, "#environment");
  name.hidden = environment === null;
  name.textContent = environment ?? "";
  name.title = `Environment: ${environment}`;
}

/** @param {Me} me */
function role({ manages, operates, views }) {
  if (manages) return "manager";
  return [operates.length && "operator", views && "viewer"].filter(Boolean).join(", ") || "caller";
}
