"""Which deployment serves a request, and whether it may start now."""
