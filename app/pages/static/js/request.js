// One request: where its time went, what was recorded of it for experiments, and thumbs for its answer.

import { h, svg } from "./dom.js";
import { count, list, moment, number, or, seconds, whole } from "./format.js";
import { clientLeft, mark } from "./parts.js";

const LOST = "lost with its router";

/** @type {Record<string, string>} */
const ERRORS = {
  content_filter: "blocked by the content filter",
  broken: "deployment failed",
  client_gone: "client left",
  client_timeout: "the request's own time limit",
  no_engine: "no engine was there",
  router_lost: LOST,
  suspected: "held back: engines died",
};

/**
 * A kind of error in words.
 *
 * @param {string} kind
 */
export function errorWords(kind) {
  return ERRORS[kind] ?? kind.replaceAll("_", " ");
}

/**
 * What a request ended with. A failure after a good status is one that came once the answer had begun.
 *
 * @param {{status: number, error: string}} request
 */
export function resultWords({ status, error }) {
  if (!error) return String(status);
  if (error === "router_lost") return status ? `${status}, then ${LOST}` : LOST;
  return status && status < 400 ? `${status}, then cut short: ${errorWords(error)}` : `${status} ${errorWords(error)}`;
}

/**
 * The request's result in a word, with its mark.
 *
 * @param {Pick<ListedRequest, "status" | "error" | "outcome" | "moves" | "paused_s" | "silent_s">} request
 */
export function result({ status, error, outcome, moves, paused_s, silent_s = null }) {
  const words = resultWords({ status, error });
  switch (outcome) {
    case null:
      if (silent_s !== null) return mark("warn", `its router has not answered for ${seconds(silent_s)}`);
      return mark("wait", paused_s === null ? "running" : `paused for ${seconds(paused_s)}: waits for an engine`);
    case "left":
      return clientLeft();
    case "errors":
      return mark("bad", words);
    case "refused":
      return mark("warn", words);
  }
  return mark("good", words, moves ? h("span", { class: "hint" }, " moved") : "");
}

/** @type {Record<string, string>} */
const NOWHERE = {
  not_found: "no endpoint or deployment has this name",
  forbidden: "its caller may not use what it asked for",
  limit_exceeded: "it was over a limit before it was read",
  too_large: "it was too large to be read",
  too_slow: "it did not come whole",
  client_gone: "its client left before it came whole",
  router_lost: "its router ended before it was read",
  unavailable: "the router could not serve it yet",
};

/**
 * Why a request is at no endpoint.
 *
 * @param {string} error
 */
export function whyNowhere(error) {
  return NOWHERE[error] ?? "it names none that could be read";
}

/**
 * What the client was told of its failure, in rows.
 *
 * @param {ListedRequest} request
 * @returns {[string, Child][]}
 */
function told({ message, code, type, param, is_engines, engine_message }) {
  const text = is_engines && !message ? "in the engine's words, which may quote the prompt: not shown here" : message;
  return [
    ...(text ? [/** @type {[string, Child]} */ (["Message", text])] : []),
    ...(engine_message ? [/** @type {[string, Child]} */ (["Engine", engine_message])] : []),
    ...(code ? [/** @type {[string, Child]} */ (["Code", h("span", { class: "mono" }, code)])] : []),
    ...(type ? [/** @type {[string, Child]} */ (["Type", h("span", { class: "mono" }, type)])] : []),
    ...(param ? [/** @type {[string, Child]} */ (["Field", h("span", { class: "mono" }, param)])] : []),
  ];
}

export const FIRST_BYTE_S = 10;
export const WHOLE_S = 20;

/**
 * Seconds in words, with as many digits as tell them from the limit.
 *
 * @param {number | null} value
 * @param {number} limit
 */
export function besides(value, limit) {
  if (value === null || value === limit || seconds(value) !== seconds(limit)) return seconds(value);
  return `${value.toFixed(Math.abs(value - limit) < 0.005 ? 4 : 2)}\u00a0s`;
}

/**
 * Why a request is slow, by the limits that the guardrail `slow` has where none are declared; null if it is not.
 *
 * @param {{stream: boolean, first_byte_s: number | null, duration_s: number}} request
 */
