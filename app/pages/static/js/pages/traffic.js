import { h, morph } from "../dom.js";
import { remember } from "../filters.js";
import { count, duration, list, moment, number, or, percent, seconds, unbroken, whole } from "../format.js";
import { cell, figure, mark, notice, partsOf, shareBar, staleNotice, swatch, table, term, toggle } from "../parts.js";
import { editor } from "../traffic/editor.js";
import { mirrorOf } from "../traffic/mirror.js";
import { isRange, lacksOf, outageWords, overTime, rangePicker } from "../traffic/over_time.js";
import { explain, history } from "../traffic/plans.js";

export const title = "Traffic";

/** @typedef {"change" | "history" | "explain"} Panel */

const MANY = 5; // endpoints that need no search
const FEW = 3; // requests whose shares say something
const ASTRAY_S = 15 * 60; // in which requests that reached no endpoint are told of
const NAMED = 8; // failing ones that the first line names
const CHARTS = "The charts";
const EXPERIMENTS = "The experiments";
const ASTRAY = "The requests that reached no endpoint";
const MIRRORS = "The counts of copies";

let range = "1h"; // as it was chosen last: the page's link does not say it

/** @returns {(string | Head)[]} */
const heads = () => [
  "Deployment",
  { label: "Configured", number: true },
  { label: "Observed", number: true, title: "Share of the requests that the split assigned" },
  { label: "Requests", number: true, title: "All that it got: those of the split, and those that named it" },
  {
    label: "Failed",
    number: true,
    title: "Failures that are not the client's fault, and those at a request's own time limit",
  },
  { label: "Refused", number: true, title: "Requests that were not valid, not allowed, or over a limit" },
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
  const { api, poll, announce, parameters } = context;
  if (isRange(parameters.range)) range = parameters.range;
  const state = {
    /** @type {any} An Overview, once it has been read. */
    overview: null,
    /** @type {number | null} */
    at: null,
    /** @type {ApiError | null} */
    problem: null,
    /** @type {Map<string, {kind: Panel, element: HTMLElement, update?: (now: Endpoint) => void}>} */
    panels: new Map(),
    said: "",
    range,
    wanted: "",
    /** @type {RequestHistory | null} */
    past: null,
    /** @type {Map<string, Summary>} */
    experiments: new Map(),
    /** @type {RequestList | null} Those that reached no endpoint. */
    astray: null,
    /** @type {Map<string, ShadowReport>} By endpoint. */
    mirrors: new Map(),
  };
  const parts = partsOf(draw);

  /**
   * @param {Endpoint} endpoint
   * @param {Panel} kind
   */
  function open(endpoint, kind) {
    const now = state.panels.get(endpoint.endpoint);
    if (now?.kind === kind) state.panels.delete(endpoint.endpoint);
    else state.panels.set(endpoint.endpoint, { kind, ...panel(endpoint, kind) });
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
    if (kind === "change") return editor(endpoint, context, done);
    return {
      element: kind === "history" ? history(name, mayChange(endpoint), context, done) : explain(endpoint, context),
    };
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
        h("h2", { id: `endpoint/${name}`, tabindex: "-1" }, name),
        h(
          "p",
          { class: "hint about" },
          `${list(endpoint.tasks)} · `,
          term("sticky key", endpoint.sticky ? "sticky" : "not sticky"),
          endpoint.sticky ? ` ${STICKY[endpoint.sticky.by] ?? `by ${endpoint.sticky.name}`}` : "",
          " · ",
          term("plan"),
          ` ${endpoint.plan}`,
        ),
        h(
          "div",
          { class: "figures" },
          figure(whole(endpoint.requests), endpoint.requests === 1 ? "request" : "requests"),
          figure(number(endpoint.requests_per_s), "per second"),
          figure(whole(endpoint.queued), "queued for admission"),
        ),
      ),
      findings(endpoint, [...lostRequests(state.past, endpoint), ...pastOutages(state.past, endpoint)]),
      endpoint.experiment ? experimentOf(endpoint.experiment, state.experiments.get(endpoint.experiment)) : null,
      mirrorOf(endpoint, state.mirrors.get(name)),
      bars(endpoint),
      overTime(state.past, endpoint),
      table(`Deployments of ${name}`, heads(), rows(endpoint), { class: "stacked" }),
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
    const overview = state.overview;
    morph(
      root,
      h("h1", {}, title),
      h("p", { class: "hint" }, overview ? scope(overview) : state.problem ? "" : "Loading …"),
      state.problem ? staleNotice(state.problem, state.at) : null,
      state.said ? h("p", { class: "said" }, mark("good", state.said)) : null,
      overview ? rangePicker(state.range, state.past, chooseRange) : null,
      // Where nothing answers, the page's own notice says it.
      state.problem ? null : [CHARTS, EXPERIMENTS, ASTRAY, MIRRORS].map(parts.notice),
      overview?.why_not ? h("p", { class: "hint" }, overview.why_not) : null,
      overview?.endpoints.length === 0 ? notice("info", "You have access to no endpoint on this server.") : null,
      overview ? failing(overview.endpoints) : null,
      state.astray ? astray(state.astray) : null,
      overview && overview.endpoints.length > MANY ? search() : null,
      overview?.endpoints
        .filter((/** @type {Endpoint} */ { endpoint }) => endpoint.toLowerCase().includes(state.wanted.toLowerCase()))
        .map(section),
    );
  }

  /**
   * Which endpoints fail: among many, theirs may be far below.
   *
   * @param {Endpoint[]} endpoints
   */
  function failing(endpoints) {
    const bad = endpoints.filter((one) =>
      [...one.findings, ...lostRequests(state.past, one)].some(({ severity }) => severity === "bad"),
    );
    if (endpoints.length < 2 || !bad.length) return null;
    return h(
      "p",
      { class: "failing" },
      mark("bad", `${bad.length} of ${endpoints.length} endpoints ${bad.length === 1 ? "has" : "have"} a problem: `),
      bad
        .slice(0, NAMED)
        .map(({ endpoint: name }) =>
          h("button", { type: "button", class: "quiet", key: name, on: { click: () => go(name) } }, name),
        ),
      bad.length > NAMED ? ` and ${bad.length - NAMED} more` : null,
    );
  }

  /** @param {string} name */
  function go(name) {
    state.wanted = "";
    draw();
    const heading = document.getElementById(`endpoint/${name}`);
    heading?.scrollIntoView({ block: "start" });
    heading?.focus({ preventScroll: true });
  }

  function search() {
    const typed = (/** @type {any} */ event) => {
      state.wanted = event.target.value;
      draw();
    };
    return h(
      "div",
      { class: "search" },
      h(
        "div",
        { class: "field" },
        h("label", { for: "endpoint-wanted" }, "Endpoint"),
        h("input", { id: "endpoint-wanted", type: "search", value: state.wanted, on: { input: typed } }),
      ),
    );
  }

  const readPast = parts.reading(CHARTS, async (signal) => {
    const wanted = state.range;
    const past = await api.get(`/api/history?range=${wanted}`, { signal });
    if (wanted === state.range) state.past = past;
    return state.past?.until;
  });

  const readExperiments = parts.reading(EXPERIMENTS, async (signal) => {
    if (!state.overview?.has_controller) return null;
    if (!state.overview.endpoints.some((/** @type {Endpoint} */ { experiment }) => experiment !== null)) return null;
    /** @type {{experiments: Summary[]}} */
    const { experiments } = await api.get("/api/experiments", { signal });
    state.experiments = new Map(experiments.map((experiment) => [experiment.experiment, experiment]));
  });

  const readAstray = parts.reading(ASTRAY, async (signal) => {
    if (state.overview === null) return null;
    state.astray = await api.get(`/api/requests?endpoint=-&limit=1&last_s=${ASTRAY_S}`, { signal });
  });

  const readMirrors = parts.reading(MIRRORS, async (signal) => {
    /** @type {Endpoint[]} */
    const mirrored = (state.overview?.endpoints ?? []).filter((/** @type {Endpoint} */ { mirror }) => mirror);
    if (!mirrored.length || !state.overview.has_controller) return null;
    const reports = await Promise.all(
      mirrored.map(({ endpoint }) => api.get(`/api/endpoints/${encodeURIComponent(endpoint)}/mirror`, { signal })),
    );
    state.mirrors = new Map(mirrored.map(({ endpoint }, index) => [endpoint, reports[index]]));
  });

  /** @param {string} chosen */
  function chooseRange(chosen) {
    state.range = range = chosen;
    remember("traffic", { range });
    readPast();
  }

  /** @param {AbortSignal} [signal] */
  async function read(signal) {
    const isFirst = state.overview === null;
    try {
      state.overview = await api.get("/api/overview", { signal });
      state.at = state.overview.at;
      state.problem = null;
      for (const now of state.overview.endpoints) state.panels.get(now.endpoint)?.update?.(now);
      if (isFirst) [readExperiments, readAstray, readMirrors].forEach((other) => other(signal));
    } catch (error) {
      if (signal?.aborted) return;
      state.problem = error;
    }
    draw();
  }

  draw();
  const ends = [
    poll(read),
    poll(readPast, { every: 5_000 }),
    poll(readExperiments, { every: 5_000 }),
    poll(readAstray, { every: 10_000 }),
    poll(readMirrors, { every: 10_000 }),
  ];
  return () => ends.forEach((end) => end());
}

