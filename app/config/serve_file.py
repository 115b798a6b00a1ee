from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.config.access import exposure_problems, sharing_problems
from app.config.adapters import engine_problems, model_problems
from app.config.base import ConfigError, nearest
from app.config.files import read_yaml
from app.config.schema import Config, Task, parse
from app.config.urls import is_loopback
from app.internal_api import APP_PREFIX, EXPERIMENTS, ROUTER


def load(path: Path) -> Config:
    """The router's Config from `path`: a `serve_config.yaml` or a file with the router's part alone.

    Raises ConfigError with every problem, the unreadable file included.
    """
    return load_document(read_yaml(path))


def load_document(document: object) -> Config:
    """The router's Config from the content of such a file. Raises ConfigError with every problem."""
    if not isinstance(document, dict):
        raise ConfigError(["(top level): expected a mapping with `applications` or `endpoints`"])
    if "applications" not in document:
        return parse(document)
    applications = _applications(document)
    config, problems = _router_config(applications)
    problems += _application_problems(applications, config)
    if config is not None:
        problems += exposure_problems(config.access, loopback=is_loopback(host_of(document)))
    if config is None or problems:
        raise ConfigError(problems)
    return config


def host_of(document: Mapping[str, Any]) -> str:
    """The host that a Serve configuration listens on; Serve's default is loopback."""
    return str((document.get("http_options") or {}).get("host") or "127.0.0.1")


def _applications(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    applications = document["applications"]
    if not isinstance(applications, list) or not all(isinstance(item, dict) for item in applications):
        raise ConfigError(["applications: expected a list of applications"])
    return applications


def _router_config(applications: Sequence[Mapping[str, Any]]) -> tuple[Config | None, list[str]]:
    routers = [(i, app) for i, app in enumerate(applications) if app.get("name") == ROUTER]
    if not routers:
        return None, [f"applications: no application is named '{ROUTER}'; the router is the one at route_prefix /"]
    index, router = routers[0]
    for position, deployment in enumerate(router.get("deployments") or []):
        if isinstance(deployment, dict) and "user_config" in deployment:
            prefix = f"applications[{index}].deployments[{position}].user_config"
            try:
                config = parse(deployment["user_config"])
                several = sharing_problems(config.access.limits, several_routers=runs_several(deployment))
                return config, [f"{prefix}.{line}" for line in several]
            except ConfigError as error:
                return None, [f"{prefix}.{line}" for line in error.problems]
    return None, [f"applications[{index}].deployments: the router has no `user_config`; declare endpoints there"]


def _application_problems(applications: Sequence[Mapping[str, Any]], config: Config | None) -> list[str]:
    names = [str(application.get("name")) for application in applications]
    doubled = [index for index, name in enumerate(names) if name in names[:index]]
    if doubled:  # whatever else is said about one of them could be meant for the other
        return [f"applications[{index}].name: duplicate name '{names[index]}'; rename one" for index in doubled]
    problems: list[str] = []
    prefixes: dict[str, object] = {}
    llm_configs: dict[str, Mapping[str, Any]] = {}
    for index, application in enumerate(applications):
        name = str(application.get("name"))
        prefixes[name] = application.get("route_prefix")
        if (llm_config := _llm_config(application)) is not None:
            llm_configs[name] = llm_config
            problems += [f"applications[{index}].args.{line}" for line in engine_problems(llm_config)]
        if name == EXPERIMENTS and any(runs_several(it) for it in application.get("deployments") or []):
            problems.append(f"applications[{index}].deployments: the controller of experiments is one replica; set 1")
    for name, deployment in config.deployments.items() if config else ():
        if deployment.app is None:
            continue
        expected = APP_PREFIX + deployment.app
        if deployment.app not in prefixes:
            meant = nearest(deployment.app, map(str, prefixes)) or "; declare it"
            problems.append(f"deployments.{name}.app: no application is named '{deployment.app}'{meant}")
        elif prefixes[deployment.app] != expected:
            problems.append(f"applications.{deployment.app}.route_prefix: must be {expected} for the router to find it")
    if config is not None:
        problems += _task_problems(applications, config)
        problems += model_problems(config.deployments, llm_configs)
        problems += _experiments_problems(config, prefixes)
    return problems


_GENERATES, _POOLS = "deployments.llm:build", "deployments.embedding:build"
_GENERATING: frozenset[Task] = frozenset({"chat", "completions", "responses"})


def _task_problems(applications: Sequence[Mapping[str, Any]], config: Config) -> Iterator[str]:
    """Deployments with tasks for which their application's `import_path` does not start vLLM."""
    paths = {application.get("name"): application.get("import_path") for application in applications}
    for name, deployment in config.deployments.items():
        path = paths.get(deployment.app)
        if path not in (_GENERATES, _POOLS):
            continue
        wrong = [task for task in deployment.tasks if (task in _GENERATING) != (path == _GENERATES)]
        if wrong:
            other = _POOLS if path == _GENERATES else _GENERATES
            yield (
                f"deployments.{name}.tasks: {path}, the import_path of the application '{deployment.app}', does not do "
                f"{', '.join(wrong)}; {other} does"
            )


def _llm_config(application: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """An engine's configuration, if this is an engine's application and has one."""
    args = application.get("args")
    found = args.get("llm_config") if isinstance(args, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _experiments_problems(config: Config, prefixes: Mapping[str, object]) -> list[str]:
    """Exposures that routers record need the application that keeps them. `prefixes`: application to route prefix."""
    expected = APP_PREFIX + EXPERIMENTS
    if EXPERIMENTS in prefixes:
        if prefixes[EXPERIMENTS] == expected:
            return []
        return [f"applications.{EXPERIMENTS}.route_prefix: must be {expected} for the router to find it"]
    declare = f"declare it, with route_prefix {expected} and import_path deployments.experiments:build"
    missing = f"no application is named '{EXPERIMENTS}', which keeps what routers record; {declare}"
    recorded = [f"endpoints.{name}.ledger" for name, it in config.endpoints.items() if it.ledger == "always"]
    recorded += [f"endpoints.{name}.mirror" for name, it in config.endpoints.items() if it.mirror is not None]
    recorded += [f"endpoints.{name}.record" for name, it in config.endpoints.items() if it.record is not None]
    return [f"{where}: {missing}" for where in (["experiments"] if config.experiments else recorded[:1])]


def runs_several(deployment: Mapping[str, Any]) -> bool:
    """Whether a Serve deployment may get more than one replica by its configuration."""
    number, autoscaling = deployment.get("num_replicas"), deployment.get("autoscaling_config") or {}
    if number == "auto" or (isinstance(number, int) and number > 1):
        return True
    most = autoscaling.get("max_replicas", 1) if isinstance(autoscaling, Mapping) else 1
    return isinstance(most, int) and most > 1
