"""The router with many endpoints, many streams and large bodies, in front of an engine that uses almost no CPU."""
