"""Shadows: comparison of a mirror's deployment with those that answered."""