export function slowness({ stream, first_byte_s, duration_s }) {
  if (!stream) return duration_s > WHOLE_S ? `no whole answer within ${WHOLE_S}\u00a0s` : null;
  return (first_byte_s ?? duration_s) > FIRST_BYTE_S ? `no first byte within ${FIRST_BYTE_S}\u00a0s` : null;
}

const PAUSE = 4; // the colour of a wait for a replica, after those of the four parts

/** @typedef {{name: string, from: number, to: number, index: number}} Phase */

/**
 * A deployment, and its replica if it has told its name.
 *
 * @param {string} deployment
 * @param {string} engine
 */
const place = (deployment, engine) => (engine ? `${deployment} (replica ${engine})` : deployment);

/**
 * The calls of deployments that have failed before the answer. A stream that is interrupted later has a pause.
 *
 * @param {ListedRequest} request
 */
const failures = ({ failed_attempts, first_byte_s, paused_s }) =>
  failed_attempts.filter(({ continued, interrupted, until_s }, index) => {
    const waits = paused_s !== null && index === failed_attempts.length - 1;
    return !continued && !(interrupted && (waits || (first_byte_s !== null && first_byte_s < until_s)));
  });

/**
 * The replica that has sent the first byte: others may have gone on.
 *
 * @param {ListedRequest} request
 */
const beginner = ({ failed_attempts, first_byte_s, engine }) =>
  failed_attempts.find(({ interrupted, until_s }) => interrupted && first_byte_s !== null && first_byte_s < until_s)
    ?.engine ?? engine;

/**
 * Whether the last engine was lost, and no other one has gone on so far.
 *
 * @param {ListedRequest} request
 */
const isLost = ({ failed_attempts }) => {
  const last = failed_attempts.at(-1);
  return last !== undefined && last.interrupted && !last.continued;
};

/**
 * The parts of the request's time, in order: what happened, from when to when, in seconds since its arrival.
 *
 * @param {ListedRequest} request
 * @returns {Phase[]}
 */
export function phases(request) {
  const { admitted_s, sent_s, first_byte_s, duration_s: end, attempts, deployment, running, pauses, lacked } = request;
  const failed = failures(request);
  const most = attempts > 1 ? (/** @type {number} */ number) => `Attempt ${number}, ` : () => "";
  /** @type {{name: string, to: number | null, index: number}[]} */
  const marks = [{ name: "Checked, and waited for limits and the queue", to: admitted_s, index: 0 }];
  const ready = (/** @type {number | null} */ to) => ({
    name: marks.length > 1 ? "Waited before another attempt" : "Prepared",
    to,
    index: 1,
  });
  failed.forEach(({ deployment: at, engine: replica, at_s, until_s, why }, index) => {
    const [from, length] = pauses.findLast(([from]) => at_s <= from && from <= until_s) ?? [until_s, 0];
    const to = Math.max(until_s, from + length);
    marks.push(ready(at_s), { name: `${most(index + 1)}${place(at, replica)}: ${why}`, to, index: 2 });
  });
  // The last attempt is none of those: it has answered, or nothing came.
  const isOpen = failed.length < attempts;
  const isCut = isOpen && request.status >= 400 && ownLimit(request) !== "";
  if (isOpen || !failed.length) {
    const until = isCut
      ? `no answer${ownLimit(request)}`
      : first_byte_s !== null
        ? "until the first byte"
        : running
          ? "no answer so far"
          : "no answer";
    const name = `${most(attempts)}${place(deployment || "Deployment", beginner(request))}: ${until}`;
    marks.push(ready(sent_s));
    if (sent_s !== null && lacked && lacked[0] >= sent_s && lacked[0] < (first_byte_s ?? end)) {
      const still = first_byte_s === null && lacked[1] >= end;
      marks.push({
        name: `No replica ran: waited for one of ${deployment} to start`,
        to: still ? null : lacked[1],
        index: PAUSE,
      });
    }
    marks.push({ name, to: first_byte_s, index: 2 });
  }
  const answer = isOpen && !isCut ? `Answer${ownLimit(request)}` : "Answered with the error";
  marks.push({ name: answer, to: end, index: 3 });
  /** @type {Phase[]} */
  const found = [];
  let from = 0;
  for (const { name, to, index } of marks) {
    // A step that was not reached: the request ended in it.
    const until = Math.max(from, to ?? end);
    found.push({ name, from, to: until, index });
    from = until;
    if (to === null) break;
  }
  // An error of the router itself has its first byte before any deployment was called.
  const parts = pauses.reduce(parted, found);
  const last = parts.at(-1);
  if (isLost(request) && last?.name.endsWith(CONTINUED)) last.name = "Ended: no engine went on";
  return parts;
}

