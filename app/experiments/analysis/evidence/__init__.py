"""Exposures, summed up so that a look is quick: membership, the value of each metric for a request, and the sums."""
