// One request by its id: which deployment answered, why, and how it went.

import { h, svg } from "../dom.js";
import { moment, seconds } from "../format.js";

export const title = "Requests";

const LOOKS = 6; // attempts to find a request that has just been made
const BETWEEN_LOOKS_MS = 1000;
const THUMB = "M7 11v9H3v-9zM7 11l4-8c1.7 0 2.6 1 2.6 2.4L13 9h6.2c1.2 0 2 1 1.8 2.2l-1.3 7c-.2 1-1 1.8-2 1.8H7";

/** @type {Record<string, string>} */
const REASONS = {
  traffic: "drawn by the traffic's percentages",
  sticky: "its sticky key maps there",
  header: "the request named the deployment in a header",
  model: "the request named the deployment as its model",
  override: "the plan has an override for its key",
  pinned: "its conversation started there before the traffic changed",
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
};

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, context) {
  const { api, announce } = context;
  const ended = new AbortController();
  const id = h("input", {
    id: "request-id",
    name: "id",
    class: "mono",
    autocomplete: "off",
    spellcheck: "false",
    value: context.parameters.id ?? "",
    placeholder: "chatcmpl-… or the header x-request-id",
  });
  const found = h("div", { class: "found" });
  let turn = 0;
  root.append(
    h("h1", {}, title),
    h(
      "p",
      { class: "hint" },
      "Find a request by the id in its answer or in the header x-request-id: one of your own, or for managers ",
      "anyone's. Only recorded requests are found: those of endpoints with a running experiment, a mirror, or ",
      h("code", {}, "ledger: always"),
      ".",
    ),
    h(
      "form",
      { class: "search", role: "search", on: { submit: (event) => (event.preventDefault(), look()) } },
      h("div", { class: "field" }, h("label", { for: id.id }, "Request id"), id),
      h("button", { type: "submit", class: "primary" }, "Find"),
    ),
    found,
  );

  /** `looks`: the most attempts. A request is recorded a second or two after it has ended. */
  async function look(looks = 1) {
    const wanted = id.value.trim();
    if (!wanted) {
      id.focus();
      return;
    }
    const own = ++turn;
    found.replaceChildren(h("p", { class: "hint" }, "Looking …"));
    try {
      const [{ exposures }, me] = await Promise.all([
        exposuresOf(wanted, looks),
        api.get("/api/me", { signal: ended.signal }),
      ]);
      if (own !== turn) return;
      found.replaceChildren(...exposures.map((exposure) => card(exposure, wanted, me, context)));
      announce(exposures.length === 1 ? "One request found" : `${exposures.length} requests found`);
    } catch (error) {
      if (ended.signal.aborted || own !== turn) return;
      found.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
      if (error.status === 404)
        found.append(h("p", { class: "hint" }, "A request appears a second or two after it has ended."));
    }
  }

  /**
   * @param {string} wanted
   * @param {number} looks
   * @returns {Promise<{exposures: Exposure[]}>}
   */
  async function exposuresOf(wanted, looks) {
    for (let left = looks - 1; ; left -= 1) {
      try {
        return await api.get(`/api/requests/${encodeURIComponent(wanted)}`, { signal: ended.signal });
      } catch (error) {
        if (error.status !== 404 || left <= 0) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, BETWEEN_LOOKS_MS));
    }
  }

  if (id.value) look(LOOKS);
  return () => ended.abort();
}

/**
 * @param {Exposure} exposure
 * @param {string} id
 * @param {Me} me
 * @param {Context} context
 */
function card(exposure, id, me, context) {
  const { plan, assigned, served } = exposure;
  const endpoint = me.endpoints.find((endpoint) => endpoint.endpoint === plan.endpoint);
  const failed = exposure.error !== "none";
  const pairs = [
    ["Deployment", served ?? "none: no deployment answered"],
    [
      "Why",
      [
        REASONS[exposure.reason] ?? exposure.reason,
        failed ? `; ${assigned} ${FAILURES[exposure.error] ?? "failed"}` : "",
        served !== null && served !== assigned ? `, so ${served} answered instead of ${assigned}` : "",
      ].join(""),
    ],
    ["Status", `${exposure.status}${exposure.finish === "none" ? "" : `, ${exposure.finish.replaceAll("_", " ")}`}`],
    ["Attempts", String(exposure.attempts)],
    ...(exposure.moves
      ? [
          [
            "Continued",
            `${exposure.moves === 1 ? "once" : `${exposure.moves} times`}, after ${seconds(exposure.pause_s)}`,
          ],
        ]
      : []),
    ["First token", seconds(exposure.ttft_s) ?? "–"],
    ["Duration", seconds(exposure.duration_s)],
    [
      "Between tokens",
      exposure.itl_mean_s === null
        ? "–"
        : `${seconds(exposure.itl_mean_s)} on average, at most ${seconds(exposure.itl_max_s ?? exposure.itl_mean_s)}`,
    ],
    ["Tokens", `${count(exposure.prompt_tokens)} in the prompt, ${count(exposure.completion_tokens)} in the answer`],
    [
      "Plan",
      `${plan.id}: ${Object.entries(plan.weights)
        .map(([name, weight]) => `${name} ${weight}\u00a0%`)
        .join(", ")}`,
    ],
    ["Sent as", `${exposure.dialect}, ${exposure.task}${exposure.stream ? ", streamed" : ""}`],
    ["Arrived", moment(exposure.at)],
    ["Feedback", scores(exposure.feedback)],
    ...(exposure.flags.length ? [["Remarks", exposure.flags.map((flag) => FLAGS[flag] ?? flag).join("; ")]] : []),
  ];
  const bad = exposure.status >= 400 || failed;
  return h(
    "article",
    { class: "answer request", "aria-label": `Request at ${plan.endpoint}` },
    h(
      "header",
      {},
      h("h2", {}, plan.endpoint),
      h(
        "span",
        { class: `state ${bad ? "bad" : "good"}` },
        exposure.status >= 400 ? "failed" : failed ? "answered after a failure" : "answered",
      ),
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
