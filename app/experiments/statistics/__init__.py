"""Inference that holds at every look. Pure functions of numbers; `docs/experiments.md` explains their meaning."""
