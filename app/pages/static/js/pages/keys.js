// The caller, its roles, its endpoints and what is left of its limits; for managers and viewers, every caller's usage
// and every key, which managers create, change and revoke.

import { h, morph } from "../dom.js";
import { list, moment } from "../format.js";
import { keyTable } from "../keys/table.js";
import { cell, staleness, table } from "../parts.js";

export const title = "Keys";

const KINDS = { requests: "Requests per minute", tokens: "Tokens per minute", concurrent: "Concurrent requests" };
/** @param {number} value */
const number = (value) => value.toLocaleString("en-GB");

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, { api, poll, announce }) {
  const who = h("section", { class: "who" });
  const others = h("section", { class: "callers", hidden: true });
  const stale = staleness();
  /** @type {AuditRecord[] | null} The revocations, of which the audit log tells; null: to be read. */
  let revoked = null;
  root.append(h("h1", {}, title), stale.element, who, others);

  /** @param {AbortSignal} signal */
  async function refresh(signal) {
    const me = await api.get("/api/me", { signal });
    morph(who, ...about(me));
    if (me.views) {
      /** @type {[Keys, Callers]} */
      const [held, used] = await Promise.all([api.get("/api/keys", { signal }), api.get("/api/callers", { signal })]);
      revoked ??= await revocations(held, signal);
      const changed = () => {
        revoked = null;
        return refresh(signal);
      };
      morph(others, ...keyTable(held, revoked ?? [], { api, announce, changed }), ...everybody(used));
    }
    others.hidden = !me.views;
    stale.read();
  }

  /**
   * @param {Keys} held
   * @param {AbortSignal} signal
   * @returns {Promise<AuditRecord[] | null>} null: they cannot be read, as the page Audit says.
   */
  async function revocations({ at, days, keys, issue_keys }, signal) {
    if (!issue_keys && !keys.some(({ source }) => source === "issued")) return []; // none were ever issued
    const since = String(Math.floor(at - days * 86_400));
    const wanted = new URLSearchParams({ action: "revoke_key", outcome: "accepted", since, limit: "50" });
    try {
      return (await api.get(`/api/audit?${wanted}`, { signal })).records;
    } catch {
      return null;
    }
  }

  return poll(refresh, { failed: stale.failed });
}

/** @param {Me} me */
function about(me) {
  const name = me.anonymous ? "You are not signed in." : h("span", {}, "You are ", h("strong", {}, me.caller), ".");
  return [
    h("p", { class: "lead" }, name, " ", rights(me)),
    h("h2", {}, "Your endpoints"),
    me.endpoints.length
      ? h(
          "div",
          { class: "endpoints" },
          me.endpoints.map((usable) => endpoint(usable)),
        )
      : h("p", { class: "empty" }, "You have access to no endpoint on this server."),
    me.endpoints.some((usable) => usable.limits.length) &&
      h(
        "p",
        { class: "hint" },
        `Limits are counted ${me.limits_counted}. Usage counts in full for its minute and fades out over the next one.`,
      ),
  ];
}

/** @param {Me} me */
function rights({ manages, anonymous, operates, views }) {
  if (manages)
    return anonymous
      ? "This server has no keys: anyone who can reach it can use and change everything."
      : "You are a manager: you can change traffic and decide on experiments.";
  const reads = views ? " You are a viewer: you can see everyone's usage." : "";
  if (operates.length)
    return (
      `You are an operator of ${list(operates)}: ` +
      `you can change the traffic there, decide on the experiments, and see the models and everyone's requests.${reads}`
    );
  return `You can use the endpoints listed here; only managers and operators change traffic.${reads}`;
}

/** @param {MyEndpoint} endpoint */
function endpoint({ endpoint: name, tasks, deployments, limits }) {
  return h(
    "article",
    { class: "answer", key: name, "aria-label": name },
    h(
      "header",
      {},
      h("h3", {}, name),
      h("a", { href: `#/playground?endpoint=${encodeURIComponent(name)}`, class: "state" }, "Try it"),
    ),
    h(
      "p",
      { class: "hint" },
      `${tasks.join(", ")} · `,
      deployments.map(({ deployment, weight }) => `${deployment} ${weight}\u00a0%`).join(", "),
    ),
    limits.length ? h("ul", { class: "limits" }, limits.map(limit)) : h("p", {}, "No limits."),
  );
}

/** @param {Limit} limit */
function limit({ kind, limit: most, used, remaining, resets_in_s }) {
  if (remaining === null)
    return h(
      "li",
      { key: kind },
      h("span", {}, KINDS[kind]),
      h(
        "span",
        { class: "hint" },
        `limit ${number(most)}; the remainder is unknown, because the limit store does not answer`,
      ),
    );
  const share = most ? Math.min(1, used / most) : 0;
  const level = share >= 1 ? "bad" : share >= 0.8 ? "warn" : "good";
  const resets = resets_in_s ? `, full again in ${Math.ceil(resets_in_s)}\u00a0s` : "";
  return h(
    "li",
    { key: kind },
    h("span", {}, KINDS[kind]),
    h(
      "span",
      { class: `bar ${level}`, "aria-hidden": "true" },
      h("span", { style: { width: `${(100 * share).toFixed(1)}%` } }),
    ),
    h("span", { class: "hint" }, `${number(remaining)} of ${number(most)} left${resets}`),
  );
}

/** @param {Callers} document */
function everybody({ since, callers, view }) {
  const counted = ["Requests", "Failed, refused or left", "Prompt tokens", "Answer tokens", "Last"];
  /** @param {CallerUse} use */
  const row = (use) => {
    const values = [
      ...[use.requests, use.not_answered, use.prompt_tokens, use.completion_tokens].map(number),
      moment(use.last_at),
    ];
    return h(
      "tr",
      { key: JSON.stringify([use.caller, use.endpoint]) },
      cell("", use.caller ?? "all other callers", { header: true }),
      cell("Endpoint", use.endpoint ?? "none"),
      values.map((value, index) => cell(counted[index], value, { number: true })),
    );
  };
  return [
    h("h2", {}, "Usage by caller"),
    h(
      "p",
      { class: "hint" },
      `Since ${moment(since)}, counted by ${view}. The numbers by day above are those of all routers.`,
    ),
    callers.length
      ? table(
          "Usage by caller",
          ["Caller", "Endpoint", ...counted.map((label) => ({ label, number: true }))],
          callers.map(row),
          { class: "stacked" },
        )
      : h("p", { class: "empty" }, "No calls yet."),
  ];
}
