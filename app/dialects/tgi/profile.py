"""The two descriptions of TGI's interface that are served, and how a request shows which one its client follows.

The endpoint or deployment that a request names. TGI itself serves one model, and its adapters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.config.schema import Config, Task
from app.dialects.base import ParseContext, Request, names_no_model
from app.errors import Unprocessable


@dataclass(frozen=True, slots=True)
class Profile:
    """The defaults of one description; the configuration chooses it (`tgi.profile`).

    `max_new_tokens` None is the rest of the context. `list_at_root`: `POST /` answers a list of one object.
    `full_text_at_root`: it answers the prompt with the text. `typical_p_1_is_off`: TGI itself rejects 1.
    `top_k_below_vocabulary`: `top_k` is less than the number of the model's tokens.
    """

    max_new_tokens: int | None
    samples_without_parameters: bool
    list_at_root: bool
    full_text_at_root: bool
    reports_greedy_seed: bool
    typical_p_1_is_off: bool
    top_k_below_vocabulary: bool


PROFILES: Mapping[str, Profile] = {
    "mindie": Profile(
        max_new_tokens=20,
        samples_without_parameters=False,
        list_at_root=False,
        full_text_at_root=False,
        reports_greedy_seed=True,
        typical_p_1_is_off=True,
        top_k_below_vocabulary=True,
    ),
    "tgi": Profile(
        max_new_tokens=None,
        samples_without_parameters=True,
        list_at_root=True,
        full_text_at_root=True,
        reports_greedy_seed=False,
        typical_p_1_is_off=False,
        top_k_below_vocabulary=False,
    ),
}


def profile_of(config: Config) -> Profile:
    """The configured profile."""
    return PROFILES[config.tgi.profile]


@dataclass(frozen=True, slots=True)
class RequestStyle:
    """The circumstances that change the meaning of a request's fields.

    `at_root`: it came to `POST /` or its synonym, where the descriptions differ most. `is_tgi`: the route or the fields
    are TGI's, not MindIE's. `sends_every_field`: the client fills in defaults for what its user did not set.
    """

    profile: Profile
    stream: bool = False
    at_root: bool = False
    is_tgi: bool = False
    sends_every_field: bool = False


# TGI's Python client sends all of these with every request, even those that its user did not set.
_EVERY_FIELD = frozenset(
    "best_of decoder_input_details details do_sample max_new_tokens repetition_penalty return_full_text seed stop "
    "temperature top_k top_p truncate typical_p watermark".split()
)

# MindIE's description has no such fields.
_TGI_ONLY = frozenset({"adapter_id", "best_of", "frequency_penalty", "grammar", "stop", "top_n_tokens"})


def request_style(
    body: Mapping[str, Any], user_agent: str, profile: Profile, *, stream: bool, at_root: bool
) -> RequestStyle:
    """The style of a request, by its route and client. `body` still has the nulls below `parameters`."""
    parameters = body.get("parameters")
    names = set(parameters) if isinstance(parameters, dict) else set()
    is_tgi = profile.list_at_root or not at_root or "hf_hub" in user_agent or bool(names & _TGI_ONLY)
    return RequestStyle(profile, stream, at_root, is_tgi, names >= _EVERY_FIELD)


_TASKS: Sequence[Task] = ("completions", "chat", "embeddings", "rerank", "classify", "responses")


def task_asked_about(request: Request, context: ParseContext) -> Task:
    """The task by which a question about a server (`/info`, `/health`) finds its deployment: the first that the path's
    endpoint or deployment has, or that has a default endpoint. TGI's servers have one task, TEI's another.
    """
    config, name = context.config, request.params.get("endpoint")
    named = config.endpoints.get(name or "") or config.deployments.get(name or "")
    tasks = config.defaults if name is None else named.tasks if named is not None else ()
    return next((task for task in _TASKS if task in tasks), "completions")


def named_model(name: str | None, request: Request, context: ParseContext) -> tuple[str | None, str | None]:
    """The model and the deployment (`Call`) that the body's `model` chooses.

    TGI takes the name for an adapter's, and the base model for an unknown one: that is an error only at the root, where
    OpenAI's clients call too.
    """
    if not request.path.startswith("/tgi"):
        return (None if names_no_model(name, request) else name), None
    return None, (name if name is not None and _is_served(name, request, context) else None)


def adapter_deployment(name: str | None, request: Request, context: ParseContext) -> str | None:
    """The deployment for an `adapter_id`: its own name, or what the engine calls the adapter, if one alone has that.

    Raises Unprocessable if the endpoint has no such deployment.
    """
    if name is None or _is_served(name, request, context):
        return name
    raise Unprocessable(f"`adapter_id` {name} is not available", param="parameters.adapter_id", value=name)


def _is_served(name: str, request: Request, context: ParseContext) -> bool:
    """Whether it is a deployment of the path's endpoint, or of the default one, or the model of exactly one."""
    config = context.config
    endpoint = config.endpoints.get(request.params.get("endpoint") or config.defaults.get("completions") or "")
    if endpoint is None:
        return False
    return (
        name in endpoint.traffic
        or [config.deployments[deployment].model for deployment in endpoint.traffic].count(name) == 1
    )
