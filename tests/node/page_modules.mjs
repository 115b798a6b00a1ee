// Calls functions of the console's scripts that need no browser. The argument is a file with a list of
// [name, arguments]; prints the list of results, each as [true, result] or [false, message].
import { readFile } from "node:fs/promises";

const scripts = new URL("../../app/pages/static/js/", import.meta.url);
/**
 * @param {string} name
 * @returns {Promise<any>}
 */
const load = (name) => import(new URL(name, scripts).href);
const { Answer, percent } = await load("playground/answer.js");
const { diff, likeness, words } = await load("playground/comparison.js");
const { EventParser } = await load("events.js");
const { timesOf } = await load("filters.js");
const { blocks, Growing } = await load("playground/markdown.js");
const { fieldOf, messages, request } = await load("playground/request.js");
const { jsonText, python, shellWord, snippets } = await load("playground/snippets.js");
const { cosine, norm } = await load("playground/cards.js");
const { between, minute, moment, roundTicks, signed, signedPercent, unbroken } = await load("format.js");
const { ends, reach, rounded } = await load("experiments/chart.js");
const { listWords, unknownNames } = await load("pages/requests.js");
const { astrayWords, lostRequests, replicaWords } = await load("pages/traffic.js");
const { asTheyCame, decisionWords, planWords } = await load("experiments/words.js");
const { attemptWords, besides, phases, remarks, resultWords, slowness, tokens } = await load("request.js");
const { planChanges } = await load("traffic/moves.js");
const { pointAt } = await load("parts.js");
const { copyWords } = await load("traffic/mirror.js");
const { amount, lackWords, lacksOf, outageWords } = await load("traffic/over_time.js");

const ANSWER = [
  "text",
  "pieces",
  "reasoning",
  "tools",
  "finish",
  "usage",
  "failure",
  "tokens",
  "firstTokenMs",
  "longestPauseMs",
  "tokensPerSecond",
  "hasProbabilities",
];

/** @type {Record<string, (...args: any[]) => unknown>} */
const FUNCTIONS = {
  amount,
  asTheyCame,
  astrayWords,
  attemptWords,
  besides,
  between,
  copyWords,
  cosine,
  decisionWords,
  diff,
  ends,
  fieldOf,
  jsonText,
  lackWords,
  likeness: (before, after) => likeness(diff(before, after)),
  messages,
  minute,
  moment,
  roundTicks,
  norm,
  percent,
  phases: (request) => phases(request).map((/** @type {any} */ part) => [part.name, part.from, part.to]),
  lacksOf,
  outageWords,
  planChanges,
  planWords,
  pointAt,
  python,
  reach,
  remarks,
  replicaWords,
  request,
  resultWords,
  rounded,
  shellWord,
  signed,
  signedPercent,
  slowness,
  timesOf,
  tokens,
  snippets: (form, url) => snippets(request(form), url),
  unbroken,
  unknownNames,
  words,
  listWords,
  lostRequests,
  markdown: (text) => blocks(text).map((/** @type {any} */ block) => block.tree),
  /**
   * The blocks of a document that came in pieces, as a page has them after the last one, and the characters read.
   *
   * @param {string[]} pieces
   */
  grown(pieces) {
    const growing = new Growing();
    /** @type {unknown[]} */
    const done = [];
    /** @type {unknown[]} */
    let open = [];
    for (const piece of pieces) {
      growing.add(piece);
      const taken = growing.take();
      done.push(...(taken?.done ?? []));
      open = taken?.open ?? open;
    }
    return [[...done, ...open], growing.read];
  },
  /** @param {string[]} pieces */
  events(pieces) {
    const parser = new EventParser();
    return [pieces.flatMap((piece) => parser.feed(piece)), parser.lastEventId];
  },
  answer(begunAt, events, times) {
    const answer = new Answer(begunAt, 0);
    for (const [at, data] of events) answer.read(typeof data === "string" ? data : JSON.stringify(data), at);
    if (times) answer.measured(times);
    return Object.fromEntries(ANSWER.map((name) => [name, answer[name]]));
  },
};

/** @type {[string, any[]][]} */
const calls = JSON.parse(await readFile(process.argv[2], "utf8"));
const results = calls.map(([name, args]) => {
  try {
    return [true, FUNCTIONS[name](...args)];
  } catch (error) {
    return [false, error.message];
  }
});
console.log(JSON.stringify(results));
