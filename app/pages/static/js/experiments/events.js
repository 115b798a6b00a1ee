// Follows the journal: server-sent events over fetch, since EventSource sends no key.

const WAIT_MS = 3000;

/**
 * Calls `receive(event)` for each `{id, kind, ...data}` since `since` (Unix seconds), until the returned function is
 * called. While the page is hidden no stream is open; the next one continues after the last event.
 */
export function follow(api, since, receive) {
  const ended = new AbortController();
  let last = null,
    stream = null,
    wake = () => {};

  async function read() {
    const headers = last === null ? {} : { "last-event-id": last };
    stream = new AbortController();
    const signal = AbortSignal.any([ended.signal, stream.signal]);
    const response = await api.fetch(`/api/events${last === null ? `?since=${since}` : ""}`, {
      headers,
      signal,
      timeout: null,
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (waiting + value.replaceAll("\r\n", "\n")).split("\n\n");
      waiting = blocks.pop();
      blocks.forEach(parse);
    }
  }

  function parse(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const [, name, text] = /^(\w+): ?(.*)$/.exec(line) ?? [];
      if (name) fields[name] = name in fields ? `${fields[name]}\n${text}` : text;
    }
    if (fields.id !== undefined) last = fields.id;
    if (fields.data === undefined) return;
    receive({ id: fields.id, kind: fields.event ?? "message", ...JSON.parse(fields.data) });
  }

  const changed = () => (document.hidden ? stream?.abort() : wake());
  document.addEventListener("visibilitychange", changed, { signal: ended.signal });
  (async () => {
    while (!ended.signal.aborted) {
      try {
        if (!document.hidden) await read();
      } catch {
        // The stream ends now and then, and the server may be away: the next request follows.
      }
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, WAIT_MS);
      });
    }
  })();
  return () => ended.abort();
}
