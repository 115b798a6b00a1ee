// The requests that run and the last ones, of all routers; and one: where its time went, and what was recorded of it.

import { ApiError } from "../api.js";
import { h, morph } from "../dom.js";
import { Filters, remember, same, timesOf } from "../filters.js";
import { count, list as names, minute, moment, or, roundTicks, seconds, whole, withCode } from "../format.js";
import { cell, documented, mark, staleness, staleNotice, table } from "../parts.js";
import {
  FIRST_BYTE_S,
  WHOLE_S,
  answerTokens,
  besides,
  errorWords,
  recorded,
  result,
  slowness,
  soFar,
  timeline,
  whyNowhere,
} from "../request.js";
import { bars, withAxes } from "../sparkline.js";

export const title = "Requests";

const LOOKS = 6; // for what is recorded of a request that has just ended
const BETWEEN_LOOKS_MS = 1000;
const NARROW = 600; // pixels below which a row takes most of a screen, and less is shown at once
const SHOWN = { wide: 50, narrow: 15 };
const GROUPS = { wide: 8, narrow: 1 }; // kinds of errors that are shown before all are
const FILTERS = ["last_s", "endpoint", "deployment", "caller", "status", "error", "slower_than_s"];
const NOWHERE = "-"; // in place of an endpoint: the requests that reached none
/** @type {[string, string][]} */
const STATUSES = [
  ["running", "running"],
  ["answered", "answered"],
  ["failed", "failed"],
  ["refused", "refused: the client's fault"],
  ["left", "client left"],
  ["not_answered", "failed, refused or left"],
];
const SLOW = [1, 2, 5, 10, 30, 60];

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, context) {
  const { parameters } = context;
  const id = h("input", {
    id: "request-id",
    name: "id",
    class: "mono",
    autocomplete: "off",
    spellcheck: "false",
    value: parameters.id ?? context.names[0] ?? "",
    placeholder: "chatcmpl-… or the header x-request-id",
  });
  const content = h("div", {});
  let end = () => {};
  const look = () => {
    const wanted = id.value.trim();
    if (!wanted) {
      id.focus();
      return;
    }
    end();
    remember("requests", { id: wanted });
    content.replaceChildren();
    end = one(content, wanted, context);
  };
  root.append(
    h("h1", {}, title),
    h(
      "form",
      { class: "search", role: "search", on: { submit: (event) => (event.preventDefault(), look()) } },
      h("div", { class: "field" }, h("label", { for: id.id }, "Request id"), id),
      h("button", { type: "submit", class: "primary" }, "Find"),
    ),
    content,
  );
  if (id.value) look();
  else end = list(content, context);
  return () => end();
}

/**
 * @param {HTMLElement} root
 * @param {Context} context
 * @returns {() => void}
 */
