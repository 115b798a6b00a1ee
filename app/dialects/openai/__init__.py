"""OpenAI's API, which is vLLM's own."""
