"""Shared by several dialects: streams, fields, vLLM request parameters."""
