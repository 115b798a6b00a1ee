"""`switchyard serve`: the whole application on one machine, in the foreground."""
