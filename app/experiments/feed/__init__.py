"""The journal as events for those who follow it: what may be known of an entry, and pages of what is new."""
