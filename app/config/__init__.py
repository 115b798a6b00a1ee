"""The configuration: its schema, and every reason to reject it."""
