// The caller, its roles, its endpoints and what is left of its limits; for managers and viewers, every caller's usage
// and every key, which managers create, change and revoke.

import { h, morph } from "../dom.js";
import { count, list, minute, moment, or, whole, withCode } from "../format.js";
import { askForReason, askInDialog, cell, copy, mark, opened, staleness, table } from "../parts.js";
import { bars, oneStop, withAxes } from "../sparkline.js";

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
  let whyNot = ""; // why they cannot be read
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
      morph(others, ...keyTable(held, revoked ?? [], whyNot, { api, announce, changed }), ...everybody(used));
    }
    others.hidden = !me.views;
    stale.read();
  }

  /**
   * @param {Keys} held
   * @param {AbortSignal} signal
   * @returns {Promise<AuditRecord[] | null>} null: they cannot be read.
   */
  async function revocations({ at, days, keys, issue_keys }, signal) {
    whyNot = "";
    if (!issue_keys && !keys.some(({ source }) => source === "issued")) return []; // none were ever issued
    const since = String(Math.floor(at - days * 86_400));
    const wanted = new URLSearchParams({ action: "revoke_key", outcome: "accepted", since, limit: "50" });
    try {
      return (await api.get(`/api/audit?${wanted}`, { signal })).records;
    } catch (error) {
      whyNot = error.message;
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

/**
 * @param {Keys} document
 * @param {AuditRecord[]} revoked
 * @param {string} whyNot Why revocations are not known, if they are not.
 * @param {KeyActions} actions
 */
function keyTable(document, revoked, whyNot, actions) {
  const { keys, why_not } = document;
  return [
    h(
      "div",
      { class: "headline", key: "keys-head" },
      h("h2", {}, "API keys"),
      why_not === null
        ? h(
            "button",
            { type: "button", class: "primary", on: { click: () => create(document, actions) } },
            "Create a key",
          )
        : null,
    ),
    why_not === null ? null : h("p", { class: "hint", key: "keys-why" }, withCode(why_not)),
    h(
      "p",
      { class: "hint", key: "keys-days" },
      `Requests in ${document.days} days: all requests for models with the key, at every router, `,
      "including those that named no endpoint. Calls to the API behind this console do not count. ",
      "Days are in UTC, today's count lags by a few seconds, and the last two seconds of a router that was killed are ",
      "missing. ",
      keys.some((key) => key.uses === null) ? "At present the controller of experiments does not say." : "",
    ),
    whyNot ? h("p", { key: "keys-revoked" }, mark("warn", `Keys that were revoked cannot be shown: ${whyNot}.`)) : null,
    keys.length || revoked.length
      ? oneStop(
          table(
            "API keys",
            ["Name", "Endpoints", "Limits", "Ends", "Last used", `Requests in ${document.days} days`, "Actions"],
            [
              ...keys.map((key) => row(key, document, actions)),
              ...revoked.map((record) => revokedRow(record, document)),
            ],
            { class: "stacked keys" },
          ),
        )
      : h("p", { class: "empty", key: "keys-none" }, "No keys."),
  ];
}

/**
 * @param {ApiKey} key
 * @param {Keys} document
 * @param {KeyActions} actions
 */
function row(key, document, actions) {
  const { id, name, source, endpoints, expires, previous, group, last_used, created_at, created_by } = key;
  const isOver = expires !== null && expires <= document.at;
  return h(
    "tr",
    { key: id },
    cell(
      "",
      [
        name,
        source === "file" ? h("span", { class: "tag" }, "keys file") : null,
        group ? h("span", { class: "tag" }, group) : null,
        h(
          "div",
          { class: "hint small" },
          created_at === null ? h("span", { class: "mono" }, id) : `by ${created_by}, ${moment(created_at)}`,
        ),
      ],
      { header: true },
    ),
    cell("Endpoints", endpoints === null ? "all" : endpoints.join(", ")),
    cell("Limits", ownLimits(key)),
    cell("Ends", [
      isOver ? mark("bad", `ended ${moment(expires)}`) : (moment(expires) ?? "never"),
      previous === null ? null : h("div", { class: "hint small" }, `previous secret: ${moment(previous)}`),
    ]),
    cell("Last used", minute(last_used) ?? "never"),
    cell(`Requests in ${document.days} days`, uses(key)),
    cell(
      "Actions",
      source === "issued" && document.why_not === null
        ? h(
            "div",
            { class: "inline" },
            h(
              "button",
              { type: "button", "aria-label": `Change ${name}`, on: { click: () => change(key, document, actions) } },
              "Change",
            ),
            h(
              "button",
              { type: "button", "aria-label": `Rotate ${name}`, on: { click: () => rotate(key, actions) } },
              "Rotate",
            ),
            h(
              "button",
              {
                type: "button",
                class: "danger",
                "aria-label": `Revoke ${name}`,
                on: { click: () => revoke(key, actions) },
              },
              "Revoke",
            ),
          )
        : h("span", { class: "hint" }, source === "file" ? "in the file" : "–"),
    ),
  );
}

/**
 * A key that is no more, as the audit log has its revocation, and what it was used for.
 *
 * @param {AuditRecord} record
 * @param {Keys} document
 */
function revokedRow({ id, at, caller, before }, { days, former }) {
  const {
    id: key,
    name,
    endpoints,
    limits,
  } = /** @type {Pick<ApiKey, "id" | "name" | "endpoints" | "limits">} */ (before);
  const used = former?.[key] ?? { last_used: null, uses: former ? [] : null };
  return h(
    "tr",
    { key: `revoked ${id}` },
    cell("", [name, h("div", { class: "hint small mono" }, key)], { header: true }),
    cell("Endpoints", endpoints ? endpoints.join(", ") : "all"),
    cell("Limits", ownLimits({ limits: limits ?? null, configured_limits: null })),
    cell("Ends", [mark("bad", `revoked ${moment(at)}`), h("div", { class: "hint small" }, `by ${caller}`)]),
    cell("Last used", or(minute(used.last_used))),
    cell(`Requests in ${days} days`, uses(used)),
    cell("Actions", or(null)),
  );
}

/** @type {Record<string, string>} */
const LIMITS = {
  requests_per_minute: "requests/min",
  tokens_per_minute: "tokens/min",
  concurrent_requests: "at once",
};

/**
 * The limits that are this caller's: the key's own come before those of the configuration, number by number.
 *
 * @param {Pick<ApiKey, "limits" | "configured_limits">} key
 */
function ownLimits({ limits, configured_limits }) {
  const own = Object.entries({ ...configured_limits, ...limits });
  if (!own.length) return "default";
  return own.map(([kind, most]) =>
    h(
      "div",
      {},
      `${most === null ? "no" : whole(most)} ${LIMITS[kind] ?? kind}`,
      limits !== null && kind in limits ? null : h("span", { class: "hint small" }, " (configuration)"),
    ),
  );
}

/** @param {number} days */
const daysAgo = (days) => (days === 0 ? "today" : days === 1 ? "yesterday" : `${days} days ago`);

/** @param {Pick<ApiKey, "uses">} key */
function uses({ uses: days }) {
  if (days === null) return or(null);
  if (!days.length) return "none";
  const requests = days.map((day) => day.requests);
  const sum = (/** @type {keyof DailyUse} */ field) => days.reduce((total, day) => total + day[field], 0);
  const tokens = whole(sum("prompt_tokens") + sum("completion_tokens"));
  const words = `${count(sum("requests"), "request", "requests")}, ${tokens} tokens`;
  const notAnswered = sum("not_answered");
  return [
    withAxes(
      bars(requests, `Requests on each of the last ${days.length} days: ${requests.join(", ")}`),
      [
        { text: `${days.length - 1} days ago`, at: 0 },
        { text: "today", at: 1 },
      ],
      null,
      requests.map((one, index) => `${daysAgo(days.length - 1 - index)}: ${whole(one)}`),
    ),
    h(
      "div",
      { class: "small" },
      words,
      notAnswered ? h("span", { class: "hint" }, `, ${whole(notAnswered)} failed, refused or left`) : null,
    ),
  ];
}

/**
 * @param {Keys} document
 * @param {KeyActions} actions
 */
async function create(document, actions) {
  const created = await askForKey({
    title: "Create a key",
    label: "Create",
    document,
    key: null,
    act: (wanted) => actions.api.send("POST", "/api/keys", wanted),
  });
  if (created === null) return;
  await showSecret(created, actions.announce);
  await actions.changed();
}

/**
 * @param {ApiKey} key
 * @param {Keys} document
 * @param {KeyActions} actions
 */
async function change(key, document, actions) {
  const changed = await askForKey({
    title: `Change the key of ${key.name}`,
    label: "Change",
    document,
    key,
    act: (wanted) => actions.api.send("PATCH", `/api/keys/${key.id}`, wanted, { "if-match": `"${key.revision}"` }),
  });
  if (changed === null) return;
  actions.announce(`The key of ${key.name} is changed`);
  await actions.changed();
}

const OVERLAPS = [
  [0, "at once"],
  [1, "in a day"],
  [7, "in 7 days"],
  [30, "in 30 days"],
];

/**
 * @param {ApiKey} key
 * @param {KeyActions} actions
 */
async function rotate(key, actions) {
  const overlap = h(
    "select",
    { id: "overlap" },
    OVERLAPS.map(([days, words]) => h("option", { value: String(days) }, words)),
  );
  overlap.value = "7";
  /** @type {any} */
  let rotated = null;
  await askForReason({
    title: `Rotate the key of ${key.name}`,
    explain: [
      h("p", {}, "It gets a new secret, with the same rights. Both work until the old one ends."),
      h("label", { for: overlap.id }, "The old secret ends"),
      overlap,
    ],
    label: "Rotate",
    act: async (reason) => {
      const days = Number(overlap.value);
      const previous_expires = days ? new Date(Date.now() + days * 86_400_000).toISOString() : null;
      const wanted = { previous_expires, reason };
      rotated = await actions.api.send("POST", `/api/keys/${key.id}/rotate`, wanted, {
        "if-match": `"${key.revision}"`,
      });
    },
  });
  if (rotated === null) return;
  await showSecret(rotated, actions.announce);
  await actions.changed();
}

/**
 * @param {ApiKey} key
 * @param {KeyActions} actions
 */
async function revoke(key, actions) {
  const isDone = await askForReason({
    title: `Revoke the key of ${key.name}`,
    explain: h("p", {}, "Requests with it get a 401 on every router within seconds. It cannot be brought back."),
    label: "Revoke",
    danger: true,
    typed: key.name,
    act: (reason) =>
      actions.api.send("POST", `/api/keys/${key.id}/revoke`, { reason }, { "if-match": `"${key.revision}"` }),
  });
  if (!isDone) return;
  actions.announce(`The key of ${key.name} is revoked`);
  await actions.changed();
}

const DAYS = [7, 30, 90, 365];
/** @type {readonly (readonly [string, string])[]} */
const LIMIT_LABELS = [
  ["requests_per_minute", "Requests per minute"],
  ["tokens_per_minute", "Tokens per minute"],
  ["concurrent_requests", "Requests at once"],
];

/**
 * Asks what a key may do. Resolves to what `act(wanted)` returns, or to null if it was cancelled.
 *
 * @param {KeyQuestion} question
 * @returns {Promise<any>}
 */
function askForKey({ title, label, document: held, key, act }) {
  const name = h("input", {
    id: "key-name",
    required: true,
    maxlength: "200",
    autocomplete: "off",
    spellcheck: "false",
    value: key?.name ?? "",
    disabled: key !== null,
  });
  const endpoints = held.endpoints.map((endpoint) =>
    h("input", {
      type: "checkbox",
      id: `key-endpoint-${endpoint}`,
      value: endpoint,
      checked: key?.endpoints?.includes(endpoint) ?? false,
    }),
  );
  const ends = h(
    "select",
    { id: "key-ends", value: key === null ? "90" : "as-now" },
    key === null ? null : h("option", { value: "as-now" }, `as now: ${moment(key.expires) ?? "never"}`),
    DAYS.map((days) => h("option", { value: String(days) }, `in ${days} days`)),
    h("option", { value: "" }, "never"),
  );
  const limits = LIMIT_LABELS.map(([kind]) =>
    h("input", { type: "number", id: `key-${kind}`, min: "1", step: "1", value: key?.limits?.[kind] ?? "" }),
  );
  const reason = h("input", { id: "key-reason", maxlength: "300", autocomplete: "off" });

  function wanted() {
    const chosen = endpoints.filter((box) => box.checked).map((box) => box.value);
    const own = LIMIT_LABELS.flatMap(([kind], index) =>
      limits[index].value ? [[kind, Number(limits[index].value)]] : [],
    );
    const days = Number(ends.value);
    return {
      ...(key === null ? { name: name.value.trim() } : {}),
      endpoints: chosen.length ? chosen : null,
      ...(ends.value === "as-now"
        ? {}
        : { expires: days ? new Date(Date.now() + days * 86_400_000).toISOString() : null }),
      limits: own.length ? Object.fromEntries(own) : null,
      ...(reason.value.trim() ? { reason: reason.value.trim() } : {}),
    };
  }

  return askInDialog(
    { title, label, first: key === null ? name : reason, act: async () => act(wanted()) },
    h("label", { for: name.id }, "Name"),
    name,
    h("p", { class: "hint" }, "In logs, limits and roles. No other key has it."),
    h(
      "fieldset",
      {},
      h("legend", {}, "Endpoints"),
      endpoints.map((box) => h("label", { class: "check", for: box.id }, box, box.value)),
      h("p", { class: "hint" }, "None ticked: all, also those of the future."),
    ),
    h("label", { for: ends.id }, "Ends"),
    ends,
    LIMIT_LABELS.map(([kind, words], index) => [h("label", { for: `key-${kind}` }, words), limits[index]]),
    h("p", { class: "hint" }, "Left out: the limits of the configuration."),
    h("label", { for: reason.id }, "Why? (for the audit log)"),
    reason,
  );
}

/**
 * Shows a new key's secret, which nothing else has. Resolves once "Done" is pressed: Escape does not close the dialog,
 * and leaving the page asks first.
 *
 * @param {{name: string, key: string}} created
 * @param {Announce} announce
 * @returns {Promise<void>}
 */
function showSecret({ name, key }, announce) {
  const secret = h("code", { class: "secret", tabindex: "0" }, key);
  const button = h("button", { type: "button", class: "primary" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = await copy(key, secret, announce);
  });
  const shown = new AbortController();
  addEventListener("beforeunload", (event) => event.preventDefault(), { signal: shown.signal });
  const dialog = h("dialog", {
    "aria-labelledby": "secret-title",
    closedby: "none", // and for browsers that do not know it:
    on: { keydown: (event) => event.key === "Escape" && event.preventDefault() },
  });
  dialog.append(
    h("h2", { id: "secret-title" }, `The key of ${name}`),
    h("p", {}, "This is the only time that it is shown: the server keeps a hash. It works on every router in seconds."),
    h("p", { class: "hint" }, "It stays here until you press Done."),
    secret,
    h(
      "div",
      { class: "actions" },
      button,
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Done"),
    ),
  );
  return opened(dialog, button).finally(() => shown.abort());
}
