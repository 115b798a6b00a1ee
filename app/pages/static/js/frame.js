// The bars above and below each page, which say what this server is, and who the visitor is.

import { find, h } from "./dom.js";
import { themed } from "./theme.js";

/** Lets the theme be chosen, and the first link lead to the content. */
export function framed() {
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
