// Who changed what, when and from where, and who was refused: the records of the audit log, the newest first.

import { h, morph } from "../dom.js";
import { Filters, same } from "../filters.js";
import { count, or, time, whole } from "../format.js";
import { cell, mark, notice, staleNotice, table } from "../parts.js";

export const title = "Audit";

const SHOWN = 50;
const EXPORTED = 10_000; // the most records of one answer
const FILTERS = ["last_s", "caller", "endpoint", "action", "outcome"];
const DEPLOYED = "-"; // in place of a caller
const FILE = "a deployed file";
/** @type {[string, string][]} */
const OUTCOMES = [
  ["accepted", "accepted"],
  ["refused", "refused"],
  ["failed", "failed"],
];
/** @type {Record<AuditRecord["outcome"], Mark>} */
const MARKS = { accepted: "good", refused: "warn", failed: "bad" };

/** @param {string} name */
const words = (name) => name.replaceAll("_", " ");

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, { api, poll, announce, parameters }) {
  const filters = new Filters("audit", FILTERS, parameters, { refresh, announce, failed });
  /** @type {AuditPage | null} */
  let found = null;
  /** @type {ApiError | null} */
  let problem = null;
  let [most, turn, readAt] = [SHOWN, 0, 0];

  /**
   * @param {Record<string, string>} values
   * @param {number} limit
   */
  const path = (values, limit) => `/api/audit?${new URLSearchParams({ ...values, limit: String(limit) })}`;

  /** @param {AbortSignal} [signal] */
  async function refresh(signal) {
    const own = ++turn;
    /** @type {AuditPage} */
    const answer = await filters.applied((values) => api.get(path(values, most), { signal }));
    if (own !== turn) return;
    [found, problem, readAt] = [answer, null, Date.now() / 1000];
    draw();
  }

  /** @param {Error} error */
  function failed(error) {
    problem = /** @type {ApiError} */ (error);
    draw();
  }

  async function save() {
    try {
      const answer = await filters.applied((values) => api.fetch(`${path(values, EXPORTED)}&format=jsonl`));
      const url = URL.createObjectURL(await answer.blob());
      h("a", { href: url, download: `audit-${new Date().toISOString().slice(0, 10)}.jsonl` }).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      failed(error);
    }
  }

  function draw() {
    morph(
      root,
      h("h1", {}, title),
      problem === null ? null : staleNotice(problem, found === null ? null : readAt),
      found === null ? problem === null && h("p", { class: "hint" }, "Loading …") : page(found),
    );
  }

  /** @param {AuditPage} shown */
  function page({ records, before, damaged = {}, names = namesIn(records) }) {
    const lines = Object.values(damaged).reduce((sum, some) => sum + some, 0);
    const what = count(lines, "damaged or changed line", "damaged or changed lines");
    return [
      lines ? notice("bad", `${what}: ${Object.keys(damaged).join(", ")}`) : null,
      h(
        "p",
        { class: "hint summary" },
        "Who changed what, and who was refused, newest first. A record holds no prompt and no key. ",
        h("button", { type: "button", class: "quiet", on: { click: save } }, "Export as JSON lines"),
      ),
      filters.row(
        filters.when(),
        filters.select(
          "caller",
          "Who",
          names.caller.map((name) => [name, name === DEPLOYED ? FILE : name]),
          "everyone",
        ),
        filters.select("endpoint", "Endpoint", same(names.endpoint)),
        filters.select(
          "action",
          "What",
          names.action.map((action) => [action, words(action)]),
        ),
        filters.select("outcome", "Outcome", OUTCOMES),
      ),
      records.length
        ? table("Audit log", ["When", "Who", "What", "Outcome", "Reason", "From"], records.map(row), {
            class: "stacked audit",
          })
        : h(
            "p",
            { class: "empty" },
            Object.keys(filters.values).length ? "No record passes these filters." : "No records.",
          ),
      before === null
        ? null
        : h("p", { key: "more" }, h("button", { type: "button", on: { click: more } }, `Show ${SHOWN} more`)),
    ];
  }

  function more() {
    most += SHOWN;
    refresh().catch(failed);
  }

  draw();
  return poll(refresh, { every: 10_000, failed });
}

/**
 * What an older controller of experiments does not say: of the records that are shown, what to filter by.
 *
 * @param {AuditRecord[]} records
 * @returns {NonNullable<AuditPage["names"]>}
 */
function namesIn(records) {
  /** @param {"caller" | "endpoint" | "action"} field */
  const all = (field) => [...new Set(records.map((record) => record[field]))].filter(Boolean).sort();
  return { caller: all("caller"), endpoint: all("endpoint"), action: all("action") };
}

/** @param {AuditRecord} record */
function row(record) {
  const { id, at, caller, action, outcome, status, error, reason, address, forwarded_for, count: times } = record;
  const where = [record.endpoint, record.experiment].filter(Boolean).join(", ");
  return h(
    "tr",
    { key: id },
    cell("", time(at), { header: true }),
    cell("Who", or(caller || (record.call ? null : FILE))),
    cell("What", [
      words(action),
      where ? ` · ${where}` : "",
      record.call ? h("div", { class: "hint small mono" }, record.call) : null,
      changed(record),
    ]),
    cell("Outcome", [
      mark(MARKS[outcome], outcome === "accepted" ? outcome : `${outcome}: ${status} ${words(error)}`),
      times > 1 ? h("div", { class: "hint small" }, `${whole(times)} times`) : null,
    ]),
    cell("Reason", or(reason)),
    cell("From", [
      or(address || null),
      forwarded_for ? h("div", { class: "hint small" }, `for ${forwarded_for}`) : null,
    ]),
  );
}

/** @param {AuditRecord} record */
function changed({ before, after }) {
  if (before === null && after === null) return null;
  return h(
    "details",
    {},
    h("summary", {}, "Before and after"),
    [
      ["Before", before],
      ["After", after],
    ].map(([label, value]) =>
      h("div", { class: "small" }, `${label}: `, h("code", {}, value === null ? "–" : JSON.stringify(value))),
    ),
  );
}
