"""What runs inside a model's replica, around vLLM."""
