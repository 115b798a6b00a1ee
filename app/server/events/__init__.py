"""Journal events for API clients: each router polls the controller once a second, whatever the number of clients."""