/**
 * What became of each call of a deployment; of a stream, of each replica that has had it.
 *
 * @param {ListedRequest} request
 * @returns {string[]}
 */
export function attemptWords(request) {
  const { attempts, failed_attempts, deployment, engine, first_byte_s, paused_s, running } = request;
  const words = failed_attempts.map((failed, index) => {
    const { deployment: at, engine: replica, at_s, until_s, why, continued, interrupted } = failed;
    const waits = paused_s !== null && index === failed_attempts.length - 1;
    const lost = waits ? `; the stream has waited ${seconds(paused_s)} for another` : "; none went on";
    const then = continued ? ", another went on" : interrupted ? lost : "";
    return `${place(at, replica)}: ${why} after ${seconds(until_s - at_s)}${then}`;
  });
  const isAnswered = failures(request).length < attempts && first_byte_s !== null && !isLost(request);
  return [...words, ...(isAnswered ? [`${place(deployment, engine)}: it ${running ? "answers" : "answered"}`] : [])];
}

/**
 * How often deployments were called, and what became of each call that was not the only one.
 *
 * @param {ListedRequest} request
 * @returns {Child}
 */
function attemptList(request) {
  if (!request.failed_attempts.length) return whole(request.attempts);
  return h(
    "ol",
    { class: "attempts" },
    attemptWords(request).map((text) => h("li", {}, text)),
  );
}

const CONTINUED = ", continued";
const NOTHING_S = 1e-6; // what the rounding of times may leave

/**
 * The parts with a pause in one of them: what was before it, the pause itself, and what came after it.
 *
 * @param {Phase[]} parts
 * @param {[number, number]} pause
 * @returns {Phase[]}
 */
function parted(parts, [at, length]) {
  const cut = parts.findLastIndex(({ from }) => from <= at);
  const whole = parts[cut];
  if (whole === undefined) return parts;
  const end = whole.to - at - length > NOTHING_S ? at + length : whole.to;
  const name = whole.name.endsWith(CONTINUED) ? whole.name : `${whole.name}${CONTINUED}`;
  const after = { ...whole, name, from: end };
  return [
    ...parts.slice(0, cut),
    ...(at > whole.from ? [{ ...whole, to: at }] : []),
    { name: "Its engine was lost: waited for another", from: at, to: end, index: PAUSE },
    ...(whole.to > end ? [after] : []),
    ...parts.slice(cut + 1),
  ];
}

/**
 * When a request ended: of one that was lost with its router, nobody knows.
 *
 * @param {ListedRequest} request
 */
function ended({ at, duration_s, error }) {
  const last = moment(at + duration_s);
  return error === "router_lost" ? `not known: its router answered last at ${last}` : last;
}

/**
 * The duration of a request after its number: what runs takes longer, and so may what was lost.
 *
 * @param {Pick<ListedRequest, "running" | "error" | "silent_s">} request
 */
export function soFar({ running, error, silent_s = null }) {
  if (running) return silent_s === null ? " so far" : " when it answered last";
  return error === "router_lost" ? " or more" : null;
}

/**
 * @param {ListedRequest} request
 * @param {string | null} traceUrl
 */
