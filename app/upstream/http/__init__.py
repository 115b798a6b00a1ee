"""The router's HTTP/1.1 client for engines, made for many short waits on few connections.

It leaves out of HTTP what engines and their proxies do not need: pipelining, `Expect: 100-continue`, request bodies in
chunks, compressed responses (it asks for none), trailers (they are read over), upgrades, cookies, proxies, the
redirects that change the method, and HTTP/2. Where it speaks to other servers, the controller's or an issuer's of
tokens, the router uses aiohttp: a call a second needs no client of its own.
"""
