// The bars above and below each page, which say what this server is, and who the visitor is.

import { find } from "./dom.js";
import { themed } from "./theme.js";

/** Lets the theme be chosen, and the first link lead to the content. */
export function framed() {
  themed(find(document, "#theme"));
  find(document, ".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash is a page's address
    find(document, "main").focus();
  });
}

/**
 * Shows what the server says of itself and of the visitor, if it says that to them, and the pages that they may open.
 *
 * @param {Me | null} me
 */
export function describe(me) {
  const who = find(document, "#who");
  who.hidden = me === null;
  who.textContent = me === null ? "" : `${me.caller} · ${role(me)}`;
  who.title = "You, your rights and your limits";
  find(document, 'nav a[href$="#/models"]').hidden = !(me?.views || me?.operates.length);
  find(document, 'nav a[href$="#/audit"]').hidden = !me?.views;
  const { version = null, environment = null, docs_url = null } = me?.server ?? {};
  find(document, "#version").textContent = `Switchyard ${version ?? ""}`;
  const name = find(document, "#environment");
  name.hidden = environment === null;
  name.textContent = environment ?? "";
  const documentation = find(document, "#documentation");
  documentation.hidden = docs_url === null;
  documentation.setAttribute("href", docs_url ?? "");
}

/** @param {Me} me */
function role({ manages, operates, views }) {
  if (manages) return "manager";
  return [operates.length && "operator", views && "viewer"].filter(Boolean).join(", ") || "caller";
}