export function timeline(request, traceUrl) {
  const [steps, slow] = [phases(request), slowness(request)];
  const trace = request.trace && traceUrl !== null ? traceUrl.replaceAll("{trace_id}", request.trace) : null;
  const pairs = [
    ...told(request),
    ...(request.endpoint || request.running ? [] : [["Endpoint", `none: ${whyNowhere(request.error)}`]]),
    ["Arrived", moment(request.at)],
    ...(request.running ? [] : [["Ended", ended(request)]]),
    ...(slow ? [["Slow", slow]] : []),
    ["Deployment", request.deployment ? place(request.deployment, request.engine) : "none: the router answered"],
    ["Why", request.deployment ? (REASONS[request.reason] ?? (request.reason || "–")) : "–"],
    ["Caller", request.caller || "unknown"],
    ["Sent as", `${request.dialect}, ${request.operation.replaceAll("_", " ")}${request.stream ? ", streamed" : ""}`],
    ["Attempts", attemptList(request)],
    ...(request.moves
      ? [["Moved", `${count(request.moves, "time", "times")} to another engine; the wait: ${seconds(request.pause_s)}`]]
      : []),
    ["Tokens", tokens(request)],
    ["Plan", request.plan || "–"],
    ["Request id", h("span", { class: "mono" }, request.id)],
    ...(request.trace
      ? [
          [
            "Trace",
            trace === null
              ? h("span", { class: "mono" }, request.trace)
              : h("a", { href: trace, class: "mono", rel: "noreferrer", target: "_blank" }, request.trace),
          ],
        ]
      : []),
  ];
  return h(
    "article",
    { class: "answer request", "aria-label": `Timeline of ${request.id}`, key: request.id },
    h("header", {}, h("h2", {}, request.endpoint || "No endpoint"), h("span", { class: "state" }, result(request))),
    h(
      "div",
      { class: "phases", "aria-hidden": "true" },
      steps.map(({ from, to, index }) =>
        h("span", {
          class: `phase arm-${index + 1}`,
          style: { "flex-grow": String((100 * (to - from)) / request.duration_s) },
        }),
      ),
    ),
    h(
      "ol",
      { class: "steps" },
      steps.map(({ name, from, to, index }) =>
        h(
          "li",
          {},
          h("span", { class: `swatch arm-${index + 1}`, "aria-hidden": "true" }),
          `${name}: `,
          h("b", {}, seconds(to - from)),
          h(
            "span",
            { class: "hint" },
            // The first part ends when it has lasted: its length says both.
            request.running && to === request.duration_s ? " so far" : from > 0 ? ` until ${seconds(to)}` : "",
          ),
        ),
      ),
    ),
    h(
      "dl",
      { class: "pairs" },
      pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, or(value)))),
    ),
  );
}

/**
 * The request's tokens in words, with their rate while an engine wrote.
 *
 * @param {ListedRequest} request
 */
export function tokens(request) {
  const { prompt_tokens, completion_tokens, max_tokens, first_byte_s, duration_s, pause_s } = request;
  if (prompt_tokens === null) return sent(request) ?? (request.running ? "not known yet" : "not counted");
  const most = max_tokens === null ? "" : ` of at most ${whole(max_tokens)}`;
  const time = first_byte_s === null ? 0 : duration_s - first_byte_s - pause_s;
  const without = pause_s ? " without the wait for another engine" : "";
  const later = (completion_tokens ?? 0) - 1; // than the first one, whose time is the prompt's
  const rate = later > 0 && time > 0.01 ? `, ${number(later / time)}/s${without}` : "";
  return `${whole(prompt_tokens)} in the prompt, ${whole(completion_tokens ?? 0)} in the answer${most}${rate}`;
}

/**
 * The tokens of the answer: as its engine counted them, else what was sent of a stream, an event for a token where the
 * tokens are not known.
 *
 * @param {ListedRequest} request
 */
export function answerTokens({ completion_tokens, sent_tokens, sent_events }) {
  const known = whole(completion_tokens ?? sent_tokens);
  return known ?? (sent_events === null ? null : `about ${whole(sent_events)}`);
}

/** @type {Partial<Record<Outcome, string>>} */
const UNTIL = { left: "the client left", errors: "it was cut short" };

/**
 * Until when a request went on that took longer than it allows itself, in words after others; "" for others.
 *
 * @param {Pick<ListedRequest, "own_limit_s">} request
 */
function ownLimit({ own_limit_s: limit }) {
  return typeof limit === "number" ? ` until the request's own limit of ${number(limit)}\u00a0s passed` : "";
}

