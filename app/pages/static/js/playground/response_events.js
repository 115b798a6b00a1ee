// The events of OpenAI's responses as the chunks of a chat that say the same. Pure.

const FAILED = "The answer broke off";

/** A chunk of a chat for an event of any of both streams: an event of a chat is one already. */
export function asChunk(event) {
  switch (event.type) {
    case "response.output_text.delta":
      return said({ content: event.delta });
    case "response.reasoning_text.delta":
      return said({ reasoning: event.delta });
    case "response.completed":
    case "response.incomplete":
      return ended(event.response);
    case "response.failed":
      return { error: event.response.error ?? { message: FAILED } };
    case "error":
      return { error: event.error ?? { message: event.message ?? FAILED } };
    default:
      return event.type?.startsWith("response.") ? {} : event;
  }
}

function said(delta) {
  return { choices: [{ delta }] };
}

/** The end has the calls of tools, too, whole. */
function ended({ status, output, usage }) {
  const calls = output.filter((it) => it.type === "function_call");
  const tool_calls = calls.map(({ name, arguments: text }, index) => ({ index, function: { name, arguments: text } }));
  const finish_reason = status === "incomplete" ? "length" : calls.length ? "tool_calls" : "stop";
  return {
    choices: [{ delta: calls.length ? { tool_calls } : {}, finish_reason }],
    usage: usage && { prompt_tokens: usage.input_tokens, completion_tokens: usage.output_tokens },
  };
}
