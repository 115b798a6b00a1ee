"""Databricks' serving-endpoints API: objects, traffic updates, OpenAPI schemas."""
