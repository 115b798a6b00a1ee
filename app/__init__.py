"""The router: pure Python on Starlette. It imports neither Ray nor vLLM and runs anywhere.

Imports point one way, and `tests/unit/test_layers.py` holds them to it:

    deployments -> server, management -> exchange, telemetry -> dialects, upstream
        -> access, limits, content_filter, control, engine, traffic -> config, errors, sse

Dialects import neither one another nor Starlette. `field_table.py` is beside all this: it writes a table of the
dialects' fields into the README. Read `exchange.py` first: it is one request's journey.
"""
