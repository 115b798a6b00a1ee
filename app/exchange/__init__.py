"""One request's journey through the router. Read `handler.py` first."""