function list(root, { api, poll, announce, parameters }) {
  const stale = staleness();
  const { failed } = stale;
  const filters = new Filters("requests", FILTERS, parameters, { refresh, announce, failed });
  let isLive = true;
  let turn = 0;
  const size = innerWidth < NARROW ? "narrow" : "wide";
  let most = SHOWN[size];
  let groupsShown = GROUPS[size];
  const shown = h("div", {});
  root.append(stale.element, shown);

  /** @param {AbortSignal} [signal] */
  async function refresh(signal) {
    const own = ++turn;
    const found = await filters.applied((values) =>
      api.get(`/api/requests?${new URLSearchParams({ ...values, limit: String(most) })}`, { signal }),
    );
    if (own !== turn) return;
    morph(shown, ...draw(found));
    stale.read();
  }

  /** @param {RequestList} found */
  function draw(found) {
    return [
      filterRow(found),
      summary(found),
      errorGroups(found.groups),
      requests(found),
      more(found),
      counts("Without valid credentials", "a 401, or a 429 after many", found.unauthorized),
      counts("No such route", "a 404 or 405", found.unknown_routes),
    ];
  }

  /** @param {RequestList} found */
  function filterRow({ endpoints, deployments, callers, errors, everyones, operated, since, older_kept }) {
    return filters.row(
      filters.when(timesOf({ since, older_kept }, Date.now() / 1000)),
      filters.select("endpoint", "Endpoint", [...same(endpoints), [NOWHERE, "none"]]),
      filters.select("deployment", "Deployment", same(deployments)),
      everyones || operated.length ? filters.select("caller", "Caller", same(callers), "everyone") : null,
      filters.select("status", "Result", STATUSES),
      filters.select(
        "error",
        "Error",
        errors.map((kind) => [kind, errorWords(kind)]),
      ),
      filters.select(
        "slower_than_s",
        "Slower than",
        SLOW.map((limit) => [String(limit), `${limit}\u00a0s`]),
      ),
    );
  }

  /** @param {ErrorGroup[]} groups */
  function errorGroups(groups) {
    if (!groups.length) return null;
    return h(
      "section",
      { class: "error-groups", "aria-label": "Not answered", key: "groups" },
      h("h2", {}, "Not answered"),
      h(
        "ul",
        {},
        groups.slice(0, groupsShown).map((group) => {
          const { endpoint, deployment, status, error, last_at, message, messages, said, engine_message } = group;
          const which = group.is_most_frequent ? "the most frequent" : "one of them";
          const list = messages > 1 && said?.length ? saidList(said, messages) : null;
          const where = endpoint ? `at ${endpoint}` : `at no endpoint (${whyNowhere(error)})`;
          return h(
            "li",
            { key: JSON.stringify([endpoint, deployment, status, error]) },
            h("b", {}, `${group.is_whole ? "" : "at least "}${whole(group.count)} × `),
            result({ ...group, moves: 0, paused_s: null }),
            ` ${where}${deployment ? ` on ${deployment}` : ""}, last at ${moment(last_at)} `,
            h(
              "button",
              {
                type: "button",
                class: "quiet",
                "aria-label": `Show ${status} ${error} at ${endpoint || "no endpoint"}`,
                on: {
                  click: () =>
                    filters.change({
                      endpoint: endpoint || NOWHERE,
                      deployment,
                      error,
                      status: String(status),
                      caller: "",
                      slower_than_s: "",
                    }),
                },
              },
              "Show",
            ),
            message && !list ? h("div", { class: "hint small told" }, message) : null,
            list,
            engine_message ? h("div", { class: "hint small told" }, `The engine: ${engine_message}`) : null,
            messages > 1 && !list
              ? h("div", { class: "hint small" }, `${whole(messages)} different messages: this is ${which}`)
              : null,
          );
        }),
      ),
      groups.length > groupsShown
        ? h("button", { type: "button", on: { click: showAllGroups } }, others(groups))
        : null,
    );
  }

  /**
   * The different messages of a group, which have different causes.
   *
   * @param {NonNullable<ErrorGroup["said"]>} said
   * @param {number} messages
   */
  function saidList(said, messages) {
    const hidden = messages - said.length;
    return h(
      "ul",
      { class: "hint small" },
      said.map(({ message, count: some }) => {
        const text = message || "in the engine's words, which may quote the prompt: not shown here";
        return h("li", { key: text }, `${whole(some)} × ${text}`);
      }),
      hidden > 0 ? h("li", { key: "" }, `and ${count(hidden, "other message", "other messages")}`) : null,
    );
  }

  function showAllGroups() {
    groupsShown = Infinity;
    refresh().catch(failed);
  }

  /** @param {ErrorGroup[]} groups */
  function others(groups) {
    const hidden = groups.slice(groupsShown);
    const requests = hidden.reduce((sum, group) => sum + group.count, 0);
    return `Show ${count(hidden.length, "more kind", "more kinds")}: ${count(requests, "request", "requests")}`;
  }

  /**
   * Requests that no list has, since anybody can send them.
   *
   * @param {string} title
   * @param {string} effect
   * @param {MinuteCounts | undefined} counted
   */
  function counts(title, effect, counted) {
    if (!counted?.reasons.length) return null;
    const { since, step_s, requests, reasons } = counted;
    const until = since + step_s * requests.length;
    const all = requests.reduce((sum, minute) => sum + minute, 0);
    return h(
      "section",
      { class: "refused", "aria-label": title, key: title },
      h("h2", {}, title),
      h(
        "div",
        {},
        mark("warn", `${count(all, "request", "requests")} in the last hour got ${effect}: `),
        withCode(
          reasons.map(({ reason, requests: some }) => `${whole(some)} × ${reason || "other reasons"}`).join("; "),
        ),
        ".",
      ),
      withAxes(
        bars(requests, `${title}, requests minute by minute: at most ${Math.max(...requests)}`),
        roundTicks(since, until),
        `${whole(Math.max(...requests))}/min`,
        requests.map((one, index) => `${minute(since + step_s * index)}: ${whole(one)}`),
      ),
    );
  }

  /** @param {RequestList} found */
  function summary(found) {
    const { since, view, everyones, operated, requests: rows } = found;
    if (since === null) return null;
    const cut = rows.length < found.matching + found.older_matching ? `; the newest ${rows.length} are shown` : "";
    return h(
      "p",
      { class: "hint summary", key: "summary" },
      `${listWords({ ...found, since })}, of ${view}, `,
      everyones ? "everyone's" : operated.length ? `everyone's at ${names(operated)}, else your own` : "your own",
      `${cut}. `,
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-pressed": String(!isLive),
          on: {
            click: () => {
              isLive = !isLive;
              refresh().catch(failed);
            },
          },
        },
        isLive ? "Pause" : "Go on",
      ),
    );
  }

  /** @param {RequestList} found */
  function requests(found) {
    const rows = found.requests;
    if (!rows.length)
      return h(
        "p",
        { class: "empty", key: "empty" },
        found.since === null
          ? "No requests yet."
          : unknownNames(filters.values, found).join(" ") || "No request passes these filters.",
      );
    return table(
      "Requests",
      [
        "Arrived",
        "Result",
        "Endpoint",
        "Caller",
        { label: "Duration", number: true },
        { label: "First byte", number: true },
        { label: "Prompt", number: true, title: "Tokens of the prompt" },
        { label: "Answer", number: true, title: "Tokens of the answer" },
      ],
      rows.map(row),
      { class: "stacked requests" },
    );
  }

  /** @param {RequestList} found */
  function more({ matching, older_matching, requests: rows }) {
    const left = matching + older_matching - rows.length;
    if (left <= 0) return null;
    const press = () => {
      most += SHOWN[size];
      refresh().catch(failed);
    };
    return h(
      "p",
      { key: "more" },
      h("button", { type: "button", on: { click: press } }, `Show ${Math.min(SHOWN[size], left)} more`),
    );
  }

  return poll((signal) => (isLive ? refresh(signal) : null), { failed });
}

