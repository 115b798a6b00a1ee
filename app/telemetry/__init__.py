"""Metrics, the access log, and event-loop monitoring."""
