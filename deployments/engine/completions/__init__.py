"""The model applications' extended completions route."""
