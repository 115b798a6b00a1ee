"""`POST /api/experiments/check`: a section for an experiment, checked as the file's sections are."""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.config.base import ConfigError, problems_of
from app.config.experiments import Experiment, experiment_warnings
from app.config.schema import Config, parse
from app.dialects.bodies import json_object_with_nulls, validated
from app.errors import BadRequest


class CheckRequest(BaseModel):
    """A new experiment, or other settings of one that is declared."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(description="What it is to be called.")
    experiment: dict[str, Any] = Field(description="The section, as below `experiments` in the file.")


def check(body: bytes, seen: Config) -> dict[str, Any]:
    """The problems for which the section would be rejected, its warnings, and without problems the YAML for the file.

    It is checked against what the caller sees. Raises BadRequest if `body` is not a CheckRequest.
    """
    given = validated(CheckRequest, json_object_with_nulls(body), lambda it: BadRequest(it.message, param=it.path))
    section = {name: value for name, value in given.experiment.items() if value is not None}
    try:
        found = _with(given.name, section, seen)
    except ConfigError as error:
        return {"problems": _shown(error.problems, given.name), "warnings": [], "yaml": None}
    experiment = found.experiments[given.name]
    warnings = experiment_warnings({given.name: experiment}, seen.endpoints)
    return {"problems": [], "warnings": _shown(warnings, given.name), "yaml": _yaml(given.name, section)}


def _with(name: str, section: Mapping[str, Any], seen: Config) -> Config:
    """The configuration with this experiment. Raises ConfigError."""
    try:
        Experiment.model_validate(section)
    except ValidationError as error:  # all of them, as the whole configuration's check would report them
        raise ConfigError([f"experiments.{name}.{it}" for it in problems_of(error, Experiment)]) from None
    others = {it: plain.model_dump() for it, plain in seen.experiments.items() if plain.endpoint in seen.endpoints}
    return parse(
        {
            "endpoints": {it: endpoint.model_dump() for it, endpoint in seen.endpoints.items()},
            "deployments": {it: deployment.model_dump() for it, deployment in seen.deployments.items()},
            "experiments": {**others, name: section},
        }
    )


def _shown(lines: list[str], name: str) -> list[str]:
    """Lines about this experiment without its path, so that each begins with the field."""
    path = f"experiments.{name}"
    return [line.removeprefix(f"{path}.").removeprefix(f"{path}: ") for line in lines]


def _yaml(name: str, section: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(
        {"experiments": {name: dict(section)}}, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    return text
