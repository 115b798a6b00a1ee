"""The statistics on traffic whose truth is known: `make simulate` writes the tables, tests check their bounds. Worlds
are drawn with fixed seeds, and analysed at every look by the functions of `app.experiments.statistics` themselves.
"""
