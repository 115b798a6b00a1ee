"""Resolves deployments' URLs and keys from the configuration and the process's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from app.config.base import ConfigError
from app.config.endpoints import Affinity
from app.config.schema import Config, Deployment
from app.internal_api import (
    APP_PREFIX,
    INTERNAL_KEY_HEADER,
    INTERNAL_KEY_VARIABLE,
    LEDGER_VARIABLE,
    UNIT_SECRET_VARIABLE,
)
from app.internal_keys import Purpose, sent


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment: its base URL without /v1, its name for the model, the headers with its key, its application here.

    `takes_trace`: whether it gets requests' trace contexts. `takes_salt`: whether it keeps cached prompts apart by
    `cache_salt`. `affinity`: the assignment of conversations to its replicas, None without one.
    `continues`: whether its replicas may continue one another's streams.
    """

    name: str
    url: str
    model: str
    headers: Mapping[str, str]
    tokenizer_dir: Path | None = None
    takes_trace: bool = False
    takes_salt: bool = False
    affinity: Affinity | None = None
    continues: bool = False
    app: str | None = None

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {self.url!r})"  # the headers hold a key


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """The settings that a process takes from its environment: the URL of Serve's ingress, the masters of the internal
    keys (`app.internal_keys`), the secret of the ledger's hashes.

    `loopback`: only this machine reaches the process. `several_routers`: other routers serve the same callers.
    `ledger_base`: the directory that a relative `ledger.url` is relative to. `behind_ingress`: Serve's HAProxy calls
    the process, and adds the client's address to `X-Forwarded-For`.
    """

    serve_url: str = "http://127.0.0.1:8000"
    internal_key: str = field(default="", repr=False)
    loopback: bool = True
    several_routers: bool = False
    ledger_base: Path = Path()
    unit_secret: str = field(default="", repr=False)
    behind_ingress: bool = False

    @classmethod
    def from_environment(
        cls, serve_url: str, *, loopback: bool, several_routers: bool = False, behind_ingress: bool = False
    ) -> Self:
        """The settings with the secrets and the ledger's base from the environment."""
        return cls(
            serve_url,
            os.environ.get(INTERNAL_KEY_VARIABLE, ""),
            loopback=loopback,
            several_routers=several_routers,
            ledger_base=ledger_base(),
            unit_secret=os.environ.get(UNIT_SECRET_VARIABLE, ""),
            behind_ingress=behind_ingress,
        )


def ledger_base() -> Path:
    """The directory that a relative `ledger.url` is relative to: from the environment, else the working directory."""
    return Path(os.environ.get(LEDGER_VARIABLE) or Path.cwd())


def targets(config: Config, environment: RuntimeEnvironment) -> dict[str, Target]:
    """Every deployment's Target. Raises ConfigError if a key's variable or file cannot be read."""
    problems: list[str] = []
    targets: dict[str, Target] = {}
    for name, deployment in config.deployments.items():
        try:
            targets[name] = _target(name, deployment, environment)
        except OSError as error:
            problems.append(f"deployments.{name}.api_key_file: {deployment.api_key_file}: {error.strerror}")
        except KeyError:
            problems.append(f"deployments.{name}.api_key_env: the variable {deployment.api_key_env} is not set")
    if problems:
        raise ConfigError(problems)
    return targets


def _target(name: str, deployment: Deployment, environment: RuntimeEnvironment) -> Target:
    if deployment.url is None:
        url = f"{environment.serve_url.rstrip('/')}{APP_PREFIX}{deployment.app}"
        headers = {INTERNAL_KEY_HEADER: sent(environment.internal_key, Purpose.ENGINE)}
        return Target(
            name,
            url,
            deployment.model,
            headers,
            takes_trace=True,
            takes_salt=True,
            affinity=deployment.affinity if deployment.affinity.by != "none" else None,
            continues=True,
            app=deployment.app,
        )
    key = None
    if deployment.api_key_env is not None:
        key = os.environ[deployment.api_key_env]
    elif deployment.api_key_file is not None:
        key = deployment.api_key_file.read_text().strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    base = deployment.url.rstrip("/")
    return Target(
        name,
        base,
        deployment.model,
        headers,
        deployment.tokenizer_dir,
        takes_trace=deployment.trace_context,
        takes_salt=deployment.cache_salt,
    )
