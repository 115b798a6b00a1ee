"""The journal as events for its followers: the visible part of an entry, and pages of new events."""
