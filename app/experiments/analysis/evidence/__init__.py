"""Exposures, summed up so that a look is quick: who belongs, what each metric says of a request, and the sums."""
