from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Profile:
    """What a request gets that does not say. `max_new_tokens` None is the rest of the context."""

    max_new_tokens: int | None
    samples_without_parameters: bool
    answers_with_lists: bool
    shows_the_prompt: bool
    tells_greedy_seeds: bool
    largest_typical_p_is_off: bool


PROFILES: Mapping[str, Profile] = {
    "mindie": Profile(20, False, False, False, True, True),
    "tgi": Profile(None, True, True, True, False, False),
}


@dataclass(frozen=True, slots=True)
class RequestStyle:
    """How a request came, as far as its fields mean other things by it.

    `at_root`: at `POST /` and its synonyms, where the descriptions differ most. `is_tgis`: the route is TGI's, or what
    its client sends. `fills_in`: the client sends every field, with defaults of its own for those its user did not set.
    """

    profile: Profile
    stream: bool = False
    at_root: bool = False
    is_tgis: bool = False
    fills_in: bool = False


# TGI's Python client sends all of these with every request, whatever its user said.
_EVERY_FIELD = frozenset(
    "best_of decoder_input_details details do_sample max_new_tokens repetition_penalty return_full_text seed stop "
    "temperature top_k top_p truncate typical_p watermark".split()
)


# MindIE's description has none of these.
_TGIS_OWN = frozenset({"adapter_id", "best_of", "frequency_penalty", "grammar", "stop", "top_n_tokens"})


def request_style(
    body: Mapping[str, Any], user_agent: str, profile: Profile, *, stream: bool, at_root: bool
) -> RequestStyle:
    """Reads off a request who speaks. `body` still has the nulls below `parameters`."""
    named = body.get("parameters")
    names = set(named) if isinstance(named, dict) else set()
    is_tgis = profile.answers_with_lists or not at_root or "hf_hub" in user_agent or bool(names & _TGIS_OWN)
    return RequestStyle(profile, stream, at_root, is_tgis, names >= _EVERY_FIELD)
