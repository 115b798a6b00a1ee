"""Inference that holds at every look. Pure functions of numbers; `docs/experiments.md` says what they mean."""
