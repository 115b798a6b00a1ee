import OpenAI, { AzureOpenAI } from "openai";
import { collected, report, thrown } from "./result.mjs";

const url = process.argv[2];
/** @type {OpenAI.ChatCompletionMessageParam[]} */
const messages = [{ role: "user", content: "hi" }];
/** @param {OpenAI.ChatCompletionChunk[]} chunks */
const text = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
const azure = { apiKey: "k", apiVersion: "2024-10-21", maxRetries: 0 };

const clients = {
  openai: new OpenAI({ baseURL: `${url}/v1`, apiKey: "k", maxRetries: 0 }),
  azure: new AzureOpenAI({ ...azure, endpoint: url }),
  azure_deployment: new AzureOpenAI({ ...azure, endpoint: url, deployment: "chat" }),
};
/** @type {Record<string, Promise<unknown>>} */
const results = {};
for (const [name, client] of Object.entries(clients)) {
  /**
   * @param {Record<string, unknown>} fields
   * @returns {Promise<any>}
   */
  const chat = (fields) => client.chat.completions.create({ model: "chat", messages, ...fields });
  results[name] = chat({}).then((answer) => answer.choices[0].message.content);
  results[`${name}_stream`] = collected(chat({ stream: true })).then(text);
  results[`${name}_error`] = thrown(chat({ temperature: 7 }), "status", "param");
}
/**
 * @param {Record<string, unknown>} fields
 * @returns {Promise<any>}
 */
const ask = (fields) => clients.azure.responses.create({ model: "green", input: "hi", ...fields });
results.azure_response = ask({}).then((answer) => answer.output_text);
/** @param {any} event */
const said = ({ type, delta, response }) => [type, delta ?? response?.output[0]?.content[0].text ?? null];
results.azure_response_stream = collected(ask({ stream: true })).then((events) => events.map(said));
const below = new AzureOpenAI({ ...azure, endpoint: url, deployment: "green" });
results.azure_deployment_response = below.responses
  .create({ model: "green", input: "hi" })
  .then((answer) => answer.output_text);
await report(results);
