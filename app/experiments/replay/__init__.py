"""Sends recorded requests again, to every arm, and records the outcomes as routers do."""
