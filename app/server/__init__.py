"""The router as an ASGI application: paths, operations, management API, OpenAPI document."""
