"""Checks a configuration as its author sees it: one line for each problem, ``file:line: key: what is wrong; the fix``.

What Ray Serve and vLLM take comes from `packages.json`, so that neither is imported (`deployments.package_schema`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from app.config.base import ConfigError, path_of
from app.config.loading import load_document, parse_yaml, read_text
from app.config.meant import FORMER_ARGUMENTS, gpu_remedy, nearest, number_remedy, shown
from app.config.reference import packages, schema
from app.config.schema import Config

_OWN = "deployments."
"""The package of this project's applications in an `import_path`."""

_POLICY = "deployments.autoscaling:replicas_needed"

_USER_CONFIG = re.compile(r"^applications\[\d+\]\.deployments\[\d+\]\.user_config\.(?=.)")
_APPLICATION = re.compile(r"^applications\[(\d+)\](?=[.:])")

Check = Callable[[Mapping[str, Any]], Iterator[str]]
"""Yields the problems of Serve's file that only a caller can know."""


def check_file(path: Path, further: Check = lambda _: iter(())) -> list[str]:
    """Every problem of the configuration in `path`, in the order of its lines. Starts nothing."""
    try:
        text = read_text(path)
        document = parse_yaml(text)
    except ConfigError as error:
        return [_in_file(path, problem) for problem in error.problems]
    return _located(path, text, document, _problems(document, further))


def located(path: Path, problems: Iterable[str]) -> list[str]:
    """Problems, or warnings, of the valid configuration in `path`, each with its file and line."""
    text = read_text(path)
    return _located(path, text, parse_yaml(text), problems)


def _located(path: Path, text: str, document: object, problems: Iterable[str]) -> list[str]:
    try:
        tree = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError):
        tree = None
    placed = {(_line(tree, problem), _short(problem, document)) for problem in problems}
    return [f"{path}:{line}: {problem}" for line, problem in sorted(placed)]


def package_problems(document: object) -> Iterator[str]:
    """What Ray Serve or vLLM would refuse, or would ignore, in Serve's file. The paths have `[n]` for lists' items."""
    if not isinstance(document, Mapping) or "applications" not in document:
        return
    yield from schema_problems(_packages_validator().iter_errors(document))
    applications = document.get("applications")
    for index, application in enumerate(applications if isinstance(applications, list) else ()):
        if isinstance(application, Mapping):
            yield from _application_problems(f"applications[{index}]", application)


@cache
def _packages_validator() -> Any:
    """Of the whole file but for the router's configuration."""
    import jsonschema

    return jsonschema.Draft202012Validator(schema(user_config={}))


def schema_problems(errors: Iterable[Any]) -> Iterator[str]:
    """The problems that jsonschema's errors are, each with its path."""
    errors = list(errors)
    explained = (error for error in errors if not any(_explains(other, error) for other in errors))
    yield from dict.fromkeys(problem for error in explained for problem in _words(error))


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
    elif isinstance(path, str) and re.fullmatch(r"[\w.]+[:.]\w+", path) is None:
        meant = nearest(path, known) or ", as deployments.llm:build"
        yield f"{where}.import_path: expected MODULE:NAME, not {path}{meant}"
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
    environment = llm_config.get("runtime_env")
    variables = environment.get("env_vars") if isinstance(environment, Mapping) else None
    for name in variables if isinstance(variables, Mapping) else ():
        if nearby := _variable_meant(str(name)):
            yield f"{where}.runtime_env.env_vars.{name}: vLLM has no such variable{nearby}"
    for name, instead in WITHOUT_EFFECT.items():
        if isinstance(kwargs, Mapping) and kwargs.get(name) is not None:
            yield f"{where}.engine_kwargs.{name}: has no effect on an engine; {instead}"
    yield from _size_problems(f"{where}.engine_kwargs", kwargs, accelerator)
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


