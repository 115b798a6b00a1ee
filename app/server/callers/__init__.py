"""Callers, their permissions and their use: `/api/me` and `/api/callers`."""
