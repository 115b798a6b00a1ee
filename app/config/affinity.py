"""The section `affinity`: the choice of the replica that serves a conversation."""

from typing import Literal

from pydantic import Field

from app.config.base import Section


class Affinity(Section):
    """The turns of a conversation reach the replica that has its prefix in its cache, as long as that has room."""

    by: Literal["prefix", "session", "none"] = Field(
        default="prefix",
        description="`prefix`: the request's `prompt_cache_key`; without one, the sticky key of an endpoint that is "
        "sticky by something else than `api_key`, or else the beginning of the conversation (system prompt, tools, "
        "first user message; the first KiB of a completion's prompt). `session`: the sticky key, else the header "
        "x-session-id. `none`: the replica with the fewest requests.",
    )
    bound: float = Field(
        default=2.0,
        ge=0,
        le=16,
        description="How many requests more than the mean of all replicas the conversation's replica may have, in "
        "square roots of that mean; half of it for a first turn. Beyond it the conversation's next replica takes the "
        "request.",
    )
