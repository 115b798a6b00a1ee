"""The router: pure Python on Starlette. It imports neither Ray nor vLLM and runs anywhere.

Imports point one way, and `tests/unit/test_layers.py` holds them to it:

    deployments -> server -> exchange, telemetry -> dialects, upstream -> access, traffic, engine -> config, sse, errors

Dialects import neither one another nor Starlette. Read `exchange.py` first: it is one request's journey.
"""
