"""What the statistics do on traffic whose truth is known: `make simulate` for the tables, tests for their bounds.

Worlds are drawn, seeded, and judged at every look by the functions of `app.experiments.statistics` themselves.
"""
