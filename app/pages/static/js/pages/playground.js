// A conversation with an endpoint: with all its deployments side by side, or with the one that the traffic chooses.

import { load } from "../api.js";
import { h } from "../dom.js";
import { staleness, term } from "../parts.js";
import { TASKS } from "../playground/request.js";

export const title = "Playground";

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, context) {
  root.append(
    h("h1", {}, title),
    h(
      "p",
      { class: "hint" },
      "Talk to an ",
      term("endpoint"),
      ", or compare its ",
      term("deployment", "deployments"),
      " side by side.",
    ),
  );
  const stale = staleness();
  const shown = h("div", {});
  root.append(stale.element, shown);
  let leave = () => {};
  const end = context.poll(
    async (signal) => {
      /** @type {Me} */
      const me = await context.api.get("/api/me", { signal });
      const left = await open(shown, context, me);
      if (signal.aborted) return left();
      leave = left;
      stale.read();
      end();
    },
    { failed: stale.failed },
  );
  return () => (end(), leave());
}

/**
 * @param {HTMLElement} root
 * @param {Context} context
 * @param {Me} me
 */
async function open(root, context, me) {
  const endpoints = me.endpoints.filter((endpoint) => endpoint.tasks.some((task) => TASKS.includes(task)));
  if (!endpoints.length) {
    const what = me.endpoints.length
      ? "Your endpoints have no task that the playground shows."
      : "You have access to no endpoint on this server.";
    root.append(h("p", { class: "empty" }, what));
    return () => {};
  }
  // The largest scripts of the console: the page is shown before they are.
  const { desk } = await load("playground/desk.js");
  return desk(root, context, me.caller, endpoints);
}