/**
 * What filters name that no request of the list has: a misspelt name is no empty list.
 *
 * @param {Record<string, string>} values
 * @param {RequestList} found
 */
export function unknownNames({ endpoint, deployment, caller, error }, found) {
  /** @type {[string | undefined, string[], string][]} */
  const named = [
    [endpoint === NOWHERE ? undefined : endpoint, found.endpoints, "is at an endpoint"],
    [deployment, found.deployments, "was sent to a deployment"],
    [caller, found.callers, "has the caller"],
    [error, found.errors, "failed with"],
  ];
  const unknown = named.filter(([name, known]) => name && !known.includes(name));
  return unknown.map(([name, , words]) =>
    name === found.no_such_endpoint
      ? `There is no endpoint “${name}”, or you may not use it.`
      : `No request of the list ${words} “${name}”.`,
  );
}

/**
 * What the list has: all requests since a moment, and older ones that were not answered.
 *
 * @param {RequestList & {since: number}} found
 */
export function listWords({ matching, kept, older_matching, older_kept, running, since }) {
  /**
   * @param {number} some
   * @param {number} all
   * @param {string} one
   * @param {string} many
   */
  const of = (some, all, one, many) => `${some === all ? "" : `${whole(some)} of `}${count(all, one, many)}`;
  const now = running ? `, ${whole(running)} of them running` : "";
  const older = older_kept
    ? `, and ${of(older_matching, older_kept, "older one that was not answered", "older ones that were not answered")}`
    : "";
  return `${of(matching, kept, "request", "requests")} since ${moment(since)}${now}${older}`;
}

/**
 * @param {ListedRequest} request
 */
