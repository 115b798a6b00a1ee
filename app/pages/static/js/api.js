// Requests to this server, with the key that the visitor typed. There are no cookies.

const STORED = "switchyard-key";
const TIMEOUT_MS = 30_000;

/** What the server refused or could not do. `status` is 0 if it was not reached. `param`: the field, if one is named. */
export class ApiError extends Error {
  constructor(status, message, { param = null, code = null, body = null } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, param, code, body });
  }
}

/** `signIn(message)` asks the visitor for a key, and resolves to whether there is one now. */
export class Api {
  #key = sessionStorage.getItem(STORED);
  #signIn;
  #asking = null;

  constructor(signIn) {
    this.#signIn = signIn;
  }

  get hasKey() {
    return this.#key !== null;
  }

  /** From now on this key is sent; null: none. `stored`: kept for the tab, otherwise until the page is left. */
  useKey(key, stored = false) {
    this.#key = key;
    if (key !== null && stored) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
  }

  /** The JSON at `path`. */
  async get(path, { signal } = {}) {
    return (await this.read(path, { signal })).data;
  }

  /** The JSON at `path` with its `etag`, for a change on condition that it is still so. */
  async read(path, { signal } = {}) {
    return decoded(await this.fetch(path, { signal }));
  }

  /** Sends `body` as JSON, and returns the JSON of the answer. */
  async send(method, path, body, headers = {}) {
    return (await this.write(method, path, body, headers)).data;
  }

  /** The same, with the `etag` of the answer. */
  async write(method, path, body, headers = {}) {
    const content = body === undefined ? {} : { body: JSON.stringify(body) };
    return decoded(await this.fetch(path, { method, headers: { "content-type": "application/json", ...headers }, ...content }));
  }

  /** A Response with a status below 400, for streams. `timeout: null` waits for as long as it takes. */
  async fetch(path, { method = "GET", headers = {}, body, signal, timeout = TIMEOUT_MS } = {}) {
    for (;;) {
      const used = this.#key;
      const signals = [signal, timeout === null ? null : AbortSignal.timeout(timeout)].filter(Boolean);
      let response;
      try {
        response = await fetch(path, {
          method,
          headers: used === null ? headers : { authorization: `Bearer ${used}`, ...headers },
          body,
          signal: signals.length ? AbortSignal.any(signals) : undefined,
          credentials: "omit",
          cache: "no-store",
        });
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new ApiError(0, error.name === "TimeoutError" ? "The server did not answer in time" : "The server cannot be reached");
      }
      if (response.status === 401 && (this.#key !== used || (await this.#ask(used)))) continue;
      if (response.status >= 400) throw await refusal(response);
      return response;
    }
  }

  /** Asks once, however many requests want a key. */
  #ask(used) {
    this.#asking ??= this.#signIn(used === null ? "" : "This key is not accepted").finally(() => (this.#asking = null));
    return this.#asking;
  }
}

async function decoded(response) {
  return { data: response.status === 204 ? null : await response.json(), etag: response.headers.get("etag") };
}

async function refusal(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // Not every answer is JSON: a proxy's is a page.
  }
  const error = body?.error ?? {};
  const message = typeof error.message === "string" ? error.message : (body?.message ?? `The server answered ${response.status}`);
  return new ApiError(response.status, message, { param: error.param ?? null, code: error.code ?? null, body });
}
