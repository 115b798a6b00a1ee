// Translates the events of OpenAI's Responses API to chunks of a chat completion. Pure.

const FAILED = "The answer was cut off";

/** The chunk for an event of either stream; a chat's events are returned as they are. */
export function asChunk(event) {
  switch (event.type) {
    case "response.output_text.delta":
      return delta({ content: event.delta });
    case "response.reasoning_text.delta":
      return delta({ reasoning: event.delta });
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

function delta(fields) {
  return { choices: [{ delta: fields }] };
}

/** The last event also has the complete tool calls. */
function ended({ status, output, usage }) {
  const calls = output.filter((it) => it.type === "function_call");
  const tool_calls = calls.map(({ name, arguments: text }, index) => ({ index, function: { name, arguments: text } }));
  const finish_reason = status === "incomplete" ? "length" : calls.length ? "tool_calls" : "stop";
  return {
    choices: [{ delta: calls.length ? { tool_calls } : {}, finish_reason }],
    usage: usage && { prompt_tokens: usage.input_tokens, completion_tokens: usage.output_tokens },
  };
}
