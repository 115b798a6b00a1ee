"""The examples of the OpenAPI document: the body of each operation that takes one, and the values of paths' parameters.

They are data, with `<…>` where the name of something stands that a configuration has: `names_in` finds names for those,
and `filled` puts them there.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from app.config.schema import TASKS, Config, Task

AN_ENDPOINT = "<an endpoint>"
A_DEPLOYMENT = "<a deployment>"
ANOTHER_DEPLOYMENT = "<another deployment>"
AN_EXPERIMENT = "<an experiment>"
_AN_ANSWERS_ID = "<an answer's x-request-id>"


def endpoint_for(task: Task) -> str:
    """What stands for an endpoint with this task."""
    return f"<an endpoint for {task}>"


ENDPOINTS: Mapping[str, Task] = {endpoint_for(task): task for task in TASKS}
"""What stands for endpoints, and the task that each needs."""


class Example(NamedTuple):
    """A body. `task` is that of the endpoint in the path, or of the default endpoint where the request names none; None
    if any endpoint will do. `note`: what else is to be known before it is sent."""

    body: Any
    task: Task | None = None
    note: str = ""

    @property
    def endpoint(self) -> str:
        """What stands for the endpoint in the path."""
        return AN_ENDPOINT if self.task is None else endpoint_for(self.task)

    @property
    def needs_default(self) -> bool:
        """Whether a default endpoint answers it, unless the path names one."""
        return self.task is not None and "model" not in self.body


_SAY_HELLO = [{"role": "user", "content": "Say hello."}]
_STORY = "Once upon a time"
_FACT = "A switchyard sorts wagons."
_QUESTION, _DOCUMENTS = "What sorts wagons?", ["A switchyard.", "A bank."]
_TOKENS = [72, 73, 74]


def _model(task: Task, /, **fields: Any) -> Example:
    """A request that names its model."""
    return Example({"model": endpoint_for(task), **fields}, task)


_CHAT = _model("chat", messages=_SAY_HELLO, max_tokens=16)
_COUNTED_CHAT = _model("chat", messages=_SAY_HELLO)
_COMPLETION = _model("completions", prompt=_STORY, max_tokens=16)
_RESPONSE = _model("responses", input="Say hello.", max_output_tokens=16)
_EMBEDDING = _model("embeddings", input=[_FACT])
_RERANK = _model("rerank", query=_QUESTION, documents=_DOCUMENTS)
_DETOKENIZE = _model("completions", tokens=_TOKENS)
_TOKENIZE = _model("completions", prompt=_STORY)
_CLASSIFY = _model("classify", input=[_FACT])
_GENERATE = Example({"inputs": _STORY, "parameters": {"max_new_tokens": 16}}, "completions")
_UNNAMED_CHAT = Example({"messages": _SAY_HELLO, "max_tokens": 16}, "chat")
_CHANGES = "Sent as it is, with the ETag in `If-Match`, the example changes what is in force"

EXAMPLES: Mapping[str, Mapping[str, Example]] = {
    "openai": {
        "chat": _CHAT,
        "completions": _COMPLETION,
        "responses": _RESPONSE,
        "input_tokens": _model("responses", input="Say hello."),
        "embeddings": _EMBEDDING,
        "pooling": _model("embeddings", input=[_FACT], task="embed"),
        "classify": _CLASSIFY,
        "cohere_embed": _model("embeddings", texts=[_FACT], input_type="search_document", embedding_types=["float"]),
        "rerank": _RERANK,
        "rerank_v2": _RERANK,
        "score": _model("rerank", queries=_QUESTION, documents=_DOCUMENTS),
        "tokenize": _TOKENIZE,
        "detokenize": _DETOKENIZE,
        "invocations": _CHAT,
    },
    "anthropic": {"messages": _CHAT, "count_tokens": _COUNTED_CHAT},
    "azure": {"chat": _CHAT, "completions": _COMPLETION, "embeddings": _EMBEDDING},
    "databricks": {
        "invocations": _UNNAMED_CHAT,
        "chat": _CHAT,
        "completions": _COMPLETION,
        "embeddings": _EMBEDDING,
        "responses": _RESPONSE,
        "update_config": Example(
            {"traffic_config": {"routes": [{"served_model_name": A_DEPLOYMENT, "traffic_percentage": 100}]}},
            note="Sent as it is, the example gives one deployment all of the endpoint's traffic",
        ),
    },
    "friendli": {
        "chat": _CHAT,
        "completions": _COMPLETION,
        "render": _COUNTED_CHAT,
        "tokenize": _TOKENIZE,
        "detokenize": _DETOKENIZE,
        "embeddings": _EMBEDDING,
        "classify": _CLASSIFY,
    },
    "tgi": {
        "root": _GENERATE,
        "generate": _GENERATE,
        "generate_stream": _GENERATE,
        "invocations": _GENERATE,
        "vertex": Example({"instances": [_GENERATE.body]}, "completions"),
        "tokenize": Example({"inputs": _STORY}, "completions"),
        "chat_tokenize": Example({"messages": _SAY_HELLO}, "chat"),
        "chat": _UNNAMED_CHAT,
        "completions": Example({"prompt": _STORY, "max_tokens": 16}, "completions"),
        "embed": Example({"inputs": [_FACT]}, "embeddings"),
        "embed_all": Example(
            {"inputs": [_FACT]}, "embeddings", "The engine needs `pooler_config: {task: token_embed}`"
        ),
        "similarity": Example(
            {"inputs": {"source_sentence": _QUESTION, "sentences": _DOCUMENTS}},
            "embeddings",
        ),
        "rerank": Example({"query": _QUESTION, "texts": _DOCUMENTS}, "rerank"),
        "predict": Example({"inputs": _FACT}, "classify"),
    },
    "switchyard": {
        "check_experiment": Example(
            {
                "name": "faster",
                "experiment": {
                    "endpoint": AN_ENDPOINT,
                    "control": A_DEPLOYMENT,
                    "treatments": [ANOTHER_DEPLOYMENT],
                    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
                },
            }
        ),
        "start_aa_runs": Example({"runs": 100}),
        "decide": Example({"action": "pause", "reason": "A look at the answers"}),
        "feedback": Example({"request_id": _AN_ANSWERS_ID, "metric": "helpful", "value": True}),
        "put_traffic": Example({"weights": {A_DEPLOYMENT: 100}, "reason": "The other one is being updated"}),
        "roll_back_traffic": Example({"generation": 1, "reason": "As it was deployed"}, note=_CHANGES),
        "create_key": Example({"name": "example-team", "endpoints": [AN_ENDPOINT], "reason": "A new team"}),
        "change_key": Example({"endpoints": [AN_ENDPOINT], "reason": "It needs no other"}, note=_CHANGES),
        "rotate_key": Example({"previous_expires": None, "reason": "It was in a log"}, note=_CHANGES),
        "revoke_key": Example({"reason": "Nobody uses it"}, note=_CHANGES),
    },
}
"""Requests, by dialect and operation: each is valid as it is, once names are filled in."""

QUERIES: Mapping[str, str] = {"dry_run": "true"}
"""Values of optional parameters: an example should change no traffic."""

_AFTER: Mapping[str, str] = {
    "served-models": A_DEPLOYMENT,
    "experiments": AN_EXPERIMENT,
    "requests": _AN_ANSWERS_ID,
    "texts": _AN_ANSWERS_ID,
    "responses": "<a response's id>",
    "keys": "<a key's id>",
    "replicas": "<a replica of /metrics/targets>",
    "proxies": "<a node of /metrics/targets>",
}
"""Values of a path's parameter by the part of the path before it. After any other part it is an endpoint."""


