"""Checks the running system: applications, missing replicas and the reason, the last errors in their logs.

- Checks the weights that the configuration names.
- Checks the dependencies of access control: the keys file, the issuer, the limits store.
"""

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from app.access.keys import KeyFile
from app.access.oidc import Issuer, fetch
from app.config.access import Oidc, StoreSettings
from app.config.adapters import adapters_of
from app.config.base import ConfigError
from app.errors import Unauthorized, Unavailable
from app.internal_api import MODELS_VARIABLE, PACKAGE_PREFIX
from app.limits.redis_store import shared_store
from app.limits.store import StoreFailed
from app.upstream.http.client import HttpClient
from deployments.doctor.finding import Finding, Installation, ok, problem, warning
from deployments.invocation import argument, command
from deployments.kubernetes.environment import MODELS
from deployments.local import dashboard
from deployments.local.processes import LaunchError, Phase, models_directory
from deployments.weights import hub
from deployments.weights.cache import is_prepared, source_of
from deployments.weights.errors import WeightsError
from deployments.weights.sources import model_sources, source_on
from deployments.weights.volume import is_complete, state

_LAST = 3
_TAIL_BYTES = 256 * 1024
_REPLICA = re.compile(r"^:actor_name:ServeReplica:([^:\s]+):", re.MULTILINE)
_BUILD = re.compile(r"controller_build_(.+)_\d+\.log$")
_ERROR_LINE = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b")
_EXCEPTION = re.compile(r"^(?:\(\S+ pid=\d+\) )?((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b.*)")
_LONGEST = 300
_KILLED = re.compile(r"^\[(\S+ [\d:]+).*NODE_OUT_OF_MEMORY", re.MULTILINE)
"""Ray's line about a worker that it ended because the machine was short of memory."""


def applications(installation: Installation) -> Iterator[Finding]:
    """Checks that every application of the run is RUNNING, with all its replicas."""
    if installation.run is None:
        yield ok("applications", "nothing runs")
        return
    try:
        instance = dashboard.read(installation.run)
    except LaunchError as error:
        if installation.run.phase == Phase.STARTING and not installation.on_cluster:
            yield warning("applications", "the run is starting", "wait: its terminal says when it is ready")
            return
        fix = "check the head's pod" if installation.on_cluster else f"run: {command('stop')}, then {command('serve')}"
        yield problem("applications", str(error), fix)
        return
    yield from states(list(instance.applications.values()))


def states(applications: Sequence[dashboard.Application]) -> Iterator[Finding]:
    """Findings for applications as Serve reports them."""
    for application in applications:
        why = "; ".join(line.strip() for line in application.messages if line.strip())
        missing = application.wanted - application.running
        if application.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            fix = "its log is below; correct the configuration and deploy it again"
            yield problem("applications", f"{application.name} is {application.status}: {why or 'no message'}", fix)
        elif missing > 0:
            has = f"{application.name} has {application.running} of {application.wanted} replicas"
            yield warning("applications", f"{has}: {why or application.status}", _advice(why))
    if applications and all(
        application.status == "RUNNING" and application.running >= application.wanted for application in applications
    ):
        yield ok("applications", f"{len(applications)} run with all their replicas")


def _advice(why: str) -> str:
    if "scheduled" in why or "resources" in why.lower():
        lacking = "no node has the resources that it requests (GPU, accelerator_type, CPUs)"
        return f"{lacking}: look at pending pods and the groups' maxReplicas"
    return "it is starting: loading weights takes minutes; if it takes longer, its log is below"


def last_errors(installation: Installation) -> Iterator[Finding]:
    """The last errors in each application's log."""
    if installation.logs is None or not installation.logs.exists():
        return
    errors = errors_by_application(installation.logs)
    if killed := killed_for_memory(installation.logs):
        fix = "free memory, lower VLLM_CPU_KVCACHE_SPACE, or serve fewer replicas"
        yield problem("log", f"Ray ended processes, since the memory was nearly full, last at {killed[-1]}", fix)
    for name, lines in sorted(errors.items()):
        for line in lines[-_LAST:]:
            yield warning("log", f"{name}: {line}", f"read the log: {installation.logs}")
    if not errors and not killed:
        yield ok("log", "no errors")


def killed_for_memory(logs: Path) -> list[str]:
    """When Ray ended processes of this run because the machine was short of memory, as its log has the times."""
    file = logs / "gcs_server.out"
    return _KILLED.findall(_tail(file)) if file.exists() else []


def errors_by_application(logs: Path) -> Mapping[str, list[str]]:
    """Maps each application to its errors, in the order of the log files, without repetitions."""
    errors: dict[str, dict[str, None]] = defaultdict(dict)
    for file in sorted(logs.glob("worker-*.err"), key=lambda path: path.stat().st_mtime):
        text = _tail(file)
        if (match := _REPLICA.search(_head(file))) is not None:
            errors[match[1]].update(dict.fromkeys(errors_in(text)))
    for file in sorted((logs / "serve").glob("controller_build_*.log"), key=lambda path: path.stat().st_mtime):
        if (match := _BUILD.search(file.name)) is not None:
            errors[match[1]].update(dict.fromkeys(errors_in(_tail(file))))
    return {name: list(lines) for name, lines in errors.items() if lines}