/** @param {Overview} overview */
function scope({ routers, window_s: window, replicas_age_s: age, endpoints }) {
  const who = routers === null || routers === 1 ? "this router" : `one of ${routers} routers`;
  const since = window < 5 ? "since it started" : `in the last ${duration(window)}`;
  const hasReplicas = endpoints.some(({ deployments }) => deployments.some(({ replicas }) => replicas !== null));
  // An older router does not say it.
  const when = typeof age !== "number" || !hasReplicas ? "" : age < 1 ? "just now" : `${duration(age)} ago`;
  const listed =
    when && ` Ray Serve listed the replicas ${when}; an engine that does not answer is shown within seconds.`;
  return `Counted by ${who} ${since}. Percentiles of more than 500 streams are approximate.${listed}`;
}

/**
 * The requests that no endpoint's figures have.
 *
 * @param {RequestList} requests
 */
function astray(requests) {
  const words = astrayWords(requests);
  if (words === null) return null;
  return h(
    "p",
    { class: "astray", key: "astray" },
    mark("warn", `${words} `),
    h("a", { href: `#/requests?last_s=${ASTRAY_S}&endpoint=-` }, "Show them"),
  );
}

/**
 * How many there were, and when the last one came: of those before a moment only some are known.
 *
 * @param {Pick<RequestList, "matching" | "older_matching"> & {requests: {at: number}[]}} requests
 */
