"""The configuration: what the YAML may say, and every reason to reject it."""
