"""Checks a configuration as its author sees it: one line for each problem, ``file:line: key: what is wrong; the fix``.

What Ray Serve and vLLM take comes from `packages.json`, so that neither is imported (`deployments.package_schema`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from app.config.base import ConfigError, nearest, shown
from app.config.loading import load_document, parse_yaml, read_text
from app.config.reference import packages, schema

_OWN = "deployments."
"""The package of this project's applications in an `import_path`."""

_POLICY = "deployments.autoscaling:replicas_needed"

_USER_CONFIG = re.compile(r"^applications\[\d+\]\.deployments\[\d+\]\.user_config\.(?=.)")
_APPLICATION = re.compile(r"^applications\[(\d+)\](?=\.)")

Check = Callable[[Mapping[str, Any]], Iterator[str]]
"""Yields the problems of Serve's file that only a caller can know."""


def check_file(path: Path, further: Check = lambda _: iter(())) -> list[str]:
    """Every problem of the configuration in `path`, in the order of its lines. Starts nothing."""
    try:
        text = read_text(path)
        document = parse_yaml(text)
    except ConfigError as error:
        return [_in_file(path, problem) for problem in error.problems]
    try:
        tree = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError):
        tree = None
    placed = {(_line(tree, problem), _short(problem, document)) for problem in _problems(document, further)}
    return [f"{path}:{line}: {problem}" for line, problem in sorted(placed)]


def package_problems(document: object) -> Iterator[str]:
    """What Ray Serve or vLLM would refuse, or would ignore, in Serve's file. The paths have `[n]` for lists' items."""
    import jsonschema

    if not isinstance(document, Mapping) or "applications" not in document:
        return
    errors = list(jsonschema.Draft202012Validator(schema(user_config={})).iter_errors(document))
    for error in errors:
        if not any(_misspells(other, error) for other in errors):
            yield from _words(error)
    applications = document.get("applications")
    for index, application in enumerate(applications if isinstance(applications, list) else ()):
        if isinstance(application, Mapping):
            yield from _application_problems(f"applications[{index}]", application)


def _problems(document: object, further: Check) -> Iterator[str]:
    if isinstance(document, Mapping):
        if "apiVersion" in document and "kind" in document:
            yield f"kind: {document['kind']} is Kubernetes' and not a configuration; check the overlay's directory"
            return
        yield from package_problems(document)
        if "applications" not in document:
            meant = [name for name in document if nearest(str(name), ["applications"])]
            if meant:
                yield f"{meant[0]}: unknown key; did you mean applications?"
                return
    try:
        load_document(document)
    except ConfigError as error:
        yield from error.problems
        return
    if isinstance(document, Mapping):
        yield from further(document)


def _application_problems(where: str, application: Mapping[str, Any]) -> Iterator[str]:
    known, path = packages()["applications"], application.get("import_path")
    if isinstance(path, str) and path.startswith(_OWN) and path not in known:
        yield f"{where}.import_path: '{path}' does not exist{nearest(path, known) or _listed(known)}"
    args = application.get("args")
    llm_config = args.get("llm_config") if isinstance(args, Mapping) else None
    if isinstance(llm_config, Mapping):
        yield from _engine_problems(f"{where}.args.llm_config", llm_config)
    inner = llm_config.get("deployment_config") if isinstance(llm_config, Mapping) else None
    listed = application.get("deployments")
    places = [(f"{where}.args.llm_config.deployment_config", inner)]
    places += [(f"{where}.deployments[{i}]", item) for i, item in enumerate(listed if isinstance(listed, list) else ())]
    for place, deployment in places:
        if isinstance(deployment, Mapping):
            yield from _number_problems(place, deployment)
            yield from _replica_problems(f"{place}.autoscaling_config", deployment)


def _engine_problems(where: str, llm_config: Mapping[str, Any]) -> Iterator[str]:
    """What Ray or vLLM would take, and then never run or ignore."""
    kwargs, accelerator = llm_config.get("engine_kwargs"), llm_config.get("accelerator_config")
    for name, instead in _WITHOUT_EFFECT.items():
        if isinstance(kwargs, Mapping) and kwargs.get(name) is not None:
            yield f"{where}.engine_kwargs.{name}: has no effect on an engine; {instead}"
    wanted = llm_config.get("accelerator_type")
    if wanted and isinstance(accelerator, Mapping) and accelerator.get("kind") == "cpu":
        beside = "`accelerator_config: {kind: cpu}`"
        yield f"{where}.accelerator_type: {shown(wanted)} beside {beside}; remove one of both"
    group = llm_config.get("placement_group_config")
    bundle = group.get("bundle_per_worker") if isinstance(group, Mapping) else None
    for name in bundle if isinstance(bundle, Mapping) else ():
        meant = [resource for resource in _RESOURCES if resource.lower() == str(name).lower() and resource != name]
        if meant:
            path = f"{where}.placement_group_config.bundle_per_worker.{name}"
            yield f"{path}: no machine has the resource '{name}'; did you mean {meant[0]}?"