export function astrayWords({ matching, older_matching, requests: [last] }) {
  const all = matching + older_matching;
  // An older controller of experiments knows no `last_s`.
  if (!all || !last || last.at < Date.now() / 1000 - ASTRAY_S) return null;
  const some = `${older_matching ? "At least " : ""}${count(all, "request", "requests")}`;
  return `${some} in the last 15 minutes reached no endpoint, the last at ${moment(last.at)}.`;
}

/**
 * What the experiment on an endpoint does: one that is paused compares nothing, and may have moved the traffic.
 *
 * @param {string} name
 * @param {Summary | undefined} summary None: it is not known yet.
 */
function experimentOf(name, summary) {
  const acting = summary?.acting;
  const link = h("a", { href: `#/experiments/${encodeURIComponent(name)}` }, name);
  if (acting && acting.state !== "running")
    return h(
      "p",
      {},
      mark(standing(acting), "The experiment "),
      link,
      ` is ${acting.state}${acting.text ? `: ${acting.text}` : ""}`,
    );
  const alarms = summary?.alarms ? `, with ${count(summary.alarms, "alarm", "alarms")}` : "";
  return h("p", {}, mark(alarms ? "warn" : "info", "The experiment "), link, ` compares these deployments${alarms}.`);
}

/**
 * One that is paused waits for somebody, one that was stopped without harm does not.
 *
 * @param {NonNullable<Summary["acting"]>} acting
 * @returns {Mark}
 */
function standing({ cause, state }) {
  if (cause === "alarm" || cause === "harm") return "bad";
  return state === "paused" ? "warn" : "info";
}

