"""Cross-origin requests from browsers, if the configuration allows some origins (`cors`)."""

from collections.abc import Awaitable, Callable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.config.schema import Config, Cors

EXPOSED_HEADERS = (
    "allow",
    "azureml-model-deployment",
    "etag",
    "request-id",
    "retry-after",
    "served-model-name",
    "www-authenticate",
    "x-compute-characters",
    "x-compute-time",
    "x-compute-type",
    "x-generated-tokens",
    "x-inference-time",
    "x-ms-error-code",
    "x-prompt-tokens",
    "x-queue-time",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-should-retry",
    "x-switchyard-plan",
    "x-time-per-token",
    "x-total-time",
    "x-validation-time",
)
"""Response headers that scripts may read, in addition to those that browsers always show."""


class LiveCORS:
    """Starlette's CORSMiddleware, rebuilt when the configuration's `cors` changes. Off without that section."""

    def __init__(self, app: ASGIApp, config: Callable[[], Config | None]) -> None:
        """`config` returns the configuration in force, None before the first."""
        self._app, self._config = app, config
        self._built: tuple[Cors, ASGIApp] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        config = self._config()
        settings = config.cors if config is not None else None
        return (self._app if settings is None else self._middleware(settings))(scope, receive, send)

    def _middleware(self, settings: Cors) -> ASGIApp:
        if self._built is None or self._built[0] != settings:
            middleware = CORSMiddleware(
                self._app,
                allow_origins=settings.origins,
                allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
                allow_headers=("*",),  # each SDK sends its own headers; a preflight's are echoed
                expose_headers=EXPOSED_HEADERS,
                max_age=settings.max_age_s,
            )
            self._built = settings, middleware
        return self._built[1]
