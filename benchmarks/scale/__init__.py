"""What the router does with many endpoints, many streams and large bodies, in front of an engine that costs nothing."""
