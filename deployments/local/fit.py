"""What a valid configuration asks for that no machine, or not this one, has: known before anything starts."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from app.access.keys import KeyFile
from app.config.base import ConfigError
from app.config.meant import nearest, question
from app.config.schema import Config
from app.internal_api import KEEP_ALIVE_S, PACKAGE_PREFIX
from deployments.invocation import make
from deployments.kubernetes.demands import ACCELERATOR, Demand, demands
from deployments.local import accelerator
from deployments.local.accelerator import KV_AND_WEIGHTS, Gpu, NoGpus
from deployments.local.processes import models_directory
from deployments.weights import hub
from deployments.weights.recipes import RECIPES
from deployments.weights.sources import HUB_ID, adapter_sources, is_hub_id, model_sources

LOGICAL_CPUS = 16
"""Ray's bookkeeping, not cores: replicas that wait for tokens share the machine."""

_KNOWN = f"; known: {', '.join(RECIPES)}"

_CPU_CACHE, _ANY_LENGTH = "VLLM_CPU_KVCACHE_SPACE", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""vLLM's environment variables for the cache of an engine on CPUs, and for lengths that the model does not have."""

_UTILIZATION = 0.92
"""vLLM's default of `gpu_memory_utilization`."""

_SHARING = "docs/start/gpu.md#two-deployments-on-one-gpu"


def model_config(source: str) -> Mapping[str, Any]:
    """What `config.json` says of a model, if its folder is on this machine; empty if not."""
    if source.startswith(PACKAGE_PREFIX):
        folder: Path | None = models_directory() / source.removeprefix(PACKAGE_PREFIX)
    elif source.startswith(("/", ".")):
        folder = Path(source)
    else:
        folder = hub.cached_config_folder(source) if is_hub_id(source) else None
    try:
        config = json.loads((folder / "config.json").read_text()) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def engine_problems(
    document: Mapping[str, Any], config_of: Callable[[str], Mapping[str, Any]] = model_config
) -> Iterator[str]:
    """What no engine can do, here or elsewhere. `document`: a configuration whose router's part is valid. `config_of`:
    a model's `config.json` by its source; empty if it is not known."""
    yield from unknown_sources(document)
    yield from _literal_paths(document)
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # malformed: `package_problems` says so
        for demand in demands(document):
            yield from _shared_gpu_problems(document, demand)
            yield from _model_problems(document, demand.application, config_of)
            yield from _contradictions(document, demand.application)


def _model_problems(
    document: Mapping[str, Any], application: str, config_of: Callable[[str], Mapping[str, Any]]
) -> Iterator[str]:
    """Arguments that the model itself excludes, and a size of the cache that vLLM cannot read."""
    config = _engine(document, application)
    where = f"applications.{application}.args.llm_config"
    variables = (config.get("runtime_env") or {}).get("env_vars") or {}
    size = str(variables.get(_CPU_CACHE, "0"))
    if not size.isdigit():
        yield f"{where}.runtime_env.env_vars.{_CPU_CACHE}: expected whole GiB, such as 4, not {size}"
    kwargs, loading = config.get("engine_kwargs") or {}, config.get("model_loading_config") or {}
    template = kwargs.get("chat_template")
    if is_missing_template(template) and not template.startswith(("/", *_UNEXPANDED)):
        yield f"{where}.engine_kwargs.chat_template: there is no file {template} here; write its whole path"
    known = config_of(str(loading.get("model_source") or loading.get("model_id") or ""))
    known = {**known, **(known.get("text_config") or {})}
    most, wanted = known.get("max_position_embeddings"), kwargs.get("max_model_len")
    scaled = known.get("rope_scaling") or (known.get("rope_parameters") or {}).get("rope_type", "default") != "default"
    is_longer = isinstance(most, int) and isinstance(wanted, int) and wanted > most
    is_free = scaled or "model_max_length" in known or _ANY_LENGTH in variables or kwargs.get("hf_overrides")
    if is_longer and not is_free:
        yield f"{where}.engine_kwargs.max_model_len: the model has positions for {most} tokens, not {wanted}"
    heads, parts = known.get("num_attention_heads"), kwargs.get("tensor_parallel_size")
    if isinstance(heads, int) and isinstance(parts, int) and parts > 0 and heads % parts:
        yield (
            f"{where}.engine_kwargs.tensor_parallel_size: the model's {heads} attention heads cannot be divided among "
            f"{parts} GPUs; set a divisor of {heads}"
        )


