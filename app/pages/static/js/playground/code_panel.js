// The request as a program, for each SDK.

import { h } from "../dom.js";
import { copy as copyText } from "../parts.js";
import { FormError, request } from "./request.js";
import { snippets } from "./snippets.js";

const AS_TRAFFIC_DECIDES = "as the traffic decides";

/** `{element, show(form values, deployments)}`. */
export function codePanel({ announce }) {
  let [chosen, deployment, values, deployments] = ["curl", null, null, []];
  const code = h("code", {});
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Program", on: { keydown: move } });
  const select = h("select", {
    id: "code-deployment",
    on: { change: () => ((deployment = select.value || null), draw()) },
  });
  const copy = h("button", { type: "button", on: { click: copied } }, "Copy");
  const pre = h("pre", { tabindex: 0, role: "tabpanel", "aria-label": "Program" }, code);
  const element = h(
    "section",
    { class: "as-code", "aria-label": "As code" },
    h("h2", {}, "As code"),
    h(
      "p",
      { class: "hint" },
      "The exact request that this form sends, for this server. " +
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

  function made() {
    try {
      return snippets(request({ ...values, deployment }), location.origin);
    } catch (error) {
      if (error instanceof FormError) return error.message;
      throw error;
    }
  }

  function draw() {
    const all = made();
    const programs = typeof all === "string" ? [] : all;
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
    const program = programs.find((it) => it.id === chosen);
    code.textContent = program ? shortened(program.code) : all;
    copy.disabled = !program;
    pre.classList.toggle("none", !program);
  }

  function choose(id) {
    chosen = id;
    draw();
    tabs.querySelector(`#code-${id}`)?.focus();
  }

  function move(event) {
    const all = [...tabs.children];
    const at = all.findIndex((it) => it.getAttribute("aria-selected") === "true");
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 };
    if (!(event.key in steps) || !all.length) return;
    event.preventDefault();
    choose(all[steps[event.key] % all.length].id.slice("code-".length));
  }

  async function copied() {
    copy.textContent = await copyText(made().find((it) => it.id === chosen).code, code, announce);
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  }

  return {
    element,
    show(nowValues, nowDeployments) {
      if (nowDeployments !== deployments) {
        deployments = nowDeployments;
        deployment = deployments[0]?.deployment ?? null;
        select.replaceChildren(
          ...deployments.map((it) => h("option", { value: it.deployment }, it.deployment)),
          h("option", { value: "" }, AS_TRAFFIC_DECIDES),
        );
      }
      values = nowValues;
      draw();
    },
  };
}

/** An image is thousands of characters: the page shows its ends, and copies all of it. */
function shortened(code) {
  return code.replace(
    /(data:image\/[a-z+]+;base64,|"data": ")([A-Za-z0-9+/=]{120,})/g,
    (_, head, data) => `${head}${data.slice(0, 40)}…${data.slice(-8)}`,
  );
}
