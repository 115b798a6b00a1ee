"""Rate and concurrency limits per caller."""
