"""Journal events for API clients: each router polls the controller once a second, for any number of clients."""
