import { h, morph } from "../dom.js";
import { count, duration, list, number, or, percent, seconds, whole } from "../format.js";
import { cell, mark, notice, staleNotice, swatch, table, toggle } from "../parts.js";
import { editor } from "../traffic/editor.js";
import { explain } from "../traffic/explain.js";
import { history } from "../traffic/history.js";

export const title = "Traffic";

/** @typedef {"change" | "history" | "explain"} Panel */

/** @returns {(string | Head)[]} */
const heads = () => [
  "Deployment",
  { label: "Configured", number: true },
  { label: "Observed", number: true, title: "Share of the requests that the split assigned" },
  { label: "Requests/s", number: true },
  { label: "Errors", number: true, title: "Failures that the client did not cause" },
  {
    label: ["First token", h("br", {}), h("span", { class: "small" }, "p50 / p95")],
    number: true,
    title: "Streams only: median and 95th percentile",
  },
  {
    label: ["Between tokens", h("br", {}), h("span", { class: "small" }, "p50 / p95")],
    number: true,
    title: "Streams only: median and 95th percentile",
  },
  { label: "Tokens/s", number: true },
  { label: "In flight", number: true },
  "State",
];
/** @type {Record<string, string>} */
const STICKY = { user: "by user", api_key: "by API key", conversation: "by conversation" };

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, context) {
  const { api, poll, announce } = context;
  const state = {
    /** @type {any} An Overview, once it has been read. */
    overview: null,
    /** @type {number | null} */
    at: null,
    /** @type {ApiError | null} */
    problem: null,
    /** @type {Map<string, {kind: Panel, element: HTMLElement}>} */
    panels: new Map(),
    said: "",
  };

  /**
   * @param {Endpoint} endpoint
   * @param {Panel} kind
   */
  function open(endpoint, kind) {
    const now = state.panels.get(endpoint.endpoint);
    if (now?.kind === kind) state.panels.delete(endpoint.endpoint);
    else state.panels.set(endpoint.endpoint, { kind, element: panel(endpoint, kind) });
    draw();
    const opened = state.panels.get(endpoint.endpoint)?.element.querySelector("input, button");
    if (opened instanceof HTMLElement) opened.focus({ preventScroll: true });
  }

  /**
   * @param {Endpoint} endpoint
   * @param {Panel} kind
   */
  function panel(endpoint, kind) {
    const name = endpoint.endpoint;
    /** @param {string | null} text */
    function done(text) {
      state.panels.delete(name);
      if (text !== null) {
        state.said = text;
        announce(text);
        read();
      }
      draw();
      document.getElementById(`change/${name}`)?.focus();
    }
    if (kind === "change") return editor(name, context, done);
    return kind === "history" ? history(name, mayChange(endpoint), context, done) : explain(endpoint, context);
  }

  /** @param {Endpoint} endpoint */
  const mayChange = (endpoint) => state.overview.why_not === null && endpoint.may_operate;

  /** @param {Endpoint} endpoint */
  function section(endpoint) {
    const name = endpoint.endpoint;
    const open_ = state.panels.get(name);
    /** @param {Panel} kind */
    const press = (kind) => () => open(endpoint, kind);
    return h(
      "section",
      { class: "endpoint", key: name, "aria-labelledby": `endpoint/${name}` },
      h(
        "header",
        {},
        h("h2", { id: `endpoint/${name}` }, name),
        h(
          "p",
          { class: "hint about" },
          [
            list(endpoint.tasks),
            endpoint.sticky ? `sticky ${STICKY[endpoint.sticky.by] ?? `by ${endpoint.sticky.name}`}` : "not sticky",
            `plan ${endpoint.plan}`,
          ].join(" · "),
        ),
        h(
          "div",
          { class: "figures" },
          figure(number(endpoint.requests_per_s), "requests/s"),
          figure(whole(endpoint.queued), "queued"),
        ),
      ),
      h("p", { class: "lead" }, sentence(endpoint)),
      endpoint.experiment
        ? h(
            "p",
            {},
            mark("info", "The experiment "),
            h("a", { href: `#/experiments/${encodeURIComponent(endpoint.experiment)}` }, endpoint.experiment),
            " compares these deployments.",
          )
        : null,
      bars(endpoint),
      table(`Deployments of ${name}`, heads(), endpoint.deployments.map(row), { class: "stacked" }),
      h(
        "div",
        { class: "actions" },
        mayChange(endpoint) && endpoint.deployments.length > 1
          ? h(
              "button",
              {
                type: "button",
                id: `change/${name}`,
                "aria-expanded": String(open_?.kind === "change"),
                on: { click: press("change") },
              },
              "Change the split",
            )
          : null,
        toggle("Plans and rollback", open_?.kind === "history", `panel/${name}`, press("history")),
        toggle("Explain a key", open_?.kind === "explain", `panel/${name}`, press("explain")),
        state.overview.why_not === null && !endpoint.may_operate
          ? h("span", { class: "hint" }, "Only managers and its operators change its traffic.")
          : null,
      ),
      h("div", { id: `panel/${name}`, key: "panel" }, open_?.element),
    );
  }

  function draw() {
    const found = state.overview;
    morph(
      root,
      h("h1", {}, title),
      h("p", { class: "hint" }, found ? scope(found) : state.problem ? "" : "Loading …"),
      state.problem ? staleNotice(state.problem, state.at) : null,
      state.said ? h("p", { class: "said" }, mark("good", state.said)) : null,
      found?.why_not ? h("p", { class: "hint" }, found.why_not) : null,
      found?.endpoints.length === 0 ? notice("info", "You have access to no endpoint on this server.") : null,
      found?.endpoints.map(section),
    );
  }

  /** @param {AbortSignal} [signal] */
  async function read(signal) {
    try {
      state.overview = await api.get("/api/overview", { signal });
      state.at = state.overview.at;
      state.problem = null;
    } catch (error) {
      if (signal?.aborted) return;
      state.problem = error;
    }
    draw();
  }

  draw();
  return poll(read);
}

