"""Shadow copies of requests: sent when the client has its answer, compared in memory, forgotten but for numbers.

Nothing here is shared with the requests of clients: connections, breakers, limits, tasks and the thread that compares
are the mirrors' own, and what goes wrong here is a number in a metric.
"""