def in_path(path: str, name: str, example: Example | None) -> str:
    """The value of the parameter `name` of a path, whose operation has this example."""
    before = path[: path.index("{" + name)].rstrip("/").rpartition("/")[2]
    return _AFTER.get(before) or (AN_ENDPOINT if example is None else example.endpoint)


def names_in(config: Config) -> dict[str, str]:
    """What stands for a name, and the first such name of a configuration."""
    names: dict[str, str] = {}
    for name, endpoint in config.endpoints.items():
        for task in endpoint.tasks:
            names.setdefault(endpoint_for(task), name)
    if (main := names.get(endpoint_for("chat"), next(iter(config.endpoints), None))) is not None:
        names[AN_ENDPOINT] = main
        names |= dict(zip((A_DEPLOYMENT, ANOTHER_DEPLOYMENT), config.endpoints[main].traffic, strict=False))
    for name, experiment in config.experiments.items():
        if experiment.endpoint in config.endpoints:
            names.setdefault(AN_EXPERIMENT, name)
    return names


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """An example with names in place of what stands for them."""
    if isinstance(value, dict):
        return {filled(key, names): filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def missing(value: Any) -> Iterator[Task]:
    """The tasks for which an example has no endpoint."""
    if isinstance(value, dict):
        for item in value.values():
            yield from missing(item)
    elif isinstance(value, list):
        for item in value:
            yield from missing(item)
    elif value in ENDPOINTS:
        yield ENDPOINTS[value]
