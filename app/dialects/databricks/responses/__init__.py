"""Databricks' Responses API on vLLM's chat completions."""
