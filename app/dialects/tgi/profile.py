"""The two descriptions of TGI's interface that are served, and how a request shows which one its client follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.config.schema import Config


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
