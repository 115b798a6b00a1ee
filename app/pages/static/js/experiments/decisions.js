// A manager's decisions on an experiment: a description of the effect, a dry run where traffic moves, and a reason.

import { h } from "../dom.js";
import { list } from "../format.js";
import { askForReason, notice } from "../parts.js";
import { movesInWords } from "../traffic/moves.js";

/**
 * The actions that are possible now, the usual one first. Only the file resumes what the file paused.
 *
 * @param {Summary} summary
 * @returns {Action[]}
 */
export function actions(summary) {
  const acting = summary.acting;
  if (!acting || acting.state === "stopped") return [];
  const paused = acting.state === "paused";
  const standing = summary.alarm_kinds.includes("standing");
  /** @type {(Action | null)[]} */
  const possible = [
    paused && acting.cause !== "file" ? "resume" : null,
    paused || (acting.next_share ?? null) === null ? null : "advance",
    paused ? null : "pause",
    standing && !paused ? "resume" : null,
    "rollback",
    "promote",
    "stop",
  ];
  return possible.filter((action) => action !== null);
}

/** @type {Record<Action, string>} */
export const LABELS = {
  resume: "Resume",
  advance: "Advance",
  pause: "Pause",
  rollback: "Roll back",
  promote: "Promote",
  stop: "Stop",
};

/** @type {Record<string, string>} */
const DOUBTS = {
  do_not_ship: "is worse, or exceeds a guardrail: the report says not to ship it",
  keep_going: "is not known to be better: there is no decision on it yet",
  invalid: "cannot be judged: no verdict of this run can be trusted",
};

/**
 * Why a treatment should not be promoted now; null if the report says to ship it.
 *
 * @param {Summary} summary
 * @param {string} treatment
 */
function doubt({ decision, decisions }, treatment) {
  const found = decisions?.[treatment] ?? decision ?? "keep_going";
  return found === "ship" ? null : `${treatment} ${DOUBTS[found] ?? DOUBTS.keep_going}.`;
}

/**
 * Whether it was paused because a treatment failed: to go on is not the usual next step.
 *
 * @param {Summary} summary
 */
export function hasFailed({ decision, acting }) {
  return decision === "do_not_ship" || ["alarm", "worse", "harm"].includes(acting?.cause ?? "");
}

/**
 * Shows the effect, asks for a reason, sends the decision. Resolves to whether it was made. `etag`: the summary's.
 *
 * @param {Action} action
 * @param {Summary} summary
 * @param {string} etag
 * @param {string} treatment
 * @param {Context} context
 */
export async function decide(action, summary, etag, treatment, { api }) {
  const name = summary.experiment;
  const path = `/api/experiments/${encodeURIComponent(name)}/decision`;
  const named = action === "promote" ? { treatment } : {};
  const doubts = action === "promote" ? doubt(summary, treatment) : null;
  return askForReason({
    title: `${LABELS[action]}: ${name}`,
    explain: h(
      "div",
      {},
      doubts ? notice("bad", doubts) : null,
      h("p", {}, inWords(action, summary, treatment)),
      await dryRun(path, { action, reason: "dry run", ...named }, api),
    ),
    label: LABELS[action],
    danger: action === "rollback" || action === "stop" || doubts !== null,
    typed: doubts === null ? null : treatment,
    act: async (reason) => {
      try {
        await api.send("POST", path, { action, reason, ...named }, { "if-match": etag });
      } catch (error) {
        if (error.status === 412) throw new Error(goneOn(error.body?.current?.acting), { cause: error });
        throw error;
      }
    },
  });
}

/** @param {Acting} [acting] */
function goneOn(acting) {
  const now = acting ? ` It is ${acting.state} now, with ${acting.share}\u00a0% on treatments.` : "";
  return (
    `The experiment has changed since you opened this.${now} ` +
    "Close this dialog, look at the current state and decide again."
  );
}

/**
 * @param {Action} action
 * @param {Summary} summary
 * @param {string} treatment
 */
function inWords(action, { acting, alarm_kinds, control, treatments }, treatment) {
  const hasRamp = (acting?.step ?? acting?.next_share ?? null) !== null;
  return {
    resume:
      (hasRamp ? "The ramp continues by its own rules." : "The experiment continues. The traffic stays as it is.") +
      (acting?.cause === "alarm" || alarm_kinds.includes("standing") ? " That clears the guardrails' alarms." : ""),
    advance:
      `The treatments get ${acting?.next_share}\u00a0% of the traffic instead of ${acting?.share}\u00a0%, ` +
      "without waiting for the step's conditions.",
    pause: "Nothing advances until somebody resumes it. The traffic stays as it is.",
    rollback: `${control} gets the traffic of ${list(treatments)}, and the ${hasRamp ? "ramp" : "experiment"} pauses.`,
    promote: `${treatment} gets all the traffic that the holdout leaves, and the experiment ends.`,
    stop: "The experiment ends. The traffic stays as it is.",
  }[action];
}

/**
 * The server's dry run. A refusal of it is shown: the decision itself would be refused, too.
 *
 * @param {string} path
 * @param {Record<string, unknown>} decision
 * @param {Api} api
 * @returns {Promise<Child>}
 */
async function dryRun(path, decision, api) {
  try {
    const { before, after, stopped, moves } = await api.send("POST", `${path}?dry_run=true`, decision);
    return [
      stopped.length
        ? h("p", {}, h("strong", {}, list(stopped)), " gets no traffic from now on, even before the plan changes.")
        : null,
      movesInWords(before, { after: { weights: after }, moves }),
    ];
  } catch (error) {
    return h("p", { class: "problem" }, error.message);
  }
}