const TOLD = 1; // outages of a deployment that the headline tells one by one
const FRESH_S = 3600; // older ones are told below the charts

/**
 * The outages that have ended in the charts' time, and of late.
 *
 * @param {RequestHistory | null} history
 * @param {Endpoint} endpoint
 * @returns {Finding[]}
 */
function pastOutages(history, endpoint) {
  return lacksOf(history, endpoint).flatMap(({ deployment, outages }) => {
    const since = (history?.until ?? 0) - FRESH_S;
    const past = outages.filter(({ to }) => to !== null && to > since);
    if (!past.length) return [];
    const words = outageWords({ deployment, outages: past }, 0, TOLD);
    return { severity: "warn", text: `${words[0].toUpperCase()}${words.slice(1)}.` };
  });
}

const LOST_S = 900; // requests that were lost with a router are a problem for so long

/**
 * The requests that a router has lost by its end: the next one, whose figures these are, knows nothing of them.
 *
 * @param {RequestHistory | null} history
 * @param {{endpoint: string}} endpoint
 * @returns {Finding[]}
 */
export function lostRequests(history, { endpoint }) {
  const since = (history?.until ?? 0) - LOST_S;
  const lost = (history?.lost_requests ?? []).filter((one) => one.endpoint === endpoint && one.at > since);
  return lost.map(({ at, requests }) => {
    const were = requests === 1 ? "1 request was" : `${whole(requests)} requests were`;
    return {
      severity: "bad",
      text: `${were} lost with the router that was heard last at ${moment(at)}.`,
      status: "failed",
    };
  });
}

/**
 * The requests that a finding is about, with what each client was told.
 *
 * @param {string} endpoint
 * @param {string} status
 */
const listed = (endpoint, status) => `#/requests?${new URLSearchParams({ last_s: "900", endpoint, status })}`;

/**
 * What the server found, failures first, and then what is over.
 *
 * @param {Endpoint} endpoint
 * @param {Finding[]} past
 */
function findings({ endpoint, findings: present }, past) {
  const isUrgent = (/** @type {Finding} */ { severity }) => severity === "bad" || severity === "warn";
  const [first, ...others] = [...present.filter(isUrgent), ...past, ...present.filter((one) => !isUrgent(one))];
  /** @param {Finding} finding */
  const said = ({ severity, text, status }) => [
    mark(severity, unbroken(text)),
    status ? [" ", h("a", { href: listed(endpoint, status) }, "Why?")] : null,
  ];
  return [
    h("p", { class: "lead" }, said(first)),
    others.length > 0 &&
      h(
        "ul",
        { class: "findings" },
        others.map((finding) => h("li", {}, said(finding))),
      ),
  ];
}

/** @param {Endpoint} endpoint */
function bars({ deployments, drawn }) {
  const parts = deployments.filter((deployment) => deployment.role === "traffic");
  /**
   * @param {string} label
   * @param {(deployment: Deployment) => number} share
   */
  const bar = (label, share) =>
    shareBar(
      label,
      parts.map((part) => ({ name: part.deployment, colour: part.colour, share: share(part) })),
    );
  return h(
    "div",
    { class: "splits" },
    bar("Configured", (deployment) => deployment.weight),
    drawn >= FEW ? bar("Observed", (deployment) => (deployment.share ?? 0) * 100) : null,
  );
}

/** @param {Endpoint} endpoint */
function rows({ deployments, unassigned, mirror }) {
  return [
    deployments.map((deployment) => row(deployment, deployment.deployment === mirror?.deployment)),
    unassigned.requests > 0 &&
      h(
        "tr",
        { key: "no deployment" },
        cell("", ["no deployment", h("div", { class: "hint small" }, "none was asked")], { header: true }),
        cell("Configured", or(null), { number: true }),
        cell("Observed", or(null), { number: true }),
        outcomes(unassigned),
        ["First token", "Between tokens", "Tokens/s", "In flight"].map((label) =>
          cell(label, or(null), { number: true }),
        ),
        cell("State", or(null)),
      ),
  ];
}

/**
 * @param {Deployment} deployment
 * @param {boolean} isShadow Whether it gets the endpoint's copies.
 */
