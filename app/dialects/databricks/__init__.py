"""Databricks Foundation Model APIs."""
