"""Friendli's API."""
