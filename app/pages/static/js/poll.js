/**
 * Calls `task` now, then again `every` milliseconds after each run has ended, but not while the page is hidden.
 * Returns a function that stops it. `task` gets an AbortSignal that stopping aborts; `failed` gets what it throws.
 */
export function poll(task, { every = 2000, failed = () => {} } = {}) {
  const ended = new AbortController();
  let timer,
    running = false;

  async function run() {
    clearTimeout(timer);
    if (running || document.hidden || ended.signal.aborted) return;
    running = true;
    try {
      await task(ended.signal);
    } catch (error) {
      if (!ended.signal.aborted) failed(error);
    }
    running = false;
    if (!ended.signal.aborted) timer = setTimeout(run, every);
  }

  document.addEventListener("visibilitychange", run, { signal: ended.signal });
  run();
  return () => {
    clearTimeout(timer);
    ended.abort();
  };
}
