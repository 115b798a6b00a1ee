"""Shadow copies of requests: sent when the client has its answer, compared in memory; only numbers are kept.

Nothing here is shared with the requests of clients: connections, breakers, limits, tasks and the thread that compares
are the mirrors' own, and failures only show in a metric.
"""
