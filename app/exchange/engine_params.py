"""Parameters of the engine that a caller may set only if the operator allows it for the endpoint.

`kv_transfer_params` and `ec_transfer_params` name hosts that an engine with a connector contacts; `priority` moves a
request ahead of others. Contract: vLLM 0.29, which takes them as fields and as members of `vllm_xargs`.
"""

from collections.abc import Mapping
from typing import Any

from app.config.schema import ENGINE_PARAMS, Endpoint
from app.errors import BadRequest

_EXTRA = "vllm_xargs"


def check_engine_params(body: Mapping[str, Any], name: str, endpoint: Endpoint | None) -> None:
    """Raises BadRequest if a body in vLLM's fields has a parameter that the endpoint `name` does not allow.

    `endpoint` is None for a deployment that no endpoint lists.
    """
    allowed = endpoint.allow_engine_params if endpoint is not None else ()
    extra = body.get(_EXTRA)
    for parameter in ENGINE_PARAMS:
        if parameter in allowed:
            continue
        path = f"{_EXTRA}.{parameter}" if isinstance(extra, Mapping) and parameter in extra else parameter
        if parameter in body or path != parameter:
            raise BadRequest(
                f"{path}: not allowed here; the operator may allow it (`allow_engine_params` of '{name}')",
                param=path,
                code="unsupported_parameter",
            )