/**
 * What was sent of a stream that runs, or whose engine has counted nothing.
 *
 * @param {ListedRequest} request
 */
function sent(request) {
  const tokens = answerTokens(request);
  if (tokens === null) return null;
  const ended = request.outcome === null ? undefined : UNTIL[request.outcome];
  const until =
    request.outcome === null ? " so far" : ownLimit(request) || (ended === undefined ? "" : ` until ${ended}`);
  return `${tokens} in the answer${until}${request.sent_tokens === null ? ", by its events" : ""}`;
}

const THUMB = "M7 11v9H3v-9zM7 11l4-8c1.7 0 2.6 1 2.6 2.4L13 9h6.2c1.2 0 2 1 1.8 2.2l-1.3 7c-.2 1-1 1.8-2 1.8H7";

/** @type {Record<string, string>} */
export const REASONS = {
  traffic: "drawn by the traffic's percentages",
  sticky: "its sticky key maps there",
  header: "the request named the deployment in a header",
  model: "the request named the deployment as its model",
  override: "the plan has an override for its key",
  pinned: "its conversation started there before the traffic changed",
  failover: "the deployment that was chosen first had failed",
};
/** @type {Record<string, string>} */
const FAILURES = {
  unreachable: "could not be reached",
  unavailable: "was unavailable",
  timeout: "did not answer in time",
  broken: "failed",
  incomplete: "ended its answer before it was complete",
  other: "failed in another way",
};
/** @type {Record<string, string>} */
const FLAGS = {
  forced: "no experiment counts it: its deployment was named",
  carried: "its conversation may have started under an earlier plan",
  invalid_output: "the answer does not match the requested format",
  empty: "the answer is empty",
  client_gone: "the client left before the end",
  own_failure: "its client allows it less than a second",
  long: "its size, what it asks for or its client's patience may make it slow anywhere",
};
/** @type {Record<string, string>} */
const OWN = {
  own_empty: "whether the answer is empty",
  own_length: "its length",
  own_form: "its form",
  own_time: "how long it takes",
  own_gaps: "the time between its tokens",
};

/**
 * What its flags say of a request. That there are other callers is no remark on it.
 *
 * @param {string[]} flags
 * @returns {string[]}
 */
export function remarks(flags) {
  const own = flags.filter((flag) => flag in OWN).map((flag) => OWN[flag]);
  return [
    ...flags.filter((flag) => flag in FLAGS).map((flag) => FLAGS[flag]),
    ...(own.length ? [`its own parameters, not the deployment, may decide ${list(own)}`] : []),
  ];
}

/**
 * `isListed`: its timeline is shown too, and this adds only what that does not say.
 *
 * @param {Exposure} exposure
 * @param {string} id
 * @param {Me} me
 * @param {boolean} isListed
 * @param {Context} context
 */
