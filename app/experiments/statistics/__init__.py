"""Inference that holds at every look. Pure functions of numbers; `docs/internals/statistics.md` explains them."""
