// One request as it was recorded for experiments, with thumbs for its answer.

import { h, svg } from "../dom.js";
import { list, moment, seconds } from "../format.js";
import { clientLeft, mark } from "../parts.js";

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
    ["Tokens", `${count(exposure.prompt_tokens)} in the prompt, ${count(exposure.completion_tokens)} in the answer`],
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
function count(tokens) {
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
