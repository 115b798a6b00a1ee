"""Requests written down to be replayed: a router's side. Nothing here is awaited by a request."""
