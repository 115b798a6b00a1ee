"""Recorded exposures as files: one row for each request."""
