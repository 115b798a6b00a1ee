// The request as a program, for each SDK.

import { find, h } from "../dom.js";
import { copyButton } from "../parts.js";
import { FormError, request } from "./request.js";
import { snippets } from "./snippets.js";

const AS_TRAFFIC_DECIDES = "as the traffic decides";

/**
 * `{element, show(form values, deployments)}`.
 *
 * @param {Context} context
 */
export function codePanel({ announce }) {
  let chosen = "curl";
  /** @type {string | null} */
  let deployment = null;
  /** @type {FormValues | null} */
  let values = null;
  /** @type {Usable[]} */
  let deployments = [];
  const code = h("code", {});
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Program", on: { keydown: move } });
  /** @type {HTMLSelectElement} */
  const select = h("select", {
    id: "code-deployment",
    on: { change: () => ((deployment = select.value || null), draw()) },
  });
  const copy = copyButton("Copy", () => [current()?.code ?? "", code], announce);
  const pre = h("pre", { tabindex: 0, role: "tabpanel", "aria-label": "Program" }, code);
  const element = h(
    "section",
    { class: "as-code", "aria-label": "As code" },
    h("h2", {}, "As code"),
    h(
      "p",
      { class: "hint" },
      "The next request, or the last one, for a program. It calls the endpoint: the traffic decides on the " +
        "deployment, unless you choose one. " +
        "The key is read from the environment variable SWITCHYARD_API_KEY.",
    ),
    h(
      "div",
      { class: "where" },
      h("div", { class: "field" }, h("label", { for: "code-deployment" }, "Deployment"), select),
      copy,
    ),
    tabs,
    pre,
  );

  /** The programs, or why there are none. */
  function made() {
    try {
      const programs = values === null ? [] : snippets(request({ ...values, deployment }), location.origin);
      return { programs, problem: "" };
    } catch (error) {
      if (error instanceof FormError) return { programs: [], problem: error.message };
      throw error;
    }
  }

  function draw() {
    const { programs, problem } = made();
    tabs.replaceChildren(
      ...programs.map(({ id, title }) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            id: `code-${id}`,
            "aria-selected": String(id === chosen),
            tabindex: id === chosen ? 0 : -1,
            on: { click: () => choose(id) },
          },
          title,
        ),
      ),
    );
    const program = programs.find((program) => program.id === chosen);
    code.textContent = program ? shortened(program.code) : problem;
    copy.disabled = !program;
    pre.classList.toggle("none", !program);
  }

  /** @param {string} id */
  function choose(id) {
    chosen = id;
    draw();
    find(tabs, `#code-${id}`).focus();
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const all = [...tabs.children];
    const at = all.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    /** @type {Record<string, number>} */
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 };
    if (!(event.key in steps) || !all.length) return;
    event.preventDefault();
    choose(all[steps[event.key] % all.length].id.slice("code-".length));
  }

  function current() {
    return made().programs.find((program) => program.id === chosen);
  }

  return {
    element,
    /**
     * @param {FormValues} nowValues
     * @param {Usable[]} nowDeployments
     */
    show(nowValues, nowDeployments) {
      if (nowDeployments !== deployments) {
        deployments = nowDeployments;
        deployment = null;
        select.replaceChildren(
          h("option", { value: "" }, AS_TRAFFIC_DECIDES),
          ...deployments.map((deployment) => h("option", { value: deployment.deployment }, deployment.deployment)),
        );
      }
      values = nowValues;
      draw();
    },
  };
}

/**
 * An image is thousands of characters: the page shows its ends, and copies all of it.
 *
 * @param {string} code
 */
function shortened(code) {
  return code.replace(
    /(data:image\/[a-z+]+;base64,|"data": ")([A-Za-z0-9+/=]{120,})/g,
    (_, head, data) => `${head}${data.slice(0, 40)}…${data.slice(-8)}`,
  );
}
