// What a manager can do with an experiment: the words of what happens, a dry run where traffic moves, and a reason.

import { h } from "../dom.js";
import { list } from "../format.js";
import { askForReason } from "../parts.js";
import { movesInWords } from "../traffic/moves.js";

/** The actions that make sense now, the usual one first. */
export function actions(summary) {
  const acting = summary.acting;
  if (!acting || acting.state === "stopped") return [];
  const paused = acting.state === "paused";
  return [
    paused ? "resume" : acting.next_share !== null && acting.next_share !== undefined ? "advance" : null,
    paused ? null : "pause",
    "rollback",
    "promote",
    "stop",
  ].filter(Boolean);
}

export const LABELS = { resume: "Start again", advance: "Advance", pause: "Pause", rollback: "Roll back", promote: "Promote", stop: "Stop" };

/** Asks, shows what would happen, and decides. Resolves to whether it was done. `etag`: of what the visitor saw. */
export async function decide(action, summary, etag, treatment, { api }) {
  const name = summary.experiment;
  const weights = after(action, summary, treatment);
  return askForReason({
    title: `${LABELS[action]}: ${name}`,
    explain: h("div", {}, h("p", {}, inWords(action, summary, treatment)), weights ? await dryRun(summary.endpoint, weights, api) : h("p", {}, "No traffic moves.")),
    label: LABELS[action],
    danger: action === "rollback" || action === "stop",
    act: async (reason) => {
      try {
        await api.send("POST", `/api/experiments/${encodeURIComponent(name)}/decision`, { action, reason, ...(action === "promote" ? { treatment } : {}) }, { "if-match": etag });
      } catch (error) {
        if (error.status === 412) throw new Error(`The experiment has gone on since: it is ${error.body?.current?.acting?.state ?? "another one"} now, at ${error.body?.current?.acting?.share ?? "?"} %. Close this, look at it, and decide again.`);
        throw error;
      }
    },
  });
}

function inWords(action, { acting, control, treatments }, treatment) {
  return {
    resume: "The ramp goes on by its own rules.",
    advance: `The treatments get ${acting.next_share} % of the traffic instead of ${acting.share} %, whatever the step still waits for.`,
    pause: "Nothing advances until somebody starts it again. The traffic stays as it is.",
    rollback: `${control} gets the traffic of ${list(treatments)}, and the ramp pauses.`,
    promote: `${treatment} gets all the traffic that the holdout leaves, and the experiment ends.`,
    stop: "The experiment ends. The traffic stays as it is.",
  }[action];
}

/** The weights of the arms after it, where they are known beforehand. */
function after(action, { acting, control, treatments, weights }, treatment) {
  const arms = [control, ...treatments];
  const total = arms.reduce((sum, it) => sum + (weights[it] ?? 0), 0);
  const given = (shares) => ({ ...weights, ...Object.fromEntries(arms.map((it) => [it, shares[it] ?? 0])) });
  if (action === "rollback") return given({ [control]: total });
  if (action === "promote") return given({ [treatment]: total });
  if (action !== "advance" || acting.next_share > total) return null;
  const each = Math.floor(acting.next_share / treatments.length), rest = acting.next_share - each * treatments.length;
  const shares = Object.fromEntries(treatments.map((it, index) => [it, each + (index < rest ? 1 : 0)]));
  return given({ ...shares, [control]: total - acting.next_share });
}

async function dryRun(endpoint, weights, api) {
  const path = `/api/endpoints/${encodeURIComponent(endpoint)}/traffic`;
  try {
    const present = await api.get(path);
    const overrides = present.overrides.map(({ unit, deployment, until }) => ({ unit, deployment, ...(until === null ? {} : { until }) }));
    const none = Object.fromEntries(Object.keys(present.weights).map((it) => [it, 0]));
    return movesInWords(present.weights, await api.send("PUT", `${path}?dry_run=true`, { weights: { ...none, ...weights }, overrides }));
  } catch (error) {
    return h("p", { class: "hint" }, `What moves is unknown: ${error.message}`);
  }
}
