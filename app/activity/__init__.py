"""What all routers have done lately: the last requests, counts over time, and each caller's use by day."""