export function recorded(exposure, id, me, isListed, context) {
  const { plan, assigned, served } = exposure;
  const endpoint = me.endpoints.find((endpoint) => endpoint.endpoint === plan.endpoint);
  const failed = exposure.error !== "none";
  const why = [
    REASONS[exposure.reason] ?? exposure.reason,
    failed ? `; ${assigned} ${FAILURES[exposure.error] ?? "failed"}` : "",
    served !== null && served !== assigned ? `, so ${served} answered instead of ${assigned}` : "",
  ].join("");
  const finish = exposure.finish === "none" ? "" : exposure.finish.replaceAll("_", " ");
  const alone = [
    ["Deployment", served ?? "none: no deployment answered"],
    ["Why", why],
    ["Status", [String(exposure.status), finish].filter(Boolean).join(", ")],
    ["Attempts", String(exposure.attempts)],
    ...(exposure.moves
      ? [
          [
            "Continued",
            `${exposure.moves === 1 ? "once" : `${exposure.moves} times`}; the wait: ${seconds(exposure.pause_s)}`,
          ],
        ]
      : []),
    ["Duration", seconds(exposure.duration_s)],
    ["Tokens", `${known(exposure.prompt_tokens)} in the prompt, ${known(exposure.completion_tokens)} in the answer`],
    ["Sent as", `${exposure.dialect}, ${exposure.task}${exposure.stream ? ", streamed" : ""}`],
    ["Arrived", moment(exposure.at)],
  ];
  const listed = [...(failed ? [["Why", why]] : []), ...(finish ? [["Ended with", finish]] : [])];
  const remarked = remarks(exposure.flags);
  const longest = seconds(exposure.itl_max_s ?? exposure.itl_mean_s);
  const pauses = exposure.moves ? ", with the wait for another engine" : "";
  const pairs = [
    ...(isListed ? listed : alone),
    ["First token", seconds(exposure.ttft_s) ?? "–"],
    [
      "Between tokens",
      exposure.itl_mean_s === null ? "–" : `${seconds(exposure.itl_mean_s)} on average, at most ${longest}${pauses}`,
    ],
    [
      "Plan",
      `${plan.id}: ${Object.entries(plan.weights)
        .map(([name, weight]) => `${name} ${weight}\u00a0%`)
        .join(", ")}`,
    ],
    ["Feedback", scores(exposure.feedback)],
    ...(remarked.length ? [["Remarks", remarked.join("; ")]] : []),
  ];
  return h(
    "article",
    { class: "answer request", "aria-label": `Request at ${plan.endpoint}` },
    h(
      "header",
      {},
      h("h2", {}, isListed ? "For experiments" : plan.endpoint),
      isListed ? null : h("span", { class: "state" }, outcome(exposure, failed)),
    ),
    h(
      "dl",
      { class: "pairs" },
      pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    ),
    exposure.flags.includes("forced")
      ? h(
          "p",
          { class: "hint" },
          "A thumb would not count: experiments use only requests whose deployment the traffic split chose.",
        )
      : feedback(endpoint?.feedback ?? [], id, exposure.feedback ?? {}, context),
  );
}

/**
 * @param {Exposure} exposure
 * @param {boolean} failed
 */
function outcome({ status, flags }, failed) {
  if (flags.includes("client_gone")) return clientLeft();
  if (status >= 500) return mark("bad", "failed");
  if (status >= 400) return mark("warn", "refused");
  return failed ? mark("warn", "answered after a failure") : mark("good", "answered");
}

/** @param {number | null} tokens */
function known(tokens) {
  return tokens === null ? "unknown" : String(tokens);
}

/** @param {Record<string, number> | null} given */
function scores(given) {
  if (given === null) return "unknown: the ledger's directory cannot be read";
  return (
    Object.entries(given)
      .map(([metric, value]) => `${metric} ${value}`)
      .join(", ") || "none yet"
  );
}

/**
 * Thumbs for each boolean feedback metric of a running experiment.
 *
 * @param {{metric: string, type: string}[]} declared
 * @param {string} id
 * @param {Record<string, number>} given
 * @param {Context} context
 */
function feedback(declared, id, given, { api, announce }) {
  const thumbs = declared.filter((metric) => metric.type === "boolean");
  if (!thumbs.length) return h("p", { class: "hint" }, "No running experiment on this endpoint takes thumbs.");
  return h(
    "div",
    { class: "thumbs" },
    thumbs.map(({ metric }) => {
      const said = h("span", { class: "hint", role: "status" });
      /** @param {boolean} value */
      const give = async (value) => {
        try {
          const { accepted, pending } = await api.send("POST", "/api/feedback", { request_id: id, metric, value });
          for (const button of buttons)
            button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
          said.textContent = !accepted
            ? "No experiment takes this score any more."
            : pending
              ? "Recorded; it counts once the request is known."
              : "Recorded.";
        } catch (error) {
          said.textContent = error.message;
          announce(error.message);
        }
      };
      const buttons = [true, false].map((value) => {
        const way = value ? "up" : "down";
        return h(
          "button",
          {
            type: "button",
            class: way,
            "aria-pressed": String(given[metric] === Number(value)),
            "data-value": String(value),
            "aria-label": `${metric}: thumb ${way}`,
            on: { click: () => give(value) },
          },
          svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: THUMB })),
        );
      });
      return h("p", {}, h("strong", {}, metric), " ", buttons, " ", said);
    }),
  );
}
