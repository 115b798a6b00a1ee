"""Checks of mirrors that need the deployments: problems refuse a configuration, warnings are printed by `switchyard
check`. Both are lines, ``path: what; the fix``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from app.config.mirror import Mirror

_EMBEDDINGS = "embeddings"


class Endpoint(Protocol):
    """The part of `schema.Endpoint` that the checks read."""

    @property
    def tasks(self) -> Sequence[str]: ...
    @property
    def traffic(self) -> Mapping[str, int]: ...
    @property
    def mirror(self) -> Mirror | None: ...


class Deployment(Protocol):
    """The part of `schema.Deployment` that the checks read."""

    @property
    def space_id(self) -> str | None: ...


def mirror_problems(endpoints: Mapping[str, Endpoint]) -> Iterator[str]:
    """Every reason to refuse the mirrors. That the shadows exist and do the tasks is checked with the endpoints."""
    for name, endpoint in endpoints.items():
        if (mirror := endpoint.mirror) is not None and endpoint.traffic.get(mirror.deployment) == 100:
            yield (
                f"endpoints.{name}.mirror.deployment: '{mirror.deployment}' answers all of the traffic, and copies "
                "would be compared with themselves; name another deployment, or remove the mirror"
            )


def mirror_warnings(endpoints: Mapping[str, Endpoint], deployments: Mapping[str, Deployment]) -> Iterator[str]:
    """Warnings about settings of a valid configuration that are rarely intended."""
    for name, endpoint in endpoints.items():
        if (mirror := endpoint.mirror) is None:
            continue
        path, shadow = f"endpoints.{name}.mirror.deployment", mirror.deployment
        if share := endpoint.traffic.get(shadow, 0):
            yield (
                f"{path}: '{shadow}' has {share} % of the traffic, too; the requests that it answers are not copied, "
                "and copies add to its load. To compare deployments that answer clients, declare an experiment"
            )
        if _EMBEDDINGS in endpoint.tasks:
            yield from _other_space(path, shadow, endpoint, deployments)


def _other_space(path: str, shadow: str, endpoint: Endpoint, deployments: Mapping[str, Deployment]) -> Iterator[str]:
    """Vectors of different spaces have no direction in common: their cosine is near 0 however good both models are."""
    space = deployments[shadow].space_id
    for primary in endpoint.traffic:
        other = deployments[primary].space_id
        if primary != shadow and None not in (space, other) and space != other:
            yield (
                f"{path}: '{shadow}' embeds into the space '{space}', '{primary}' into '{other}'; the cosine of the "
                "copies shows whether that is so, and nothing about their quality"
            )
