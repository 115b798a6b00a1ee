"""Rejections that depend on the deployment: its context length and its capabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.base import ServingContext
from app.dialects.common.engine_request import missing_capability
from app.engine.model import Model
from app.engine.usage import PromptTokens
from app.errors import Unprocessable


def check_capabilities(body: Mapping[str, Any], serving: ServingContext, prefix: str = "") -> None:
    """Raises Unprocessable if `body`, in vLLM's form, needs an extension that the deployment does not have.

    `prefix` is the path of these fields in the client's request.
    """
    if (missing := missing_capability(body, serving)) is not None:
        name, reason = missing
        raise Unprocessable(f"`{name}`: {reason}", param=prefix + name, value=body["vllm_xargs"][name])


def check_top_k(top_k: int | None, model: Model) -> None:
    """Raises Unprocessable unless `top_k` is below the vocabulary's size, as MindIE requires."""
    if top_k is not None and top_k >= model.vocab_size:
        raise Unprocessable(
            f"`top_k` must be < {model.vocab_size}, the size of the vocabulary. Given: {top_k}",
            param="parameters.top_k",
            value=top_k,
        )


def truncated(ids: Sequence[int], truncate: int | None, context: int) -> Sequence[int]:
    """The last `truncate` ids. Raises Unprocessable unless `truncate` leaves room for a token of the answer."""
    if truncate is None:
        return ids
    if not 0 < truncate < context:
        raise Unprocessable(
            f"`truncate` must be strictly positive and less than {context - 1}. Given: {truncate}",
            param="parameters.truncate",
            value=truncate,
        )
    return ids[-truncate:]


def inputs_too_long(tokens: PromptTokens, param: str) -> Unprocessable:
    """The error for prompts that leave no room for an answer."""
    return Unprocessable(
        f"`inputs` must have less than {tokens.context - 1} tokens. Given: {tokens.counted}", param=param
    )
