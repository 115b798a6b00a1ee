"""Sends recorded requests again, to every arm, and records what each got as routers do."""
