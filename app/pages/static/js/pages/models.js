// What is loaded where: the applications of models, their replicas, and what their engines say.

import { h, morph } from "../dom.js";
import { count, list, moment, or, percent, seconds, time, whole } from "../format.js";
import { cell, figure, mark, notice, staleNotice, table, term } from "../parts.js";

export const title = "Models";

/** @type {Record<string, Mark>} */
const MARKS = { RUNNING: "good", STARTING: "wait", UPDATING: "wait", STOPPING: "wait", RECOVERING: "wait" };
/** @type {Record<string, [Mark, string]>} */
const STATUSES = {
  DEPLOYING: ["wait", "it is being deployed"],
  DELETING: ["wait", "it is being deleted"],
  NOT_STARTED: ["wait", "it has not started"],
  UNHEALTHY: ["bad", "it is not healthy: a replica has died or failed its check, and is being replaced"],
  DEPLOY_FAILED: ["bad", "its deployment failed"],
};

const SAYS_NO_MORE = /^The deployments \[.*\] are UNHEALTHY\.$/;

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
export async function mount(root, { api, poll }) {
  /** @type {LoadedModels | null} */
  let found = null;
  /** @type {ApiError | null} */
  let problem = null;

  function draw() {
    morph(
      root,
      h("h1", {}, title),
      problem !== null ? staleNotice(problem, found?.at ?? null) : null,
      found === null
        ? problem === null && h("p", { class: "hint" }, "Loading …")
        : [
            h(
              "p",
              { class: "hint" },
              "What Ray Serve runs, and what each engine says of itself. Counts of the ",
              term("prefix cache"),
              " are since an engine's start.",
            ),
            found.why_not === null ? null : notice("warn", found.why_not),
            [...found.applications].sort((one, other) => Number(fails(other)) - Number(fails(one))).map(application),
            elsewhere(found.elsewhere),
            found.applications.length || found.elsewhere.length
              ? null
              : h("p", { class: "empty" }, "You have access to no deployment on this server."),
          ],
    );
  }

  draw();
  return poll(
    async (signal) => {
      found = await api.get("/api/models", { signal });
      problem = null;
      draw();
    },
    {
      every: 5000,
      failed(error) {
        problem = /** @type {ApiError} */ (error);
        draw();
      },
    },
  );
}

/**
 * Whether an application is none that simply runs: those come first.
 *
 * @param {LoadedApplication} loaded
 */
function fails({ status, replicas, running_replicas }) {
  return (status !== null && status !== "RUNNING") || running_replicas === 0 || replicas.some((one) => one.is_silent);
}

/** @param {LoadedApplication} loaded */
function application(loaded) {
  const { application: name, deployments, endpoints, replicas, engines } = loaded;
  const silent = replicas.filter((replica) => replica.is_silent).length;
  return h(
    "section",
    { class: "loaded", key: name, "aria-labelledby": `application/${name}` },
    h(
      "header",
      {},
      h("h2", { id: `application/${name}` }, list(deployments.map(({ deployment }) => deployment))),
      h(
        "p",
        { class: "hint about" },
        term("application"),
        ` ${name} · ${endpoints.length ? `at ${list(endpoints)}` : "at no endpoint"}`,
        loaded.source === null ? null : [" · ", value(loaded.source)],
      ),
      h(
        "div",
        { class: "figures" },
        figure(whole(loaded.running_replicas), loaded.running_replicas === 1 ? "replica runs" : "replicas run"),
        silent > 0 && figure(whole(silent), silent === 1 ? "does not answer" : "do not answer"),
        figure(whole(loaded.running), loaded.running === 1 ? "sequence runs" : "sequences run"),
        figure(whole(loaded.waiting), loaded.waiting === 1 ? "waits" : "wait"),
        figure(percent(loaded.kv_cache_use), "of the KV cache"),
        figure(percent(loaded.prefix_hit_rate), "prefix hits"),
      ),
    ),
    status(loaded),
    replicas.length
      ? table(
          `Replicas of ${name}`,
          [
            "Replica",
            "State",
            "Node",
            "Device",
            "Started",
            { label: "Start took", number: true, title: "From the start of its process until the engine was ready" },
            { label: "Running", number: true, title: "Sequences that the engine computes: n: 2 asks for two" },
            { label: "Waiting", number: true, title: "Sequences that wait for the engine" },
            { label: "KV cache", number: true, title: "In use" },
            { label: "Prefix hits", number: true, title: "Prompt tokens that the prefix cache had" },
          ],
          replicas.map((replica) => row(replica, engines)),
          { class: "stacked" },
        )
      : h("p", { class: "empty" }, loaded.running_replicas === null ? "Its replicas are not known." : "No replica."),
    h("p", { class: "hint" }, starts(loaded)),
    engines.length ? engines.map((engine, index) => settings(engine, loaded, index)) : settings(null, loaded, 0),
  );
}

/** @param {LoadedApplication} loaded */
function status({ status, message }) {
  if (status === null || status === "RUNNING") return null;
  const [kind, words] = STATUSES[status] ?? ["warn", status.toLowerCase().replaceAll("_", " ")];
  const more = message && !SAYS_NO_MORE.test(message) ? `: ${message}` : ".";
  return h("p", {}, mark(kind, `Ray Serve says that ${words}${more}`));
}

