"""Checks for dangerous treatments and invalid comparisons: events, sample ratio, completeness."""
