"""One folder per provider: translation between its wire format and vLLM's, without I/O."""