_RESOURCES = ("CPU", "GPU", "memory")

_WITHOUT_EFFECT = {
    "served_model_name": "the name is `model_id`",
    "host": "clients reach the router, whose address is in `http_options`",
    "port": "clients reach the router, whose port is that of `switchyard serve --port`",
    "api_key": "clients' keys are in `access`",
}
"""Arguments of vLLM's server that is not started, and what has their effect."""


def _number_problems(where: str, deployment: Mapping[str, Any]) -> Iterator[str]:
    replicas, at_once, waiting = (
        deployment.get(name) for name in ("num_replicas", "max_ongoing_requests", "max_queued_requests")
    )
    if replicas == 0 and replicas is not False:
        yield f"{where}.num_replicas: nothing answers without a replica; write at least 1"
    if isinstance(waiting, int) and waiting < -1:
        yield f"{where}.max_queued_requests: expected at least 0, or -1 for any number, not {waiting}"
    autoscaling = deployment.get("autoscaling_config")
    target = autoscaling.get("target_ongoing_requests") if isinstance(autoscaling, Mapping) else None
    if isinstance(target, int | float) and isinstance(at_once, int) and target > at_once > 0:
        path = f"{where}.autoscaling_config.target_ongoing_requests"
        yield f"{path}: {target} is more than max_ongoing_requests, {at_once}, which a replica never exceeds; lower it"


def _replica_problems(where: str, deployment: Mapping[str, Any]) -> Iterator[str]:
    autoscaling = deployment.get("autoscaling_config")
    if not isinstance(autoscaling, Mapping):
        return
    if deployment.get("num_replicas") not in (None, "auto"):
        yield f"{where}: its deployment has `num_replicas`, too; remove one of both"
    policy = autoscaling.get("policy")
    function = policy.get("policy_function") if isinstance(policy, Mapping) else None
    if isinstance(function, str) and function.startswith(_OWN) and function != _POLICY:
        yield f"{where}.policy.policy_function: '{function}' does not exist; did you mean {_POLICY}?"
    low, high = autoscaling.get("min_replicas", 1), autoscaling.get("max_replicas", 1)
    first = autoscaling.get("initial_replicas")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield f"{where}.min_replicas: {low} is more than max_replicas, {high}; raise one or lower the other"
    elif isinstance(first, int) and isinstance(low, int) and isinstance(high, int) and not low <= first <= high:
        yield f"{where}.initial_replicas: {first} is not between min_replicas, {low}, and max_replicas, {high}"


def _misspells(cause: Any, error: Any) -> bool:
    """Whether `cause` is an unknown key that is meant to be the one whose absence `error` reports."""
    if error.validator != "required" or cause.validator != "additionalProperties" or cause.path != error.path:
        return False
    missing = [name for name in error.validator_value if name not in error.instance]
    return any(nearest(str(name), missing) for name in cause.instance.keys() - set(cause.schema["properties"]))


def _words(error: Any) -> Iterator[str]:
    """The problem lines of an error of jsonschema."""
    path, value, rule = _path(error.absolute_path) or "(top level)", error.instance, error.validator
    inner = [cause for cause in error.context or () if len(cause.path) > 0 or cause.validator != "type"]
    kinds = {str(cause.validator_value): cause for cause in inner if cause.validator == "const"}
    if kinds:  # a key says which of several kinds of mapping this is
        wrong = next(iter(kinds.values()))
        yield f"{_path(wrong.absolute_path)}: expected one of {', '.join(kinds)}{_not(wrong.instance, kinds)}"
    elif inner and isinstance(value, Mapping):
        for part in inner:
            yield from _words(part)
    elif rule == "additionalProperties" and error.validator_value is False:
        known = list(error.schema["properties"])
        for name in value.keys() - set(known):
            where = _path([*error.absolute_path, name])
            yield f"{where}: unknown key{_elsewhere(str(name)) or nearest(str(name), known) or _listed(known)}"
    elif rule == "required":
        missing = [name for name in error.validator_value if name not in value]
        yield f"{path}: `{missing[0]}` is missing"
    elif bounds := [part for part in inner if part.validator in _BOUNDS]:  # the kind is right, the value is not
        yield from _words(bounds[0])
    elif rule in _BOUNDS:
        yield f"{path}: expected {_BOUNDS[rule]} {error.validator_value}, not {shown(value)}"
    else:
        choices = [str(choice) for choice in _choices(error.schema)]
        meant = nearest(str(value), choices)
        if meant and len(choices) > _FEW:
            yield f"{path}: {shown(value)} is not known{meant}"
        else:
            yield f"{path}: expected {_expected(error.schema) or error.message}{_not(value, choices, _quotes(error))}"


def _not(value: object, choices: Iterable[str], remedy: str = "") -> str:
    return f", not {shown(value)}{nearest(str(value), choices) or remedy}"


