// Requests to this server, with the key that the visitor typed. There are no cookies.

const STORED = "switchyard-key";
const PASSED = "switchyard-passed-key"; // a key that is not kept, on its way to the next page, which takes it
/** The item of localStorage with the playground's conversation, if the visitor keeps it. */
export const CONVERSATION = "switchyard-conversation";
const TIMEOUT_MS = 30_000;
const MOST_MS = 2 ** 31 - 1; // the longest delay of a timer

/** A failed request. `status` is 0 if the server was not reached; `param` is the field at fault, if it is known. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {{param?: string | null, code?: string | null, body?: any, headers?: Headers}} detail
   */
  constructor(status, message, { param = null, code = null, body = null, headers = new Headers() } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.param = param;
    this.code = code;
    this.body = body;
    this.headers = headers;
  }
}

/**
 * `signIn(message)` asks the visitor for a key, and resolves to whether there is one now. `lost(message)` is called
 * when the present key no longer works; `message`, if any, is for the visitor. `isKeyRequired()`: whether the server
 * answers nothing without a key. It is then not asked without one: it counts such requests, which may be an attack.
 */
export class Api {
  #key = passed() ?? sessionStorage.getItem(STORED);
  #isToken = false;
  /** @type {number | undefined} */
  #ends;
  #lapsed = "";
  #signIn;
  #lost;
  #isKeyRequired;
  /** @type {Promise<boolean> | null} */
  #asking = null;
  /** Whether the visitor has closed the dialog: a page that polls does not open it again. */
  #declined = false;

  /**
   * @param {(message: string) => Promise<boolean>} signIn
   * @param {(message?: string) => void} lost
   * @param {() => Promise<boolean>} isKeyRequired
   */
  constructor(signIn, lost, isKeyRequired) {
    this.#signIn = signIn;
    this.#lost = lost;
    this.#isKeyRequired = isKeyRequired;
  }

  get hasKey() {
    return this.#key !== null;
  }