def _size_problems(where: str, kwargs: object, accelerator: object) -> Iterator[str]:
    """Sizes that vLLM takes, and with which no replica starts."""
    if not isinstance(kwargs, Mapping):
        return
    kind = accelerator.get("kind") if isinstance(accelerator, Mapping) else None
    block, copies, base = kwargs.get("block_size"), kwargs.get("data_parallel_size"), 32 if kind == "cpu" else 16
    if kind != "tpu" and isinstance(block, int) and block > 0 and block % base:
        near = base * max(1, round(block / base))
        processors = "CPUs" if kind == "cpu" else "GPUs"
        yield f"{where}.block_size: expected a multiple of {base} on {processors}, not {block}; write {near}"
    if isinstance(copies, int) and copies > 1:
        yield (
            f"{where}.data_parallel_size: a replica has one copy of the model, and no processors for {copies}; remove "
            f"it, and run {copies} replicas (`num_replicas`, or `min_replicas` of `autoscaling_config`)"
        )
    for name in ("prefill_context_parallel_size", "data_parallel_size_local", "nnodes"):
        if isinstance(wanted := kwargs.get(name), int) and wanted > 1:
            has = "tensor_parallel_size times pipeline_parallel_size processors"
            yield f"{where}.{name}: a replica has {has}, and none more for {wanted}; remove it"


def _variable_meant(name: str) -> str:
    known: Sequence[str] = packages()["variables"]
    return nearest(name, known) if name.startswith("VLLM_") and name not in known else ""


_RESOURCES = ("CPU", "GPU", "memory")

