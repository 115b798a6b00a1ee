"""Databricks' Responses API on vLLM's."""
