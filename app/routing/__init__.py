"""Chooses the deployment that serves a request, and admits requests."""