/** @param {Overview} overview */
function scope({ routers, window_s: window }) {
  const who = routers === null || routers === 1 ? "this router" : `one of ${routers} routers`;
  const since = window < 5 ? "since it started" : `in the last ${duration(window)}`;
  return `Counted by ${who} ${since}. Times come from histograms, so they are approximate.`;
}

/**
 * The most important fact about an endpoint, in a sentence.
 *
 * @param {Endpoint} endpoint
 */
function sentence(endpoint) {
  const rows = endpoint.deployments;
  const troubled = rows.filter(({ breaker, stopped }) => breaker === "open" || stopped);
  if (troubled.length) {
    const names = list(troubled.map(({ deployment }) => deployment));
    return mark("bad", `${names} ${troubled.length > 1 ? "are" : "is"} out of service.`);
  }
  const failures = rows
    .filter(({ errors }) => errors > 0)
    .map(
      ({ errors, requests, deployment }) =>
        `${count(errors, "request", "requests")} of ${whole(requests)} failed on ${deployment}`,
    );
  if (failures.length) return mark("warn", failures.join("; "), ".");
  if (!rows.some(({ requests }) => requests > 0)) return mark("wait", "No requests in this period.");
  return mark("good", "All answered. ", deviation(rows));
}

/** @param {Deployment[]} rows */
function deviation(rows) {
  const drawn = rows.filter((deployment) => deployment.role === "traffic" && deployment.share !== null);
  if (drawn.length < 2) return "";
  /** @param {Deployment} deployment */
  const distance = (deployment) => Math.abs((deployment.share ?? 0) * 100 - deployment.weight);
  const worst = drawn.reduce((a, b) => (distance(b) > distance(a) ? b : a));
  return `${worst.deployment} got ${percent(worst.share)} of the requests; ${worst.weight}\u00a0% is configured.`;
}

/**
 * @param {string | null} value
 * @param {string} label
 */
function figure(value, label) {
  return h("span", { class: "figure" }, h("b", {}, or(value)), " ", label);
}

/** @param {Endpoint} endpoint */
function bars(endpoint) {
  const rows = endpoint.deployments.filter((deployment) => deployment.role === "traffic");
  /**
   * @param {string} label
   * @param {(deployment: Deployment) => number} share
   */
  const bar = (label, share) =>
    h(
      "div",
      { class: "split" },
      h("span", { class: "hint" }, label),
      h(
        "div",
        { class: "share-bar", "aria-hidden": "true" },
        rows.map((deployment, index) =>
          share(deployment) > 0
            ? h(
                "span",
                {
                  class: `part arm-${(index % 6) + 1}`,
                  key: deployment.deployment,
                  style: { "flex-grow": String(share(deployment)) },
                },
                share(deployment) >= 12 ? deployment.deployment : "",
              )
            : null,
        ),
      ),
    );
  return h(
    "div",
    { class: "splits" },
    bar("Configured", (deployment) => deployment.weight),
    rows.some((deployment) => deployment.share !== null)
      ? bar("Observed", (deployment) => (deployment.share ?? 0) * 100)
      : null,
  );
}

/**
 * @param {Deployment} deployment
 * @param {number} index
 */
function row(deployment, index) {
  return h(
    "tr",
    { key: deployment.deployment },
    cell(
      "",
      [
        deployment.role === "traffic" ? swatch(index) : null,
        deployment.deployment,
        deployment.role === "traffic" ? null : h("span", { class: "tag" }, deployment.role),
        deployment.model === deployment.deployment ? null : h("div", { class: "hint small" }, deployment.model),
      ],
      { header: true },
    ),
    cell("Configured", deployment.role === "traffic" ? `${deployment.weight}\u00a0%` : or(null), { number: true }),
    cell(
      "Observed",
      [
        or(percent(deployment.share)),
        deployment.diverted > 0 ? h("div", {}, mark("warn", `${whole(deployment.diverted)} diverted here`)) : null,
      ],
      { number: true },
    ),
    cell("Requests/s", or(number(deployment.requests_per_s)), { number: true }),
    cell("Errors", errors(deployment), { number: true }),
    cell("First token", times(deployment.first_token_s), { number: true }),
    cell("Between tokens", times(deployment.inter_token_s), { number: true }),
    cell("Tokens/s", or(number(deployment.output_tokens_per_s)), { number: true }),
    cell("In flight", whole(deployment.in_flight), { number: true }),
    cell("State", states(deployment)),
  );
}

/** @param {Deployment} deployment */
function errors(deployment) {
  if (deployment.errors === 0) return "0";
  return mark("bad", `${whole(deployment.errors)} (${percent(deployment.errors / deployment.requests)})`);
}

/** @param {Quantiles} found */
function times(found) {
  if (found === null) return or(null);
  return [seconds(found.p50), h("span", { class: "hint" }, " / ", seconds(found.p95))];
}

/** @param {Deployment} deployment */
function states(deployment) {
  const found = [];
  if (deployment.stopped) found.push(mark("bad", "stopped"));
  if (deployment.breaker === "open") found.push(mark("bad", "breaker open"));
  if (deployment.replicas !== null) {
    const { RUNNING: running = 0, ...others } = deployment.replicas;
    found.push(mark(running > 0 ? "good" : "bad", count(running, "replica runs", "replicas run")));
    for (const [state, number_] of Object.entries(others))
      found.push(mark("wait", `${number_} ${state.toLowerCase().replaceAll("_", " ")}`));
  }
  return found.length ? found : mark("good", "in service");
}