WITHOUT_EFFECT = {
    "model": "the model is `model_source`",
    "served_model_name": "the name is `model_id`",
    "host": "clients reach the router, whose address is in `http_options`",
    "port": "clients reach the router, whose port is that of `switchyard serve --port`",
    "api_key": "clients' keys are in `access`",
    "uvicorn_log_level": "the level of vLLM's log is the variable VLLM_LOGGING_LEVEL",
    **dict.fromkeys(
        ("disable_uvicorn_access_log", "disable_access_log_for_endpoints"), "the router logs requests, not vLLM"
    ),
    **dict.fromkeys(
        ("allow_credentials", "allowed_origins", "allowed_methods", "allowed_headers"),
        "browsers' origins are in `cors`",
    ),
    **dict.fromkeys(
        ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh"),
        "end TLS before the router",
    ),
    **dict.fromkeys(
        ("uds", "h11_max_header_count", "h11_max_incomplete_event_size"), "remove it: clients reach the router"
    ),
    **dict.fromkeys(
        (
            "data_parallel_supervisor_port",
            "dp_supervisor_probe_failure_threshold",
            "dp_supervisor_probe_interval_s",
            "dp_supervisor_probe_timeout_s",
        ),
        "remove it: nothing supervises copies of an engine but Ray Serve",
    ),
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


def engine_warnings(document: Mapping[str, Any]) -> Iterator[str]:
    """Engines whose batch does not fit what Serve gives a replica. `document`: a valid configuration."""
    for index, application in enumerate(document.get("applications", ())):
        llm_config = (application.get("args") or {}).get("llm_config") or {}
        batch = (llm_config.get("engine_kwargs") or {}).get("max_num_seqs")
        for number, deployment in enumerate(application.get("deployments") or ()):
            at_once = deployment.get("max_ongoing_requests")
            if not isinstance(batch, int) or not isinstance(at_once, int):
                continue
            where = f"applications[{index}].deployments[{number}].max_ongoing_requests"
            if at_once < batch:
                yield (
                    f"{where}: a replica gets {at_once} requests at a time, and its batch (max_num_seqs) has room for "
                    f"{batch}, which it never fills; set {2 * batch}, or lower max_num_seqs"
                )
            elif at_once > _DEEP * batch:
                yield (
                    f"{where}: a replica takes {at_once} requests at a time, of which {batch} (max_num_seqs) run; the "
                    f"others wait inside vLLM, where max_queued_requests does not refuse them; set {2 * batch}, or "
                    "raise max_num_seqs"
                )


_DEEP = 8
"""How many times its batch an engine may reasonably hold."""


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
    if isinstance(low, int) and isinstance(high, int) and low > high > 0:
        yield f"{where}.min_replicas: {low} is more than max_replicas, {high}; raise one or lower the other"
    elif isinstance(first, int) and isinstance(low, int) and isinstance(high, int) and not low <= first <= high:
        yield f"{where}.initial_replicas: {first} is not between min_replicas, {low}, and max_replicas, {high}"


def _explains(cause: Any, error: Any) -> bool:
    """Whether `cause` says more about the same mistake: the choices for a value of the wrong kind, or an unknown key
    that is meant to be the missing one."""
    if cause is error or cause.absolute_path != error.absolute_path:
        return False
    if error.validator == "type":
        return bool(cause.validator == "enum")
    if error.validator != "required" or cause.validator != "additionalProperties":
        return False
    missing = [name for name in error.validator_value if name not in error.instance]
    return any(nearest(str(name), missing) for name in cause.instance.keys() - set(cause.schema["properties"]))


def _words(error: Any) -> Iterator[str]:
    """The problem lines of an error of jsonschema."""
    path, value, rule = path_of(error.absolute_path) or "(top level)", error.instance, error.validator
    inner = [cause for cause in error.context or () if len(cause.path) > 0 or cause.validator != "type"]
    kinds = {str(cause.validator_value): cause for cause in inner if cause.validator == "const"}
    if kinds:  # a key says which of several kinds of mapping this is
        wrong = next(iter(kinds.values()))
        yield f"{path_of(wrong.absolute_path)}: expected one of {', '.join(kinds)}{_not(wrong.instance, kinds)}"
    elif inner and isinstance(value, Mapping):
        for part in inner:
            yield from _words(part)
    elif rule == "additionalProperties" and error.validator_value is False:
        known = list(error.schema["properties"])
        for name in value.keys() - set(known):
            where = path_of([*error.absolute_path, name])
            is_serves = "applications" in (*error.absolute_path, *known)
            place = _elsewhere(str(name)) if is_serves else ""
            yield f"{where}: unknown key{place or _remedy_of_key(str(name), known)}"
    elif rule == "required":
        missing = [name for name in error.validator_value if name not in value]
        yield f"{path}: `{missing[0]}` is missing"
    elif bounds := [part for part in inner if part.validator in _BOUNDS]:  # the kind is right, the value is not
        yield from _words(bounds[0])
    elif rule in _BOUNDS:
        yield f"{path}: expected {_BOUNDS[rule]} {error.validator_value}, not {shown(value)}"
    else:
        yield f"{path}: {_value_problem(error)}"


def _value_problem(error: Any) -> str:
    """The problem of a value of the wrong kind, or that is none of the choices."""
    value, choices = error.instance, [str(choice) for choice in _choices(error.schema)]
    if sections := sorted(_kinds(error.schema)):
        meant = f"; write {{kind: {value}}}" if value in sections else ""
        return f"expected a mapping with `kind` ({', '.join(sections)}), not {shown(value)}{meant}"
    if error.validator == "pattern":
        return f"expected {error.schema.get('description', f'what matches {error.validator_value}')}, not {value}"
    if value == "" and error.validator == "minLength":
        return "it is empty; write a text, or remove it"
    is_gpu = error.absolute_path[-1] == "accelerator_type" and isinstance(value, str)
    meant = gpu_remedy(value, choices) if is_gpu else nearest(str(value), choices)
    if meant and len(choices) > _FEW:
        return f"{shown(value)} is not known{meant}"
    return f"expected {_expected(error.schema) or error.message}{_not(value, choices, _remedy(error))}"


def _kinds(given: Mapping[str, Any]) -> Iterator[str]:
    """The values of the key by which the branches of a schema differ."""
    for branch in given.get("anyOf", ()):
        yield from branch.get("discriminator", {}).get("mapping", ())


def _not(value: object, choices: Iterable[str], remedy: str = "") -> str:
    return f", not {shown(value)}{nearest(str(value), choices) or remedy}"


def _remedy(error: Any) -> str:
    """What to do about quotes or a unit, if they are the mistake."""
    kinds, value, key = json.dumps(error.schema), error.instance, str(error.absolute_path[-1])
    if isinstance(value, bool):
        return "; put it in quotes: YAML reads yes, no, on and off as true and false"
    if isinstance(value, int | float):
        return "; put it in quotes" if '"string"' in kinds else ""
    if '"boolean"' in kinds and str(value).lower() in ("true", "false", "yes", "no", "on", "off"):
        return " in quotes; leave them out"
    if '"integer"' not in kinds and '"number"' not in kinds:
        return ""
    remedy = number_remedy(value, key, is_whole='"number"' not in kinds, most=error.schema.get("maximum"))
    return " in quotes; leave them out" if remedy.endswith("without quotes") else remedy


def _expected(given: Mapping[str, Any]) -> str:
    """What a schema takes, in words; null is not worth a word."""
    if "$ref" in given:
        given = packages()["$defs"].get(given["$ref"].rpartition("/")[2], {"type": "object"})  # or the router's
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


def _remedy_of_key(name: str, known: Sequence[str]) -> str:
    """What to do about an unknown key, to append to a problem."""
    if "max_num_seqs" in known and name in FORMER_ARGUMENTS:
        return f"; this vLLM does not have it: {FORMER_ARGUMENTS[name]}"
    if "max_num_seqs" in known and name in WITHOUT_EFFECT:
        return f"; {WITHOUT_EFFECT[name]}"
    return nearest(name, [other for other in known if other not in WITHOUT_EFFECT]) or _listed(known)


def _elsewhere(name: str) -> str:
    """Where a key belongs that is known in another part of the file."""
    if name in _PARTS_OF_SERVER:
        return "; it belongs into `http_options`"
    parts = [part for section, part in _PARTS.items() if name in packages()["$defs"][section]["properties"]]
    parts += ["the router's `user_config`"] if name in Config.model_fields else []
    return f"; it belongs into {' or '.join(parts)}" if parts else ""


_PARTS_OF_SERVER = ("host", "port")
"""Keys that applications and engines know too, without an effect."""

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
    _, line, node = max((_found(start, path) for start in starts), key=lambda problem: problem[0])
    return _quoted_line(node, problem) or line


def _quoted_line(node: yaml.Node, problem: str) -> int | None:
    """The line of the key or item in a node that the problem quotes."""
    inside = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else _items(node)
    lines = {part.value: part.start_mark.line + 1 for part in inside if isinstance(part, yaml.ScalarNode)}
    return next((lines[word] for word in re.findall(r"['`]([^'`]+)['`]", problem) if word in lines), None)


def _routers(tree: yaml.Node) -> Iterator[yaml.Node]:
    """The routers' configurations, at which the paths of some problems begin."""
    for application in _items(_child(tree, "applications")):
        for deployment in _items(_child(application, "deployments")):
            if (node := _child(deployment, "user_config")) is not None:
                yield node


def _found(node: yaml.Node, path: str) -> tuple[int, int, yaml.Node]:
    """The number of characters of `path` that lead somewhere from `node`, and the line and the node they lead to."""
    line, rest = node.start_mark.line + 1, path
    while rest:
        step = _step(node, rest)
        if step is None:
            break
        node, line, rest = step
    return len(path) - len(rest), line, node


def _step(node: yaml.Node, rest: str) -> tuple[yaml.Node, int, str] | None:
    """The next node on the path, its line, and the rest of the path. Keys may have dots; applications have names."""
    if isinstance(node, yaml.MappingNode):
        matching = [
            (key, value)
            for key, value in node.value
            if isinstance(key, yaml.ScalarNode) and re.match(re.escape(_key(key)) + r"(?=[.\[]|$)", rest)
        ]
        if not matching:
            return None
        key, value = max(matching, key=lambda pair: len(_key(pair[0])))
        return value, key.start_mark.line + 1, rest[len(_key(key)) :].removeprefix(".")
    items = _items(node)
    if (index := re.match(r"\[?(\d+)\]?\.?", rest)) is not None and int(index[1]) < len(items):
        item = items[int(index[1])]
        return item, item.start_mark.line + 1, rest[index.end() :]
    for item in items:
        name = _child(item, "name")
        if isinstance(name, yaml.ScalarNode) and (rest + ".").startswith(f"{name.value}."):
            return item, item.start_mark.line + 1, rest[len(name.value) :].removeprefix(".")
    return None


def _key(node: yaml.ScalarNode) -> str:
    """A key as problems have it: `no` is `false`."""
    value: str = node.value
    if node.tag == "tag:yaml.org,2002:bool":
        return shown(yaml.SafeLoader.bool_values[value.lower()])
    return value


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []
