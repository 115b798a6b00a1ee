"""The API of an endpoint's traffic: its plan, changes of it, and its history."""