def _contradictions(document: Mapping[str, Any], application: str) -> Iterator[str]:
    """Arguments that vLLM refuses together, some only when the weights are loaded."""
    kwargs = _engine(document, application).get("engine_kwargs") or {}
    where = f"applications.{application}.args.llm_config.engine_kwargs"
    if kwargs.get("enable_auto_tool_choice") is True and not kwargs.get("tool_call_parser"):
        yield f"{where}.enable_auto_tool_choice: needs `tool_call_parser`, the form in which the model writes its calls"
    tokens, answers, length = (kwargs.get(name) for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"))
    if not isinstance(tokens, int) or tokens < 1:
        return
    if isinstance(answers, int) and tokens < answers:
        yield f"{where}.max_num_batched_tokens: {tokens} is less than max_num_seqs, {answers}; raise it"
    if kwargs.get("enable_chunked_prefill") is False and isinstance(length, int) and tokens < length:
        yield (
            f"{where}.max_num_batched_tokens: {tokens} is less than max_model_len, {length}, and prompts are not cut "
            "(enable_chunked_prefill: false); raise it"
        )


def _shared_gpu_problems(document: Mapping[str, Any], demand: Demand) -> Iterator[str]:
    """vLLM plans with a part of the whole GPU's memory, whatever part of the GPU Ray gives it."""
    config = _engine(document, demand.application)
    kwargs = config.get("engine_kwargs") or {}
    share = max((bundle.get("GPU", 0) for bundle in demand.bundles), default=0)
    if not config or not 0 < share < 1:
        return
    where = f"applications.{demand.application}.args.llm_config"
    if len(demand.bundles) > 1:
        yield (
            f"{where}.placement_group_config: the {len(demand.bundles)} workers of an engine could get parts of the "
            "same GPU; give them whole ones, or set tensor_parallel_size and pipeline_parallel_size to 1"
        )
    planned = kwargs.get("gpu_memory_utilization")
    if kwargs.get("kv_cache_memory_bytes") is None and (planned or _UTILIZATION) > share:
        default = "" if planned else " by vLLM's default"
        yield (
            f"{where}.engine_kwargs.gpu_memory_utilization: the engine takes {planned or _UTILIZATION:g} of the GPU's "
            f"memory{default}, and has {share:g} of the GPU; set at most {round(KV_AND_WEIGHTS * share, 3):g}"
        )


def _engine(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The `llm_config` of an application; empty if it has none."""
    (application,) = (one for one in document["applications"] if one["name"] == name)
    config: Mapping[str, Any] = (application.get("args") or {}).get("llm_config") or {}
    return config


def unknown_sources(document: Mapping[str, Any]) -> Iterator[str]:
    """Models of `package:` that no recipe makes, and sources of no known form. `document`: a valid configuration."""
    for application in document.get("applications") or []:
        where = f"applications.{application['name']}.args.llm_config.model_loading_config.model_source"
        for source in model_sources([application]):
            if not source.startswith(_UNEXPANDED) and (problem := source_problem(source)):
                yield f"{where}: {problem}"


def source_problem(source: str) -> str:
    """Why no model can have this source, here or elsewhere; empty if one can."""
    name = source.removeprefix(PACKAGE_PREFIX)
    if name != source:
        return "" if name in RECIPES else f"no package has the model '{name}'{nearest(name, RECIPES) or _KNOWN}"
    is_url = "://" in source and not source.startswith(("http://", "https://", "hf://"))
    is_folder = not is_hub_id(source) and "://" not in source
    if is_url or is_folder or HUB_ID.fullmatch(source) is not None:
        return ""
    forms = f"a folder (/… or ./…), a hub's id (owner/name), {PACKAGE_PREFIX}… or s3://…"
    page, is_package = _HUB_PAGE.fullmatch(source), nearest(source.partition(":")[0], [PACKAGE_PREFIX.rstrip(":")])
    meant = page[1] if page is not None else PACKAGE_PREFIX if is_package else ""
    return f"'{source}' is neither {forms}{question(meant)}"


_HUB_PAGE = re.compile(r"(?:https?://(?:www\.)?huggingface\.co/|hf:(?://)?)?([\w.-]+/[\w.-]+?)(?:/(?:tree/main)?)?")
"""A model's id as the hub's pages and other programs write it, or with a slash at its end."""

_UNEXPANDED = ("~", "$")
"""How paths begin that a shell would expand."""

_PATHS = {"model_source", "tokenizer", "chat_template", "hf_config_path", "download_dir", "generation_config"}
_PATHS |= {"keys_file", "api_key_file", "tokenizer_dir", "path"}
"""Keys whose values are paths."""


def _literal_paths(section: object, where: str = "") -> Iterator[str]:
    """Paths that are written for a shell: no program that reads the file expands them."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(section, Mapping):
        items = ((f".{key}", value) for key, value in section.items())
    elif isinstance(section, list):
        items = ((f"[{number}]", value) for number, value in enumerate(section))
    for key, value in items:
        place = f"{where}{key}".removeprefix(".")
        if isinstance(value, str) and str(key)[1:] in _PATHS and re.match(r"~/|\$\w|\$\{\w+\}", value):
            expanded = os.path.expandvars(os.path.expanduser(value))
            fix = f"write {expanded}" if not expanded.startswith(_UNEXPANDED) else "write the value of the variable"
            yield f"{place}: '{value}' is taken as it is, and `{value[0]}` is not expanded; {fix}"
        elif isinstance(value, Mapping | list):
            yield from _literal_paths(value, place)


def is_missing_template(template: object) -> TypeGuard[str]:
    """Whether a `chat_template` names a file that this machine lacks, and is no template itself."""
    return isinstance(template, str) and not {*"{}\n"} & {*template} and not Path(template).is_file()


def _absent(applications: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Folders of models and adapters that this machine lacks."""
    for application in applications:
        where = f"{application['name']}: "
        for source in model_sources([application]):
            if is_hub_id(source) and (Path(source) / "config.json").is_file():
                yield f"{where}model_source: {source} is a hub's id, and a folder here; for the folder write ./{source}"
            if source.startswith(("/", ".")) and not (Path(source) / "config.json").is_file():
                why = "has no config.json: it is no model's folder" if Path(source).is_dir() else "does not exist"
                yield f"{where}model_source: {source} {why}; correct it"
        arguments = ((application.get("args") or {}).get("llm_config") or {}).get("engine_kwargs") or {}
        template = arguments.get("chat_template")
        if is_missing_template(template) and template.startswith("/"):
            yield f"{where}chat_template: there is no file {template}; correct it"
        for source in adapter_sources([application]):
            if source.startswith(("/", ".")) and not (Path(source) / "adapter_config.json").is_file():
                yield f"{where}lora_modules: {source} has no adapter_config.json: it is no adapter's folder; correct it"


def misfits(
    document: Mapping[str, Any],
    config: Config,
    is_cuda_build: Callable[[], bool] = accelerator.is_cuda_build,
    gpus: Callable[[], Sequence[Gpu]] = accelerator.gpus,
) -> Iterator[str]:
    """Reasons why `document`, whose router has `config`, cannot run on this machine as it is.

    `is_cuda_build`: whether vLLM is the build for GPUs. `gpus`: this machine's, or it raises NoGpus.
    """
    if (file := config.access.keys_file) is not None:
        try:
            KeyFile(file)
        except ConfigError as error:
            yield f"access.keys_file: {error.problems[0]}"
    if "applications" not in document:  # a router without Ray
        return
    wanted = {
        demand.name: demand.min_replicas * sum(part.get("CPU", 0) for part in demand.bundles)
        for demand in demands(document)
    }
    if sum(wanted.values()) > LOGICAL_CPUS:
        largest = max(demands(document), key=lambda demand: wanted[demand.name])
        engine = wanted[largest.name] / largest.min_replicas - largest.num_cpus
        each = f" for each of {largest.min_replicas} replicas" if largest.min_replicas > 1 else ""
        also = f" and {engine:g} for its engine" if engine else ""
        yield (
            f"num_cpus: {largest.name} asks for {largest.num_cpus:g}{also}{each}; all applications together reserve "
            f"{sum(wanted.values()):g}, and a local run has {LOGICAL_CPUS}, which are no cores but Ray's bookkeeping; "
            "lower them"
        )
    yield from _absent(document["applications"])
    needing = {demand.name: demand for demand in demands(document) if _gpus(demand) or _type(demand)}
    if not needing:
        return
    try:
        yield from _gpu_misfits(needing, is_cuda_build(), gpus())
    except NoGpus as error:
        yield f"{', '.join(needing)}: {error}, and an engine needs a GPU; {error.fix}"


def _gpu_misfits(needing: Mapping[str, Demand], is_cuda_build: bool, gpus: Sequence[Gpu]) -> Iterator[str]:
    if not is_cuda_build:
        yield f"{', '.join(needing)}: the CPU build of vLLM is installed; run: {make('setup ACCELERATOR=gpu')}"
    large = {name: _gpus(demand) for name, demand in needing.items() if _gpus(demand) > len(gpus)}
    for name, number in large.items():
        fix = "lower tensor_parallel_size or pipeline_parallel_size"
        yield f"{name}: a replica needs {number:g} GPUs, and this machine has {len(gpus)}; {fix}"
    total = sum(demand.min_replicas * _gpus(demand) for demand in needing.values())
    if total > len(gpus) and not large:
        names = ", ".join(needing)
        yield (
            f"{names}: together they need {total:g} GPUs, and this machine has {len(gpus)}; let them share one "
            f"({_SHARING}), or remove one"
        )
    for name, demand in needing.items():
        if (wanted := _type(demand)) and wanted not in {gpu.type for gpu in gpus}:
            here = ", ".join(dict.fromkeys(gpu.type for gpu in gpus))
            yield f"{name}: accelerator_type is {wanted}, and this machine has {here}; leave it out, or correct it"


def left_out(document: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about what `switchyard serve` does not take from a valid configuration, and a cluster does."""
    for name, value in (document.get("http_options") or {}).items():
        if name not in ("host", "port") and (name, value) != ("keep_alive_timeout_s", KEEP_ALIVE_S):
            yield f"http_options.{name}: only a cluster takes it; a local run takes `host` and `port` of these"


def memory_misfits(document: Mapping[str, Any], folders: Mapping[str, Path], gpus: Sequence[Gpu]) -> Iterator[str]:
    """Models whose weights do not fit into what their engine may take of a GPU. `folders`: the prepared models by their
    source."""
    memory = min((gpu.total_mib for gpu in gpus), default=0) * 2**20
    for demand in demands(document):
        config = _engine(document, demand.application)
        kwargs = config.get("engine_kwargs") or {}
        folder = folders.get(str((config.get("model_loading_config") or {}).get("model_source")))
        if not memory or folder is None or not _gpus(demand) or kwargs.get("quantization"):  # they shrink when loaded
            continue
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / len(demand.bundles)
        share = kwargs.get("gpu_memory_utilization") or _UTILIZATION
        if weights > share * memory:
            yield (
                f"{demand.application}: its weights take {weights / 2**30:.1f} GiB of a GPU, and it may take "
                f"{share:g} of {memory / 2**30:.1f} GiB; use a smaller or quantized model, more GPUs "
                "(tensor_parallel_size), or a larger gpu_memory_utilization"
            )


def _gpus(demand: Demand) -> float:
    return sum(bundle.get("GPU", 0) for bundle in demand.bundles)


def _type(demand: Demand) -> str:
    """The type of GPU that it asks for; empty for any."""
    return next((name.removeprefix(ACCELERATOR) for name in demand.resources if name.startswith(ACCELERATOR)), "")
