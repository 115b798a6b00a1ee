"""vLLM's formats as pure functions: errors, usage, models, tokens, streams of completions."""