/** @param {LoadedApplication} loaded */
function starts({ starts: found }) {
  if (found === null) return "How often it has started is not known: no controller of experiments says it.";
  const { since, count: times, median_s, longest_s, last_at, gone, stopped } = found;
  const often = `${count(times, "known start", "known starts")} since ${moment(since)}`;
  if (!times) return `${often}.`;
  const last = last_at === null ? "" : ` The last one was at ${moment(last_at)}.`;
  const words = `${often}: ${seconds(median_s)} at the median, ${seconds(longest_s)} at most.${last}`;
  const planned = stopped
    ? ` ${count(stopped, "of those replicas was", "of those replicas were")} stopped as planned.`
    : "";
  const others = (gone ?? 0) - (stopped ?? 0);
  if (!others) return words + planned;
  const them = `${count(others, "of those replicas has", "of those replicas have")} crashed, or stopped unseen.`;
  return [`${words}${planned} `, mark("warn", them)];
}

/**
 * @param {LoadedReplica} replica
 * @param {LoadedEngine[]} engines
 */
function row(replica, engines) {
  const { id, state, node, accelerator, started_at } = replica;
  const engine = engines.find(({ replicas }) => replicas.includes(id));
  const words = state.toLowerCase().replaceAll("_", " ");
  return h(
    "tr",
    { key: id },
    cell("", h("span", { class: "mono" }, id), { header: true }),
    cell(
      "State",
      replica.is_silent // it may have died a moment ago
        ? [mark("bad", "does not answer"), h("div", { class: "hint small" }, `${words}, says Ray Serve`)]
        : mark(MARKS[state] ?? "warn", words),
    ),
    cell("Node", or(node)),
    cell("Device", or(device(engine, accelerator))),
    cell("Started", time(started_at)),
    cell("Start took", or(seconds(replica.start_s)), { number: true }),
    cell("Running", or(whole(replica.running)), { number: true }),
    cell("Waiting", or(whole(replica.waiting)), { number: true }),
    cell("KV cache", or(percent(replica.kv_cache_use)), { number: true }),
    cell("Prefix hits", or(percent(replica.prefix_hit_rate)), { number: true }),
  );
}

/**
 * @param {LoadedEngine | undefined} engine
 * @param {string | null} accelerator
 */
function device(engine, accelerator) {
  if (engine === undefined) return null;
  if (engine.device === "cpu") return "CPU";
  const kind = accelerator ?? `${engine.device} device, kind unknown`;
  return `${engine.devices} × ${kind}`;
}

/**
 * The versions and arguments of engines that agree in them. `engine` null: no engine has said anything.
 *
 * @param {LoadedEngine | null} engine
 * @param {LoadedApplication} loaded
 * @param {number} index
 */
function settings(engine, { application: name, arguments: given, engines }, index) {
  const resolved = engine?.arguments ?? {};
  const names = [...new Set([...Object.keys(given ?? {}), ...Object.keys(resolved)])].sort();
  const of = engines.length > 1 && engine !== null ? ` of ${count(engine.replicas.length, "replica", "replicas")}` : "";
  return h(
    "details",
    { key: `settings-${index}` },
    h("summary", {}, `Versions and engine arguments${of}`),
    h(
      "p",
      {},
      engine === null
        ? "No engine has told its versions."
        : `vLLM ${engine.vllm}, Ray ${engine.ray}, model revision ${engine.revision ?? "unknown (a folder has none)"}.`,
    ),
    names.length
      ? table(
          `Engine arguments of ${name}${engines.length > 1 ? `, ${index + 1}` : ""}`,
          ["Argument", "Configured", "In force"],
          names.map((argument) =>
            h(
              "tr",
              { key: argument },
              cell("", h("span", { class: "mono" }, argument), { header: true }),
              cell("Configured", given === null ? or(null) : argument in given ? value(given[argument]) : "not set"),
              cell("In force", argument in resolved ? value(resolved[argument]) : or(null)),
            ),
          ),
          { class: "stacked arguments" },
        )
      : null,
  );
}

/** @param {unknown} given */
function value(given) {
  if (typeof given === "object" && given !== null && "hidden" in given)
    return h("span", { class: "hint" }, "set, not shown: it may hold a secret");
  return h("span", { class: "mono" }, typeof given === "string" ? given : JSON.stringify(given));
}

/** @param {LoadedElsewhere[]} deployments */
function elsewhere(deployments) {
  if (!deployments.length) return null;
  return [
    h("h2", {}, "Servers at a url"),
    h("p", { class: "hint" }, "Switchyard sends them requests, and does not run them: nothing more is known of them."),
    h(
      "ul",
      {},
      deployments.map(({ deployment, model, endpoints }) =>
        h(
          "li",
          { key: deployment },
          h("b", {}, deployment),
          ` (${model}), ${endpoints.length ? `at ${list(endpoints)}` : "at no endpoint"}`,
        ),
      ),
    ),
  ];
}