function row(request) {
  const { id, at, endpoint, deployment, caller, message, stream, duration_s, first_byte_s } = request;
  const byFirstByte = stream && first_byte_s !== null;
  const arrived = h(
    "a",
    { href: `#/requests?id=${encodeURIComponent(id)}`, "aria-label": `${moment(at)}, request ${id}` },
    moment(at),
  );
  return h(
    "tr",
    { key: `${id} ${at}` },
    cell("", arrived, { header: true }),
    cell("Result", [result(request), message ? h("div", { class: "hint small told" }, message) : null]),
    cell("Endpoint", [
      request.running ? or(endpoint || null) : endpoint || nowhere(request.error),
      deployment && deployment !== endpoint ? h("div", { class: "hint small" }, deployment) : null,
    ]),
    cell("Caller", or(caller || null)),
    cell(
      "Duration",
      [
        or(stream ? seconds(duration_s) : besides(duration_s, WHOLE_S)),
        soFar(request),
        byFirstByte ? null : slow(request),
      ],
      { number: true },
    ),
    cell(
      "First byte",
      [or(stream ? besides(first_byte_s, FIRST_BYTE_S) : seconds(first_byte_s)), byFirstByte ? slow(request) : null],
      { number: true },
    ),
    cell("Prompt tokens", or(whole(request.prompt_tokens)), { number: true }),
    cell("Answer tokens", or(answerTokens(request)), { number: true }),
  );
}

/**
 * The mark of a slow request, beside the time that is over its limit.
 *
 * @param {ListedRequest} request
 */
function slow(request) {
  const why = slowness(request);
  const limit = request.stream ? FIRST_BYTE_S : WHOLE_S;
  return why && h("div", { title: `slower than ${limit}\u00a0s: ${why}` }, mark("warn", "slow"));
}

/** @param {string} error */
function nowhere(error) {
  return ["none", h("div", { class: "hint small words" }, whyNowhere(error))];
}

/**
 * Shows one request by its id: where its time went, and what was recorded; live while it runs. It looks again for some
 * seconds, since what was recorded is known a second or two after its end.
 *
 * @param {HTMLElement} root
 * @param {string} id
 * @param {Context} context
 * @returns {() => void}
 */
function one(root, id, context) {
  const { api, announce, poll } = context;
  const found = h("div", { class: "found" }, h("p", { class: "hint" }, "Looking …"));
  root.append(h("p", { class: "crumbs" }, h("a", { href: "#/requests" }, "All requests")), found);
  let left = LOOKS;
  let before = "";
  /** @type {number | null} */
  let readAt = null;
  /** @type {HTMLElement | null} */
  let away = null;
  /** @type {Map<string, HTMLElement>} Those that are shown: they keep what the visitor has opened. */
  let texts = new Map();

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<{exposures: Exposure[], problem: ApiError | null}>}
   */
  const exposed = (signal) =>
    // An error would be one in the browser's console, for each request that nothing records.
    api.get(`/api/requests/${encodeURIComponent(id)}?missing=empty`, { signal }).then(
      ({ exposures, why }) => ({ exposures, problem: why === undefined ? null : new ApiError(404, why) }),
      (problem) => {
        if (problem.status === 0) throw problem;
        return { exposures: [], problem };
      },
    );

  /** @param {AbortSignal} signal */
  async function look(signal) {
    if (left === 0) return;
    /** @type {[Me, RequestList, {exposures: Exposure[], problem: ApiError | null}]} */
    const [me, listed, { exposures, problem }] = await Promise.all([
      api.get("/api/me", { signal }),
      api.get(`/api/requests?id=${encodeURIComponent(id)}`, { signal }),
      exposed(signal),
    ]);
    readAt = Date.now() / 1000;
    const { requests } = listed;
    const isRunning = requests.some((request) => request.running);
    if (!isRunning) left = problem?.status === 404 ? left - 1 : 0;
    const now = JSON.stringify([requests, exposures, problem?.message, left === 0]);
    if (now === before) return;
    before = now;
    texts = new Map(
      requests
        .filter(({ endpoint, running }) => endpoint && !running)
        .map((request) => {
          const key = JSON.stringify([request.id, request.at]);
          return [key, texts.get(key) ?? textOf(request, listed.texts, me, context)];
        }),
    );
    const cards = [
      ...requests.map((request) => timeline(request, listed.trace_url)),
      ...texts.values(),
      ...exposures.map((exposure) => recorded(exposure, id, me, requests.length > 0, context)),
    ];
    found.replaceChildren(...(cards.length ? cards : missing(problem, left, listed.since)));
    if (left > 0) return;
    if (cards.length) announce(cards.length === 1 ? "The request is shown" : `${cards.length} parts are shown`);
    if (cards.length && problem !== null) found.append(notRecorded(problem));
  }

  /** @param {Error} error */
  function failed(error) {
    const problem = /** @type {ApiError} */ (error);
    const isAway = problem.status === 0 || problem.status >= 500; // and may answer again
    if (!isAway) left = 0;
    away?.remove();
    const said = isAway ? staleNotice(problem, readAt) : h("p", { class: "problem" }, problem.message);
    away = h("div", { role: "alert" }, said);
    if (readAt === null) found.replaceChildren(away);
    else found.prepend(away);
    before = "";
  }

  return poll(look, { every: BETWEEN_LOOKS_MS, failed });
}

