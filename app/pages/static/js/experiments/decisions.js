// What a manager can do with an experiment: the words of what happens, a dry run where traffic moves, and a reason.

import { h } from "../dom.js";
import { list } from "../format.js";
import { askForReason } from "../parts.js";
import { movesInWords } from "../traffic/moves.js";

/** The actions that make sense now, the usual one first. What the file pauses, the file starts. */
export function actions(summary) {
  const acting = summary.acting;
  if (!acting || acting.state === "stopped") return [];
  const paused = acting.state === "paused";
  return [
    paused ? (summary.state === "paused" ? null : "resume") : acting.next_share !== null && acting.next_share !== undefined ? "advance" : null,
    paused ? null : "pause",
    "rollback",
    "promote",
    "stop",
  ].filter(Boolean);
}

export const LABELS = { resume: "Resume", advance: "Advance", pause: "Pause", rollback: "Roll back", promote: "Promote", stop: "Stop" };

/** Asks, shows what would happen, and decides. Resolves to whether it was done. `etag`: of what the visitor saw. */
export async function decide(action, summary, etag, treatment, { api }) {
  const name = summary.experiment;
  const path = `/api/experiments/${encodeURIComponent(name)}/decision`;
  const named = action === "promote" ? { treatment } : {};
  return askForReason({
    title: `${LABELS[action]}: ${name}`,
    explain: h("div", {}, h("p", {}, inWords(action, summary, treatment)), await dryRun(path, { action, reason: "dry run", ...named }, api)),
    label: LABELS[action],
    danger: action === "rollback" || action === "stop",
    act: async (reason) => {
      try {
        await api.send("POST", path, { action, reason, ...named }, { "if-match": etag });
      } catch (error) {
        if (error.status === 412) throw new Error(goneOn(error.body?.current?.acting));
        throw error;
      }
    },
  });
}

function goneOn(acting) {
  const now = acting ? ` It is ${acting.state} now, with ${acting.share}\u00a0% on treatments.` : "";
  return `The experiment has gone on since you looked.${now} Close this, look at it, and decide again.`;
}

function inWords(action, { acting, control, treatments }, treatment) {
  return {
    resume: "The ramp goes on by its own rules.",
    advance: `The treatments get ${acting.next_share}\u00a0% of the traffic instead of ${acting.share}\u00a0%, whatever the step still waits for.`,
    pause: "Nothing advances until a manager resumes it. The traffic stays as it is.",
    rollback: `${control} gets the traffic of ${list(treatments)}, and the ramp pauses.`,
    promote: `${treatment} gets all the traffic that the holdout leaves, and the experiment ends.`,
    stop: "The experiment ends. The traffic stays as it is.",
  }[action];
}

/** What the server says that it would do. Where it refuses, it would refuse the decision, too. */
async function dryRun(path, decision, api) {
  try {
    const { before, after, stopped, moves } = await api.send("POST", `${path}?dry_run=true`, decision);
    return [
      stopped.length ? h("p", {}, h("strong", {}, list(stopped)), " gets nothing at once, before the plan is changed.") : null,
      movesInWords(before, { after: { weights: after }, moves }),
    ];
  } catch (error) {
    return h("p", { class: "problem" }, error.message);
  }
}
