"""Tests of the Databricks and TGI dialects that have not yet been run on the real application.

They are not part of the suite (`testpaths`); `python -m pytest tests/unproven` runs them. What passes moves to
`tests/real`.
"""