/**
 * What is said of a request of which nothing is known: at once, also while it may still come.
 *
 * @param {ApiError | null} problem
 * @param {number} left How often it is looked for again.
 * @param {number | null} since Since when all requests are known.
 */
function missing(problem, left, since) {
  const why =
    problem?.status === 404
      ? "A request appears within seconds of its arrival, and what is recorded of it after its end."
      : null;
  const older =
    since === null ? "No request is known yet." : `One that ended before ${moment(since)} may not be known any more.`;
  return [
    h("p", { class: "problem", role: "alert" }, withCode(problem?.message ?? "This request is not known")),
    h("p", { class: "hint" }, why, ` ${older}`, left > 0 ? " This page looks again for some seconds." : null),
  ];
}

/**
 * What a recorded text is.
 *
 * @type {Record<string, string>}
 */
const TEXTS = {
  redacted: "What the client asked, with [redacted] for what matches the patterns of `redact`.",
  whole: "What the client asked, whole: its endpoint has no patterns of `redact`.",
};
const ANSWERS = "Answers are recorded nowhere.";

/**
 * What is recorded of what a request asked, for those who may read it, and else why there is nothing to read.
 *
 * @param {ListedRequest} request
 * @param {readonly string[]} readable The endpoints whose texts the visitor may read.
 * @param {Me} me
 * @param {Context} context
 */
function textOf({ id, endpoint, text: kept }, readable, me, context) {
  const props = { class: "answer", "aria-label": `Recorded text of ${id}` };
  if (kept && readable.includes(endpoint)) return h("section", props, ...readText(id, kept, context));
  const why = kept
    ? "Its text is recorded. Managers read it here, as long as the endpoint has `record: {text: full}`."
    : me.manages && !readable.includes(endpoint)
      ? `Texts are not recorded: ${endpoint} has no \`record: {text: full}\`.`
      : "Its text is not recorded.";
  const more = documented(me.server.docs_url, "split/replay/#record-and-replay", "Record and replay");
  return h("section", props, h("p", { class: "hint" }, withCode(`${why} ${ANSWERS} `), more));
}

/**
 * @param {string} id
 * @param {string} kept
 * @param {Context} context
 */
function readText(id, kept, { api, announce }) {
  const shown = h("div", { class: "recorded-text" });
  const button = h("button", { type: "button" }, "Show the recorded text");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const { body } = await api.get(`/api/texts/${encodeURIComponent(id)}`);
      const text = h("pre", { tabindex: "0", "aria-label": "Recorded text" }, JSON.stringify(body, null, 2));
      shown.replaceChildren(text);
      announce("The recorded text is shown");
    } catch (error) {
      shown.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
      button.disabled = false;
    }
  });
  const what = withCode(`${TEXTS[kept]} ${ANSWERS} Reading it is recorded in the audit log.`);
  return [button, h("p", { class: "hint" }, what), shown];
}

/** @param {ApiError} problem */
function notRecorded(problem) {
  if (problem.status !== 404) return h("p", { class: "hint" }, `More may be recorded: ${problem.message}.`);
  return h(
    "p",
    { class: "hint" },
    "Nothing more is recorded. What experiments know is kept for endpoints with a running experiment, a mirror or ",
    h("code", {}, "ledger: always"),
    ".",
  );
}
