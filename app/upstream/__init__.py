"""HTTP calls to deployments: the only I/O on a request's path."""
