// Server-sent events, as far as model answers use them: https://html.spec.whatwg.org/multipage/server-sent-events.html

/** Parses a stream's text, which may come in any pieces, and returns the data of complete events. */
export class EventParser {
  #rest = "";
  #data = [];
  #started = false;

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
    const found = [];
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) found.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line === "data") this.#data.push("");
      else if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
    }
    return found;
  }
}

/** The data of each event of a streamed Response, as it arrives. */
export async function* eventsOf(response) {
  const parser = new EventParser();
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
