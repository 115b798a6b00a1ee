// Node's own fetch, twice over one connection: it keeps an idle one for 4 s, unless the server says how long it may.
// Arguments are the URL, and the response header that says which connection a request came on.
import { setTimeout as sleep } from "node:timers/promises";
import { report } from "./result.mjs";

const [url, header] = process.argv.slice(2);

async function connection() {
  const answer = await fetch(url);
  await answer.text();
  return answer.headers.get(header);
}

const first = await connection();
await sleep(5000);
await report({ first, after_5_s: connection() });
