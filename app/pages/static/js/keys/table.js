// Every key with its rights and use; managers create, change and revoke those that the server keeps.

import { h } from "../dom.js";
import { count, minute, moment, or, whole, withCode } from "../format.js";
import { askForReason, cell, mark, table } from "../parts.js";
import { bars, oneStop, withAxes } from "../sparkline.js";
import { askForKey, showSecret } from "./form.js";

/**
 * @param {Keys} document
 * @param {AuditRecord[]} revoked
 * @param {KeyActions} actions
 */
export function keyTable(document, revoked, actions) {
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
      "Days are in UTC, and today's count lags by a few seconds. ",
      keys.some((key) => key.uses === null) ? "At present the controller of experiments does not say." : "",
    ),
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
