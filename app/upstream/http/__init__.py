"""The router's HTTP/1.1 client: made for engines, so for many short waits on few connections.

It leaves out of HTTP what engines and their proxies do not need: pipelining, `Expect: 100-continue`, request bodies in
chunks, compressed responses (it asks for none), trailers (they are read over), upgrades, cookies, proxies, the
redirects that change the method, and HTTP/2. The controller of experiments and issuers of tokens need no more.
"""
