"""Reads hand-written files strictly. Every problem is raised as a ConfigError.

- Parses successive configurations; unchanged parts are not parsed again.
- The shares of running ramps that a file would undo.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.config.access import exposure_problems, sharing_problems
from app.config.adapters import engine_problems, model_problems
from app.config.base import ConfigError, Section, is_loopback
from app.config.experiments import Experiment, is_active
from app.config.meant import nearest
from app.config.schema import Config, Endpoint, Task, parse
from app.internal_api import APP_PREFIX, EXPERIMENTS, ROUTER


class _StrictLoader(yaml.SafeLoader):
    """YAML that rejects duplicate keys; plain YAML silently keeps the last one."""

    quotes = True


_MERGE = "tag:yaml.org,2002:merge"
"""The key `<<`, which takes over another mapping's keys."""


class _RedactingLoader(_StrictLoader):
    """The same for secret files: errors do not quote them."""

    quotes = False


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue  # keys next to it override the merged ones
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError([f"line {line}: a key must be plain text"])
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            name = f" '{key}'" if loader.quotes else ""
            raise ConfigError([f"line {line}: duplicate key{name}; rename or remove one"])
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_text(path: Path) -> str:
    """The content of `path`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: not UTF-8; save it as UTF-8"]) from None


def read_yaml(path: Path) -> object:
    """The content of the YAML file `path`."""
    return parse_yaml(read_text(path), where=f"{path}: ")


def parse_yaml(text: str, *, where: str = "", is_secret: bool = False) -> object:
    """The content of a YAML text. If it is secret, problems name the line and quote nothing."""
    try:
        document: object = yaml.load(text, Loader=_RedactingLoader if is_secret else _StrictLoader)
        return document
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2030-02-31
        mark = getattr(error, "problem_mark", None)
        if is_secret:
            raise ConfigError([f"not YAML{f', line {mark.line + 1}' if mark else ''}"]) from None
        line = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        reason = reason.removeprefix("but ")
        number, fix = _cause(text, reason, mark.line + 1) if mark else (0, "")
        line = f"line {number}: " if fix else line
        raise ConfigError([f"{where}{line}not YAML: {reason}{fix or _remedy(reason)}"]) from None


def _remedy(reason: str) -> str:
    return next((f"; {remedy}" for words, remedy in _REMEDIES.items() if words in reason), "")


def _cause(text: str, reason: str, number: int) -> tuple[int, str]:
    """The line that is wrong, and what to do, where PyYAML notices it in a later one: `number`, counted from 1."""
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in text.splitlines()[:number]]
    for at, line in enumerate(lines, 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            return at, "; a merge left its marks: keep one of both versions"
        opened = re.findall(r"""(?:^|[\s:\[{,])(["'])""", line) if "'<scalar>'" in reason else ()
        if any(line.count(quote) % 2 for quote in opened):
            return at, "; close the quotes of this line"
    last = next((at for at in range(number - 1, 0, -1) if lines[at - 1].strip(" -")), 0)
    if "mapping values" in reason and last:
        before = lines[last - 1].strip(" -")
        if re.fullmatch(r"[\w.-]+", before):
            return last, "; a key ends with a colon"
        if re.match(r"[\w.-]+:[^\s/]", before):
            return last, "; a space belongs after the colon"
    if lines and set(lines[-1]) & {"\u201c", "\u201d", "\u2018", "\u2019"}:
        return number, "; write plain quotes instead of typographic ones"
    return number, ""


_REMEDIES = {
    "'\\t'": "indent with spaces, not with a tab",
    "mapping values are not allowed": "indent the line as its neighbours, and quote a text that has ': ' in it",
    "expected <block end>": "the indentation differs from that of the lines above",
    "could not find expected ':'": "a key ends with a colon and a space",
    "expected ',' or": "close the bracket of the line, or of one above",
    "another document": "one file has one document: remove the line `---` and what is before or after it",
    "found undefined alias": "an anchor (&name) comes before its alias (*name)",
    "unexpected end of stream": "close the quotes",
    "sequence entries are not allowed": "write the items in the lines below the key, or all in brackets: [a, b]",
    "cannot start any token": "put the text in quotes",
    "expected the node content": "a value is missing before it",
}
"""PyYAML's reasons, and what mends them."""


# With a thousand endpoints, of which a change concerns one, this takes a twentieth of the time.

_NAMED = ("endpoints", "deployments", "experiments")
"""Sections with a name for each of their items, which are valid or invalid by themselves. What they refer to is checked
every time."""


class Parser:
    """Keeps the items of the last configuration. Its methods may be called in a thread, one at a time."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, tuple[bytes, Section]]] = {}

    def parse(self, data: object) -> Config:
        """Like `schema.parse`. Raises ConfigError with every problem found; then nothing of `data` is kept."""
        if not isinstance(data, Mapping):
            return parse(data)
        encoded = {name: _encoded(data.get(name)) for name in _NAMED}
        reused = {name: self._reused(name, data[name], variables) for name, variables in encoded.items() if variables}
        config = parse({**data, **reused})
        self._known = {
            name: {item: (content, getattr(config, name)[item]) for item, content in variables.items()}
            for name, variables in encoded.items()
        }
        return config

    def _reused(self, section: str, items: Mapping[str, Any], encoded: Mapping[str, bytes]) -> dict[str, Any]:
        known = self._known.get(section, {})
        return {
            name: before[1] if (before := known.get(name)) is not None and before[0] == encoded[name] else item
            for name, item in items.items()
        }


def _encoded(items: object) -> dict[str, bytes]:
    """Each item's content as bytes; {} if it is not plain data, and everything is parsed."""
    if not isinstance(items, Mapping) or not all(isinstance(name, str) for name in items):
        return {}
    try:
        return {name: _encoder.encode(item) for name, item in items.items()}
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {}


_encoder = msgspec.msgpack.Encoder()


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


def port_of(document: Mapping[str, Any]) -> int:
    """The port that a Serve configuration listens on."""
    return int((document.get("http_options") or {}).get("port") or 8000)


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
        problems += _own_problems(index, name, application)
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


def _own_problems(index: int, name: str, application: Mapping[str, Any]) -> Iterator[str]:
    """What the router and the controller of experiments need."""
    if name == ROUTER and application.get("route_prefix", "/") != "/":
        given = application["route_prefix"]
        yield f"applications.{name}.route_prefix: expected /, not {given}: clients' paths begin there"
    for number, deployment in enumerate(application.get("deployments") or [] if name == EXPERIMENTS else []):
        if runs_several(deployment):
            where = f"applications[{index}].deployments[{number}]"
            key = "num_replicas" if "num_replicas" in deployment else "autoscaling_config.max_replicas"
            yield f"{where}.{key}: the controller of experiments is one replica; set 1"


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
    config = args.get("llm_config") if isinstance(args, Mapping) else None
    return config if isinstance(config, Mapping) else None


def _experiments_problems(config: Config, prefixes: Mapping[str, object]) -> list[str]:
    """Exposures that routers record need the application that keeps them. `prefixes`: application to route prefix."""
    expected = APP_PREFIX + EXPERIMENTS
    if EXPERIMENTS in prefixes:
        if prefixes[EXPERIMENTS] == expected:
            return []
        return [f"applications.{EXPERIMENTS}.route_prefix: must be {expected} for the router to find it"]
    declare = f"declare it, with route_prefix {expected} and import_path deployments.experiments:build"
    missing = f"no application is named '{EXPERIMENTS}', which keeps what routers record; {declare}"
    recorded = [
        f"endpoints.{name}.ledger" for name, endpoint in config.endpoints.items() if endpoint.ledger == "always"
    ]
    recorded += [
        f"endpoints.{name}.mirror" for name, endpoint in config.endpoints.items() if endpoint.mirror is not None
    ]
    recorded += [
        f"endpoints.{name}.record" for name, endpoint in config.endpoints.items() if endpoint.record is not None
    ]
    return [f"{where}: {missing}" for where in (["experiments"] if config.experiments else recorded[:1])]


def runs_several(deployment: Mapping[str, Any]) -> bool:
    """Whether a Serve deployment may get more than one replica by its configuration."""
    number, autoscaling = deployment.get("num_replicas"), deployment.get("autoscaling_config") or {}
    if number == "auto" or (isinstance(number, int) and number > 1):
        return True
    most = autoscaling.get("max_replicas", 1) if isinstance(autoscaling, Mapping) else 1
    return isinstance(most, int) and most > 1


def superseded(applied: Config, wanted: Config) -> list[str]:
    """The effects of delivering `wanted` on the experiments that move traffic in `applied`, a line each."""
    return [
        line
        for name, experiment in applied.experiments.items()
        if is_active(experiment) and experiment.mode == "ab"
        for line in _lines(name, experiment, applied, wanted)
    ]


def _lines(name: str, experiment: Experiment, applied: Config, wanted: Config) -> Iterator[str]:
    before, after = applied.endpoints[experiment.endpoint], wanted.endpoints.get(experiment.endpoint)
    has_moved = before.plan.by == f"experiment {name}"
    if not has_moved and experiment.ramp is None:
        return
    follower = wanted.experiments.get(name)
    is_ended = follower is None or not is_active(follower)
    if is_ended:
        yield f"experiments.{name}: it moves traffic, and this file interrupts its run; keep it `running` to go on"
    if after is None or _arms(before, experiment) == _arms(after, experiment):
        return
    reached = f"'{name}' has brought it to" if has_moved else f"the ramp of '{name}' runs, at"
    pauses = "" if is_ended else " and pauses the experiment"
    yield (
        f"endpoints.{experiment.endpoint}.traffic: {reached} {_words(before, experiment)}; this file says "
        f"{_words(after, experiment)}, which wins{pauses}; to keep the present split, write it into the file"
    )


def _arms(endpoint: Endpoint, experiment: Experiment) -> dict[str, int]:
    return {arm: endpoint.traffic.get(arm, 0) for arm in experiment.arms}


def _words(endpoint: Endpoint, experiment: Experiment) -> str:
    return ", ".join(f"{arm} {share} %" for arm, share in _arms(endpoint, experiment).items())
