"""From recorded exposures to a report: one `Analysis` for each running experiment, without I/O."""
