// Pages of two origins fetch from the router: arguments are its URL, a page that is allowed to, and one that is not.
import { launch } from "./chromium.mjs";
import { report } from "./result.mjs";

const [url, allowed, other] = process.argv.slice(2);

/**
 * Runs in the page: the answer as a script sees it, or the class of the error that `fetch` throws.
 *
 * @param {string} url
 * @param {boolean} stream
 */
async function chat(url, stream) {
  const body = JSON.stringify({ model: "chat", stream, messages: [{ role: "user", content: "hi" }] });
  const headers = { authorization: "Bearer k", "content-type": "application/json" };
  try {
    const answer = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body });
    const named = ["x-request-id", "azureml-model-deployment"].map((name) => answer.headers.get(name));
    const text = await answer.text();
    return { origin: location.origin, status: answer.status, headers: named, text };
  } catch (error) {
    return { origin: location.origin, error: error.name };
  }
}

const browser = await launch();
try {
  /** @type {Record<string, unknown>} */
  const results = {};
  for (const [name, address] of [
    ["allowed", allowed],
    ["other", other],
  ]) {
    const page = await browser.newPage();
    await page.goto(address);
    results[name] = await page.evaluate(chat, url, false);
    results[`${name}_stream`] = await page.evaluate(chat, url, true);
  }
  await report(results);
} finally {
  await browser.close();
}
