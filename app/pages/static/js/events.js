// Server-sent events over fetch, since EventSource sends no key: of models' answers, and of the experiments' journal.
// https://html.spec.whatwg.org/multipage/server-sent-events.html

import { ApiError } from "./api.js";

const WAIT_MS = 3000;

/** Parses a stream's text, which may come in any pieces, and returns the complete events: `{type, data, id}`. */
export class EventParser {
  #rest = "";
  #type = "";
  /** @type {string[]} */
  #data = [];
  #id = "";

  /** The id to continue after: events without data have one, too. */
  lastEventId = "";
  #started = false;

  /** @param {string} text */
  feed(text) {
    if (!this.#started && text !== "") {
      this.#started = true;
      if (text.startsWith("\ufeff")) text = text.slice(1);
    }
    // A CR at the end may be the first half of a CRLF.
    const whole = this.#rest + text;
    const held = whole.endsWith("\r") ? 1 : 0;
    const lines = whole.slice(0, whole.length - held).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() + whole.slice(whole.length - held);
    return lines.flatMap((line) => this.#line(line));
  }

  /**
   * The event that this line completes, if any.
   *
   * @param {string} line
   */
  #line(line) {
    if (line === "") {
      this.lastEventId = this.#id;
      const event = { type: this.#type || "message", data: this.#data.join("\n"), id: this.#id };
      const isEvent = this.#data.length > 0;
      this.#type = "";
      this.#data = [];
      return isEvent ? [event] : [];
    }
    const [field] = line.split(":", 1);
    const value = line.slice(field.length).replace(/^: ?/, "");
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#type = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return [];
  }
}

/**
 * The events of a streamed Response, as they arrive.
 *
 * @param {Response} response
 * @param {EventParser} [parser]
 */
export async function* eventsOf(response, parser = new EventParser()) {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    reader.cancel().catch(() => {}); // to stop reading early ends the request
  }
}

/**
 * Follows the journal: calls `receive(event)` for each `{id, kind, ...data}` since `since` (Unix seconds), until the
 * returned function is called. While the page is hidden no stream is open; the next one continues after the last event.
 * `told` gets the error of a stream that does not begin, and null for one that does.
 *
 * @param {Api} api
 * @param {number} since
 * @param {(event: Occurrence) => void} receive
 * @param {(error: Error | null) => void} told
 */
export function follow(api, since, receive, told) {
  const ended = new AbortController();
  let last = "";
  let stream = new AbortController();
  /** @type {(value?: unknown) => void} */
  let wake = () => {};

  async function read() {
    stream = new AbortController();
    const response = await api.fetch(`/api/events${last === "" ? `?since=${since}` : ""}`, {
      headers: last === "" ? {} : { "last-event-id": last },
      signal: AbortSignal.any([ended.signal, stream.signal]),
      timeout: null,
    });
    told(null);
    const parser = new EventParser();
    try {
      for await (const { type, data, id } of eventsOf(response, parser))
        receive({ id, kind: type, ...JSON.parse(data) });
    } finally {
      last = parser.lastEventId || last;
    }
  }

  const changed = () => (document.hidden ? stream.abort() : wake());
  document.addEventListener("visibilitychange", changed, { signal: ended.signal });
  (async () => {
    while (!ended.signal.aborted) {
      try {
        if (!document.hidden) await read();
      } catch (error) {
        // A stream ends now and then, and the next request follows; one that is refused is an ApiError.
        if (error instanceof ApiError && !ended.signal.aborted) told(error);
      }
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, WAIT_MS);
      });
    }
  })();
  return () => ended.abort();
}