  /**
   * Sends this key from now on; null: none. `stored`: keep it for the tab, otherwise until the page is left.
   *
   * @param {string | null} key
   * @param {boolean} [stored]
   */
  useKey(key, stored = false) {
    clearTimeout(this.#ends);
    this.#declined = false;
    this.#key = key;
    this.#isToken = false;
    this.#lapsed = "";
    if (key !== null && stored) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
  }

  /** Lets the page to which the visitor goes now have a key that is not kept, too. A token of the issuer is its own. */
  passOn() {
    const isKept = sessionStorage.getItem(STORED) !== null;
    if (this.#key !== null && !this.#isToken && !isKept) sessionStorage.setItem(PASSED, this.#key);
  }

  /** The header with the key; null without one. */
  get authorization() {
    return this.#key === null ? null : `Bearer ${this.#key}`;
  }

  /** How often the visitor has signed out. */
  visits = 0;

  /** Forgets the key, and what the browser keeps of the visit. */
  signOut() {
    this.useKey(null);
    this.visits += 1;
    localStorage.removeItem(CONVERSATION);
  }

  /**
   * Sends this token of the issuer for this number of seconds (null: unknown). It is stored nowhere.
   *
   * @param {string} token
   * @param {number | null} lifetime_s
   */
  useToken(token, lifetime_s) {
    this.useKey(token);
    this.#isToken = true;
    if (lifetime_s === null) return;
    this.#ends = setTimeout(
      () => {
        this.useKey(null);
        this.#lapsed = "Your sign-in has expired. Please sign in again.";
        this.#lost(this.#lapsed);
      },
      Math.min(Math.max(1000 * lifetime_s, 0), MOST_MS),
    );
  }

  /** Whether the credential is a token of a sign-in with the issuer. */
  get isSignedInWithIssuer() {
    return this.#isToken;
  }

  /**
   * The JSON at `path`.
   *
   * @param {string} path
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<any>}
   */
  async get(path, { signal } = {}) {
    return (await this.read(path, { signal })).data;
  }

  /**
   * The JSON at `path` with its `etag`, for a conditional change.
   *
   * @param {string} path
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<{data: any, etag: string}>}
   */
  async read(path, { signal } = {}) {
    return decoded(await this.fetch(path, { signal }));
  }

  /**
   * Sends `body` as JSON, and returns the JSON of the answer.
   *
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   * @param {Record<string, string>} [headers]
   * @returns {Promise<any>}
   */
  async send(method, path, body, headers = {}) {
    return (await this.write(method, path, body, headers)).data;
  }

  /**
   * The same, with the `etag` of the answer.
   *
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   * @param {Record<string, string>} [headers]
   */
  async write(method, path, body, headers = {}) {
    const content = body === undefined ? {} : { body: JSON.stringify(body) };
    return decoded(
      await this.fetch(path, { method, headers: { "content-type": "application/json", ...headers }, ...content }),
    );
  }

  /**
   * A Response with a status below 400, for streams. `timeout: null` waits for as long as it takes. `sent()` is called
   * when the request is handed to the browser, each time.
   *
   * @param {string} path
   * @param {FetchOptions} [options]
   * @returns {Promise<Response>}
   */
  async fetch(path, { method = "GET", headers = {}, body, signal, timeout = TIMEOUT_MS, sent = () => {} } = {}) {
    for (;;) {
      if (this.#key === null && (await this.#isKeyRequired())) {
        if (this.#key === null && !(await this.#askOnce(this.#lapsed)))
          throw new ApiError(401, "Nothing is shown here before you have signed in");
        continue;
      }
      const [used, authorization] = [this.#key, this.authorization];
      const limit = timeout === null ? undefined : AbortSignal.timeout(timeout);
      const signals = [signal, limit].filter((one) => one !== undefined);
      let response;
      try {
        sent();
        response = await fetch(path, {
          method,
          headers: authorization === null ? headers : { authorization, ...headers },
          body,
          signal: signals.length ? AbortSignal.any(signals) : undefined,
          credentials: "omit",
          cache: "no-store",
        });
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new ApiError(
          0,
          error.name === "TimeoutError" ? "The server did not answer in time" : "The server cannot be reached",
        );
      }
      if (
        response.status === 401 &&
        (this.#key !== used || (await this.#askOnce(await this.#whyAsk(used, response.clone()))))
      )
        continue;
      if (response.status >= 400) throw await refusal(response);
      return response;
    }
  }

  /** A page begins: it may ask for a key. */
  begin() {
    this.#declined = false;
  }

  /** @param {string} message */
  async #askOnce(message) {
    return !this.#declined && (await this.ask(message));
  }

  /**
   * Asks once, however many requests need a key. Resolves to whether there is one now.
   *
   * @param {string} message
   * @returns {Promise<boolean>}
   */
  ask(message) {
    this.#asking ??= this.#signIn(message)
      .then((isSignedIn) => {
        this.#declined = !isSignedIn;
        return isSignedIn;
      })
      .finally(() => (this.#asking = null));
    return this.#asking;
  }

  /**
   * Why the server does not accept the present key; null if it does, or does not say. A key that is wrong is sent once:
   * the server counts such requests.
   *
   * @returns {Promise<string | null>}
   */
  async whyRefused() {
    const [used, authorization] = [this.#key, this.authorization];
    try {
      const headers = authorization === null ? undefined : { authorization };
      const response = await fetch("/api/me", { headers, credentials: "omit", cache: "no-store" });
      if (response.status === 401) return await this.#whyAsk(used, response);
      await response.arrayBuffer(); // what nobody reads stays open
      return null;
    } catch {
      return null;
    }
  }

  /**
   * @param {string | null} used
   * @param {Response} response
   */
  async #whyAsk(used, response) {
    if (used === null) return this.#lapsed;
    const { message } = await refusal(response);
    const what = this.#isToken ? "This server does not accept your sign-in" : "This key is not accepted";
    if (this.#key === used) {
      this.useKey(null);
      this.#lost();
    }
    return `${what}: ${message}.`;
  }
}

/** The key that the page before has passed on; null: none. */
function passed() {
  const key = sessionStorage.getItem(PASSED);
  sessionStorage.removeItem(PASSED);
  return key;
}

/** @param {Response} response */
async function decoded(response) {
  return { data: response.status === 204 ? null : await response.json(), etag: response.headers.get("etag") ?? "" };
}

/** @param {Response} response */
async function refusal(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // Not every answer is JSON: a proxy's is a page.
  }
  const error = body?.error ?? {};
  const message =
    typeof error.message === "string" ? error.message : (body?.message ?? `The server answered ${response.status}`);
  const { param = null, code = null } = error;
  return new ApiError(response.status, message, { param, code, body, headers: response.headers });
}

/** @type {Map<string, number>} */
const failures = new Map(); // a script's path -> how often it did not load

/**
 * Imports a script of the console. Browsers remember that they could not fetch one, so that each further attempt asks
 * for another address.
 *
 * @param {string} path Below js/.
 * @returns {Promise<any>}
 */
export async function load(path) {
  const before = failures.get(path) ?? 0;
  try {
    return await import(`./${path}${before ? `?again=${before}` : ""}`);
  } catch (error) {
    failures.set(path, before + 1);
    throw new Error("A script of this page did not load: if that stays so, reload the page in your browser.", {
      cause: error,
    });
  }
}
