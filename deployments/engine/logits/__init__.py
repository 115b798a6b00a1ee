"""Logits processors for sampling parameters that vLLM lacks."""
