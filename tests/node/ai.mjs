import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { collected, report } from "./result.mjs";

const provider = createOpenAICompatible({ name: "switchyard", baseURL: `${process.argv[2]}/v1`, includeUsage: true });
const request = { model: provider("chat"), prompt: "hi", maxRetries: 0 };
const stream = streamText(request);

await report({
  text: generateText(request).then((answer) => [answer.text, answer.usage.totalTokens]),
  stream: collected(stream.textStream).then((parts) => parts.join("")),
  stream_tokens: stream.usage.then((usage) => usage.totalTokens),
});
