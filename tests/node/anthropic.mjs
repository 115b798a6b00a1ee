import Anthropic from "@anthropic-ai/sdk";
import { report, thrown } from "./result.mjs";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "k", maxRetries: 0 });
/** @type {Anthropic.MessageCreateParamsNonStreaming} */
const fields = { model: "chat", max_tokens: 8, messages: [{ role: "user", content: "hi" }] };
/** @param {Anthropic.Message} message */
const text = (message) => message.content.map((block) => (block.type === "text" ? block.text : "")).join("");

await report({
  message: client.messages.create(fields).then(text),
  stream: client.messages.stream(fields).finalMessage().then(text),
  error: thrown(client.messages.create({ ...fields, model: "gone" }), "status", "type"),
});