function row(deployment, isShadow) {
  return h(
    "tr",
    { key: deployment.deployment },
    cell(
      "",
      [
        deployment.role === "traffic" ? swatch(deployment.colour) : null,
        deployment.deployment,
        deployment.role === "traffic" ? null : h("span", { class: "tag" }, deployment.role),
        deployment.model === deployment.deployment ? null : h("div", { class: "hint small" }, deployment.model),
        isShadow ? h("div", { class: "hint small" }, "gets copies, which no figure here counts") : null,
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
    outcomes(deployment, deployment.requests - deployment.drawn),
    cell("First token", times(deployment.first_token_s), { number: true }),
    cell("Between tokens", times(deployment.inter_token_s), { number: true }),
    cell("Tokens/s", or(number(deployment.output_tokens_per_s)), { number: true }),
    cell("In flight", whole(deployment.in_flight), { number: true }),
    cell("State", states(deployment, isShadow)),
  );
}

/**
 * @param {Outcomes} counted
 * @param {number} [named] How many of the requests named their deployment.
 */
function outcomes({ requests, errors, refused, left }, named = 0) {
  /**
   * @param {number} some
   * @param {Mark} kind
   */
  const part = (some, kind) =>
    some === 0 ? "0" : [mark(kind, whole(some)), h("div", { class: "hint small" }, percent(some / requests))];
  return [
    cell(
      "Requests",
      [
        whole(requests),
        named > 0 && h("div", { class: "hint small" }, `${whole(named)} by name`),
        left > 0 && h("div", { class: "small" }, mark("info", count(left, "client left", "clients left"))),
      ],
      { number: true },
    ),
    cell("Failed", part(errors, "bad"), { number: true }),
    cell("Refused", part(refused, "warn"), { number: true }),
  ];
}

/** @param {Quantiles} quantiles */
function times(quantiles) {
  if (quantiles === null) return or(null);
  return [seconds(quantiles.p50), h("span", { class: "hint" }, " / ", seconds(quantiles.p95))];
}

/**
 * @param {Deployment} deployment
 * @param {boolean} isShadow
 */
function states(deployment, isShadow) {
  const marks = [];
  if (deployment.stopped) marks.push(mark("bad", "stopped"));
  if (deployment.breaker === "open") marks.push(mark("bad", term("circuit breaker", "breaker open")));
  marks.push(...replicaWords(deployment).map(([kind, words]) => mark(kind, words)));
  if (marks.length) return marks;
  return isShadow && !deployment.requests ? mark("info", "only copies of late") : called(deployment);
}

/**
 * The states of a deployment's replicas. Serve notices a dead one later than requests do, which lose it, or open the
 * breaker.
 *
 * @param {Deployment} deployment
 * @returns {[Mark, string][]}
 */
export function replicaWords({ replicas, asleep, breaker, dead = 0 }) {
  if (replicas === null) return [];
  const { RUNNING: running = 0, ...others } = replicas;
  const silent = breaker === "open" ? running : Math.min(dead, running);
  const alive = running - silent;
  /** @type {[Mark, string][]} */
  const words = [];
  if (running === 0 && asleep) {
    if (!others.STARTING) words.push(["wait", "scaled to zero"]); // a start from zero is no failure either
  } else if (alive > 0 || silent === 0)
    words.push([alive > 0 ? "good" : "bad", count(alive, "replica runs", "replicas run")]);
  if (silent > 0) words.push(["bad", count(silent, "replica does not serve", "replicas do not serve")]);
  return [
    ...words,
    ...Object.entries(others).map(
      ([state, some]) =>
        /** @type {[Mark, string]} */ (["wait", `${some} ${state.toLowerCase().replaceAll("_", " ")}`]),
    ),
  ];
}

/**
 * What is known of a deployment without replicas of ours, whose breaker is closed.
 *
 * @param {Deployment} deployment
 */
function called({ called, requests, errors, is_unknown }) {
  if (is_unknown) return [mark("wait", "state unknown")];
  if (!called) return [mark("wait", "not called yet"), h("div", { class: "hint small" }, "by this router")];
  if (!requests) return [mark("wait", "not called of late"), h("div", { class: "hint small" }, "by this router")];
  return errors === requests ? mark("bad", "answers nothing") : mark("good", "in service");
}
