"""What TGI tells without generating: about the model, and of a text's tokens."""

from typing import Any

from app.config.schema import Config
from app.dialects.base import Reply, ServingContext
from app.dialects.json_body import dump
from app.dialects.tgi.chat.fields import MAX_PROMPTS
from app.dialects.tgi.generation import truncated
from app.dialects.tgi.rules import MAX_BEST_OF, MAX_STOP_SEQUENCES
from app.errors import NotFound

MAX_CONCURRENT_REQUESTS = 128
_VERSION = "3.3.6"  # of TGI's interface, which is what clients want to know


def about(body: bytes, served: ServingContext) -> Reply:
    """`/info`, with the names that MindIE adds. What the router does not know is null."""
    name, longest = served.settings.model, served.known_model.max_len
    return Reply(
        dump(
            {
                "model_id": name,
                "model_sha": None,
                "model_pipeline_tag": "text-generation",
                "model_dtype": None,
                "model_device_type": None,
                "max_concurrent_requests": MAX_CONCURRENT_REQUESTS,
                "max_best_of": MAX_BEST_OF,
                "max_stop_sequences": MAX_STOP_SEQUENCES,
                "max_input_tokens": longest - 1,
                "max_input_length": longest - 1,
                "max_total_tokens": longest,
                "max_batch_total_tokens": None,
                "max_waiting_tokens": None,
                "waiting_served_ratio": None,
                "validation_workers": 1,
                "max_client_batch_size": MAX_PROMPTS,
                "router": "text-generation-router",
                "version": _VERSION,
                "sha": None,
                "docker_label": None,
                "models": [
                    {
                        "model_id": name,
                        "model_sha": None,
                        "model_pipeline_tag": "text-generation",
                        "model_dtype": None,
                        "model_device_type": None,
                        "max_total_tokens": longest,
                    }
                ],
            }
        )
    )


def models(config: Config, endpoint: str | None) -> dict[str, Any]:
    """`/v1/models`: the one that is mounted here, or all endpoints. Raises NotFound."""
    names = list(config.endpoints) if endpoint is None else [endpoint]
    if endpoint is not None and endpoint not in {*config.endpoints, *config.deployments}:
        raise NotFound(f"There is no endpoint '{endpoint}'", param="model")
    cards = [{"id": name, "object": "model", "created": 0, "owned_by": "switchyard"} for name in names]
    return {"object": "list", "data": cards}


def tokens(inputs: str, truncate: int | None, served: ServingContext) -> list[dict[str, Any]]:
    """`/tokenize`: each token with the characters that it is made from. Raises Unprocessable."""
    model = served.known_model
    encoding = model.tokenizer.encode(inputs)
    told = [
        {"id": id, "text": inputs[start:stop], "start": start, "stop": stop}
        for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
    return told[len(told) - len(truncated(encoding.ids, truncate, model)) :]
