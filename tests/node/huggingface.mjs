import { InferenceClient } from "@huggingface/inference";
import { collected, report } from "./result.mjs";

const client = new InferenceClient(undefined, { endpointUrl: process.argv[2] });
const chat = { messages: [{ role: "user", content: "hi" }] };
/** @param {any[]} chunks */
const text = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

await report({
  chat: client.chatCompletion(chat).then((answer) => answer.choices[0].message.content),
  stream: collected(client.chatCompletionStream(chat)).then(text),
  generation: client.textGeneration({ inputs: "say" }).then((answer) => answer.generated_text),
});