def _quotes(error: Any) -> str:
    """What to do about quotes, if they are the mistake."""
    kinds, value = json.dumps(error.schema), error.instance
    if isinstance(value, str):
        is_number = re.fullmatch(r"-?\d+(\.\d+)?", value) and ('"integer"' in kinds or '"number"' in kinds)
        return " in quotes; leave them out" if is_number else ""
    return "; put it in quotes" if isinstance(value, int | float) and '"string"' in kinds else ""


def _expected(given: Mapping[str, Any]) -> str:
    """What a schema takes, in words; null is not worth a word."""
    if "$ref" in given:
        given = packages()["$defs"][given["$ref"].rpartition("/")[2]]
    if (choices := list(_choices(given))) and "anyOf" not in given:
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else str(choices[0])
    kinds = given.get("type", [])
    words = [_KINDS[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in _KINDS]
    words += filter(None, map(_expected, given.get("anyOf", ())))
    return " or ".join(dict.fromkeys(words))


_FEW = 25
"""Names that are listed; of more, only the nearest one is."""

_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}

_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def _choices(given: Mapping[str, Any]) -> Iterator[object]:
    yield from (
        choice for choice in [*given.get("enum", ()), *([given["const"]] if "const" in given else [])] if choice
    )
    for branch in given.get("anyOf", ()):
        yield from _choices(branch)


def _path(parts: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _elsewhere(name: str) -> str:
    """Where a key belongs that is known in another part of the file."""
    parts = [part for section, part in _PARTS.items() if name in packages()["$defs"][section]["properties"]]
    return f"; it belongs into {' or '.join(parts)}" if parts else ""


_PARTS = {
    "ServeApplicationSchema": "an application",
    "DeploymentSchema": "an application's `deployments`",
    "AutoscalingConfig": "`autoscaling_config`",
    "RayActorOptionsSchema": "`ray_actor_options`",
    "LLMConfig": "`llm_config`",
    "ModelLoadingConfig": "`model_loading_config`",
    "EngineArguments": "`engine_kwargs`",
}


def _listed(known: Sequence[str] | Mapping[str, Any]) -> str:
    return f"; remove it or correct its spelling (known: {', '.join(known)})" if len(known) <= _FEW else "; remove it"


def _short(problem: str, document: object) -> str:
    """The problem with the application's name instead of its number; the router's part begins at `user_config`."""
    if (match := _APPLICATION.match(shorter := _USER_CONFIG.sub("", problem))) is None:
        return shorter
    name = document["applications"][int(match[1])].get("name") if isinstance(document, Mapping) else None
    return f"applications.{name}{shorter[match.end() :]}" if isinstance(name, str) else shorter


def _in_file(path: Path, problem: str) -> str:
    """A problem of the text itself, whose line it may name."""
    if (match := re.match(r"line (\d+): ", problem)) is not None:
        return f"{path}:{match[1]}: {problem[match.end() :]}"
    return problem if problem.startswith(str(path)) else f"{path}: {problem}"


def _line(tree: yaml.Node | None, problem: str) -> int:
    """The line of the key that a problem names, or of the nearest mapping around it."""
    path = problem.partition(": ")[0]
    if tree is None:
        return 1
    starts = [tree, *_routers(tree)]
    return max((_found(start, path) for start in starts), key=lambda pair: pair[0])[1]


def _routers(tree: yaml.Node) -> Iterator[yaml.Node]:
    """The routers' configurations, at which the paths of some problems begin."""
    for application in _items(_child(tree, "applications")):
        for deployment in _items(_child(application, "deployments")):
            if (node := _child(deployment, "user_config")) is not None:
                yield node


def _found(node: yaml.Node, path: str) -> tuple[int, int]:
    """The number of characters of `path` that lead somewhere from `node`, and the line where they lead."""
    line, rest = node.start_mark.line + 1, path
    while rest:
        step = _step(node, rest)
        if step is None:
            break
        node, line, rest = step
    return len(path) - len(rest), line


def _step(node: yaml.Node, rest: str) -> tuple[yaml.Node, int, str] | None:
    """The next node on the path, its line, and the rest of the path. Keys may have dots; applications have names."""
    if isinstance(node, yaml.MappingNode):
        matching = [
            (key, value)
            for key, value in node.value
            if isinstance(key, yaml.ScalarNode) and re.match(re.escape(key.value) + r"(?=[.\[]|$)", rest)
        ]
        if not matching:
            return None
        key, value = max(matching, key=lambda pair: len(pair[0].value))
        return value, key.start_mark.line + 1, rest[len(key.value) :].removeprefix(".")
    items = _items(node)
    if (index := re.match(r"\[?(\d+)\]?\.?", rest)) is not None and int(index[1]) < len(items):
        item = items[int(index[1])]
        return item, item.start_mark.line + 1, rest[index.end() :]
    for item in items:
        name = _child(item, "name")
        if isinstance(name, yaml.ScalarNode) and (rest + ".").startswith(f"{name.value}."):
            return item, item.start_mark.line + 1, rest[len(name.value) :].removeprefix(".")
    return None


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []
