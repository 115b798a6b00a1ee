"""How every field of a request is supported, read from the models that check it: for the docs and for tests."""

from collections.abc import Mapping, Sequence

from app.dialects.openapi_schemas import Body

VLLM = "vLLM's"
NOT_USED = "checked; changes nothing here"


def field_support(bodies: Sequence[Body]) -> dict[str, str]:
    """Field to sentence, for an operation whose body is one of `bodies`."""
    return {name: sentence for body in bodies for name, sentence in _of(body).items()}


def _of(body: Body) -> dict[str, str]:
    sentences = dict.fromkeys(sorted(body.passed), VLLM)
    for name, field in body.model.model_fields.items():
        used = body.used is None or name in body.used
        sentences[field.alias or name] = (field.description or VLLM) if used else NOT_USED
    refused: Mapping[str, str] = getattr(body.model, "refused", {})
    return {**sentences, **{name: f"refused: {reason}" for name, reason in refused.items()}}
