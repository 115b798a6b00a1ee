"""What several dialects share: streams, fields, vLLM request parameters."""
