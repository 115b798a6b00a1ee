"""Installations for tests of the doctor, and helpers for its findings."""

import copy
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from app.config.base import ConfigError
from app.config.loading import load
from app.config.schema import Config
from deployments.doctor.finding import Finding, Installation, Level
from tests.support.processes.project import ROOT


def installation(document: dict[str, Any] | None = None, **fields: Any) -> Installation:
    """The default installation, or one with another configuration, or other fields."""
    served = document if document is not None else _default()
    config, problems = _loaded(json.dumps(served))
    return Installation("serve_config.yaml", served, problems, config, **fields)


def default(**user_config: Any) -> dict[str, Any]:
    """serve_config.yaml, with these sections of the router's configuration."""
    document = copy.deepcopy(_default())
    document["applications"][0]["deployments"][0]["user_config"].update(user_config)
    return document


@cache
def _default() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    return document


@cache
def _loaded(text: str) -> tuple[Config | None, Sequence[str]]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "serve_config.yaml"
        file.write_text(text)
        try:
            return load(file), ()
        except ConfigError as error:
            return None, error.problems


def engine(document: dict[str, Any], name: str = "smollm2-blue") -> dict[str, Any]:
    """An application's `llm_config`, to change it."""
    (found,) = (application for application in document["applications"] if application["name"] == name)
    config: dict[str, Any] = found["args"]["llm_config"]
    return config


def levels(findings: Iterable[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def the_problem(findings: Iterable[Finding]) -> str:
    """The message of the only problem; it has a fix."""
    (found,) = (finding for finding in findings if finding.level is Level.PROBLEM)
    assert found.fix
    return found.message


def the_warning(findings: Iterable[Finding]) -> str:
    """The message of the only warning; it has a fix, and nothing is worse."""
    (found,) = (finding for finding in findings if finding.level is not Level.OK)
    assert found.level is Level.WARNING
    assert found.fix
    return found.message
