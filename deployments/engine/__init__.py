"""The code around vLLM in a model's replica."""