def errors_in(text: str) -> Iterator[str]:
    """Yields the errors of a log: JSON lines of level error or above, lines with ERROR, and the ends of tracebacks."""
    for line in text.splitlines():
        if line.startswith("{") and (error := _json_error(line)):
            yield error[:_LONGEST]
        elif (match := _EXCEPTION.match(line)) is not None:
            yield match[1][:_LONGEST]
        elif not line.startswith("{") and _ERROR_LINE.search(line):
            yield line.strip()[:_LONGEST]


def _json_error(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(entry, dict) or entry.get("level") not in ("error", "critical"):
        return ""
    about = ", ".join(f"{name}={entry[name]}" for name in ("error", "deployment", "endpoint") if entry.get(name))
    about = about or "; ".join(entry.get("problems") or ())
    return f"{entry.get('event')}{': ' + about if about else ''}"


def _head(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(4096).decode(errors="replace")


def _tail(file: Path) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        return opened.read().decode(errors="replace")


MAX_LORA_RANK = 16
"""vLLM's default of `max_lora_rank`."""

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for it."""


HubFolder = Callable[[str, str], Path | None]
"""`deployments.weights.hub.config_folder`."""


def weights(installation: Installation, ask_hub: HubFolder = hub.config_folder) -> Iterator[Finding]:
    """Checks that each model is present, or can be prepared. On a cluster only the engines' pods mount the weights.

    `ask_hub`: fetches a small file of a hub's model.
    """
    cache = Path(installation.environment.get(MODELS_VARIABLE) or models_directory())
    sources = list(dict.fromkeys(model_sources(installation.applications)))
    if installation.on_cluster and not cache.exists() and any(_on_volume(source, cache) for source in sources):
        fix = "run the command in a pod with engines, too"
        yield warning("weights", f"{cache} is not mounted on this node: the weights in it are not checked", fix)
        sources = [source for source in sources if not _on_volume(source, cache)]
    for source in sources:
        if source.startswith(PACKAGE_PREFIX):
            yield _packaged(source.removeprefix(PACKAGE_PREFIX), cache, installation)
        elif installation.on_cluster and (fetched := source_on(cache, source)) is not None:
            yield _fetched(fetched, cache)
        elif _is_path(source):
            yield _local(Path(source))
        elif "://" not in source:
            yield from _from_hub(source, "config.json", installation, ask_hub)
    yield from _adapters(installation, cache, ask_hub)


def _adapters(installation: Installation, cache: Path, ask_hub: HubFolder) -> Iterator[Finding]:
    for application in installation.applications:
        config = (application.get("args") or {}).get("llm_config") or {}
        rank = (config.get("engine_kwargs") or {}).get("max_lora_rank") or MAX_LORA_RANK
        for adapter in adapters_of(config):
            if installation.on_cluster and not cache.exists() and _on_volume(adapter.path, cache):
                continue
            if _is_path(adapter.path):
                yield _adapter(adapter.name, Path(adapter.path), rank)
            else:
                yield from _from_hub(adapter.path, "adapter_config.json", installation, ask_hub)


def _on_volume(source: str, cache: Path) -> bool:
    return source.startswith(PACKAGE_PREFIX) or Path(source).is_relative_to(cache)


def _is_path(source: str) -> bool:
    return source.startswith(("/", "./", "../"))


def _from_hub(source: str, file: str, installation: Installation, ask_hub: HubFolder) -> Iterator[Finding]:
    if installation.environment.get("HF_HUB_OFFLINE") == "1" and installation.on_cluster:
        fix = f"name {MODELS}/{source}, which a Job fetches"
        yield problem("weights", f"{source} comes from a model hub, and HF_HUB_OFFLINE is 1", fix)
        return
    try:
        ask_hub(source, file)
    except WeightsError as error:
        message, _, fix = str(error).partition(". ")
        yield problem("weights", message, fix if fix[1:2].isupper() else fix[:1].lower() + fix[1:])
    else:
        yield ok("weights", f"{source} is in the hub's cache, or can be fetched")


def _packaged(name: str, cache: Path, installation: Installation) -> Finding:
    try:
        if is_prepared(name, cache):
            return ok("weights", f"{name} is prepared in {cache}")
        if installation.on_cluster:
            return _fetched(f"{PACKAGE_PREFIX}{name}", cache)
        source_of(name)
    except WeightsError as error:
        message, _, fix = str(error).partition(". Run: ")
        return problem("weights", message, f"run: {fix}" if fix else "correct `model_source`")
    fix = f"`{command('serve')}` prepares it, or now: {command('weights')}"
    if (cache / name).exists():
        return warning("weights", f"{name} in {cache} is damaged, or of another version", fix)
    return warning("weights", f"{name} is not prepared yet", fix)


def _fetched(source: str, volume: Path) -> Finding:
    """On the volume of a cluster."""
    if is_complete(source, volume):
        return ok("weights", f"{source} is complete in {volume}")
    fix = "read the log of the Job that fetches it: kubectl logs -l app.kubernetes.io/name=switchyard-weights --tail=-1"
    return problem("weights", f"engines wait for {source}: {state(source, volume)}", fix)


def _local(path: Path) -> Finding:
    if not (path / "config.json").is_file():
        fix = "mount the volume with the weights, or correct `model_source`"
        return problem("weights", f"{path} has no config.json: it is not a model", fix)
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        return problem("weights", f"{path} has no weights (*.safetensors)", "download the model again")
    return ok("weights", f"{path} exists")


def _adapter(name: str, path: Path, largest: int) -> Finding:
    about = f"the adapter {name} in {path}"
    try:
        rank = json.loads((path / "adapter_config.json").read_text())["r"]
    except (OSError, ValueError, KeyError, TypeError):
        fix = "mount the volume with the adapters, or correct `lora_modules`"
        return problem("weights", f"{about} has no adapter_config.json with a rank", fix)
    if not any((path / f"adapter_model.{kind}").is_file() for kind in ("safetensors", "bin")):
        return problem("weights", f"{about} has no adapter_model.safetensors", "download the adapter again")
    if isinstance(rank, int) and rank > largest:
        enough = next((size for size in MAX_LORA_RANKS if size >= rank), MAX_LORA_RANKS[-1])
        fix = f"set `max_lora_rank: {enough}` in engine_kwargs"
        return problem("weights", f"{about} has rank {rank}; the engine accepts up to {largest}", fix)
    return ok("weights", f"{about} exists")


def keys(installation: Installation) -> Iterator[Finding]:
    """Checks that the keys file can be read, and has keys."""
    file = installation.config.access.keys_file if installation.config is not None else None
    if file is None:
        return
    if installation.on_cluster and not file.parent.exists():
        fix = "run the command in a router's pod, too"
        yield warning("keys", f"{file.parent} is not mounted on this node: the keys are not checked", fix)
        return
    try:
        ring = KeyFile(file).ring
    except ConfigError as error:
        for line in error.problems:
            create = command("keys create --name NAME --file FILE")
            yield problem("keys", line, f"correct the file, or create keys: {create}")
        return
    if not len(ring):
        yield warning("keys", f"{file} has no keys", command(f"keys create --name NAME --file {argument(file)}"))
    else:
        yield ok("keys", f"{file} has {len(ring)} keys")


def issuer(installation: Installation) -> Iterator[Finding]:
    """Checks that the OpenID Connect issuer answers with its keys."""
    oidc = installation.config.access.oidc if installation.config is not None else None
    if oidc is not None:
        reachable = asyncio.run(_has_keys(oidc))
        if reachable:
            yield ok("issuer", f"{oidc.issuer} answers")
        else:
            fix = "check its URL, the network policy, and the certificates of this machine"
            yield problem("issuer", f"{oidc.issuer} does not answer with its keys: tokens cannot be verified", fix)


def limits_store(installation: Installation) -> Iterator[Finding]:
    """Checks that the limits store answers."""
    settings = installation.config.access.limits.store if installation.config is not None else None
    if settings is None:
        return
    try:
        url = settings.read()
    except (KeyError, OSError):
        if installation.on_cluster:
            fix = "set it for the routers' pods, and run the command in one of them"
            yield warning("limits store", f"this node cannot read its URL from {_place(settings)}", fix)
        else:
            yield problem("limits store", f"its URL cannot be read from {_place(settings)}", "set it there")
        return
    try:
        asyncio.run(_answers(url))
    except ValueError:
        yield problem("limits store", f"the value of {_place(settings)} is not a redis:// URL", "correct it")
    except StoreFailed as error:
        fix = "start it, or correct its URL, password or network policy; `on_store_failure` decides meanwhile"
        yield problem("limits store", f"it does not answer: {error}", fix)
    else:
        yield ok("limits store", "it answers")


async def _has_keys(oidc: Oidc) -> bool:
    with closing(HttpClient()) as client:
        try:
            await Issuer(oidc, partial(fetch, client), time.monotonic).key("switchyard-doctor")
        except Unavailable:
            return False
        except Unauthorized:  # there are keys, and this is not one of them
            return True
    return True


async def _answers(url: str) -> None:
    store = shared_store(url)
    try:
        await store.window("switchyard-doctor")
    finally:
        with suppress(StoreFailed):
            await store.close()


def _place(settings: StoreSettings) -> str:
    if settings.url_env is not None:
        return f"the variable {settings.url_env}"
    return str(settings.url_file) if settings.url_file is not None else "`url`"
