"""One module per provider's wire format. Translation only: no I/O, no clock, no logging, no web framework."""
