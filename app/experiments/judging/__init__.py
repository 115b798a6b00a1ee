"""The judges of the evidence, for the controller: an analysis for each run, and the shadows."""
