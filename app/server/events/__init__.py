"""The journal's events for those who listen: one question a second to the controller, whoever and however many."""
