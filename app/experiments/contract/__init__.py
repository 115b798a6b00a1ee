"""What routers, the console and the command line share with the controller: reports, journal entries, questions,
series.

It imports neither numpy nor anything else of `app.experiments`.
"""
