"""How much a caller may ask of an endpoint: requests and tokens per minute, and requests at a time.

limiter.Limiter.admit    one request's claims: taken before it goes to a deployment, settled when it ends
store                    where is counted: this process's memory, or a Redis that several routers share
windows                  what a sliding window's counts mean (pure)
estimate                 how many tokens a request looks like (pure)
"""
