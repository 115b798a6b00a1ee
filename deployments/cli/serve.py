"""`switchyard serve` and `switchyard init`: a configuration, or a model for which one is written."""

import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from app.config.base import NO_NAME, ConfigError, is_name
from app.config.meant import closest, gpu_remedy
from app.internal_api import MODELS_VARIABLE, PACKAGE_PREFIX
from deployments.cli.options import KEY_VARIABLE, CommandError, ExitCode, router_client
from deployments.invocation import DEFAULT_FILE, argument, command

_AS, _VARIANT, _GPU, _OUTPUT = "--as", "--variant", "--gpu", "--output"
_OWN = (_AS, _VARIANT, _GPU, _OUTPUT, "--port")

_NAME_FIRST = "name the model first"

ENGINE_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""The settings of commands whose other options are vLLM's."""

As = Annotated[str | None, typer.Option(_AS, metavar="NAME", help="The endpoint. Default: the model's name.")]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        _VARIANT, metavar="NAME=WHAT", help="Gets 10 %: another model, or engine arguments in quotes; repeatable."
    ),
]
Gpu = Annotated[
    str | None, typer.Option(_GPU, metavar="TYPE", help="Run on this type: L4, H100 … Default: what the machine has.")
]
Output = Annotated[
    Path | None, typer.Option(_OUTPUT, "-o", metavar="FILE", help="The file to write. Default: the model's name.")
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")]
OwnPort = Annotated[
    int | None,
    typer.Option(
        "--port", min=1, max=65535, help="The port to listen on. Default: `http_options.port` of FILE, or 8000."
    ),
]


def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A configuration, or a model.")] = str(
        DEFAULT_FILE
    ),
    port: OwnPort = None,
    endpoint: As = None,
    variant: Variants = None,
    gpu: Gpu = None,
    output: Output = None,
) -> None:
    """Start everything on this machine.

    It stays in the foreground; Ctrl-C stops it.

    MODEL is a folder, a model hub's id, or `package:` and a name. Then a configuration is written for it, which you may
    edit and serve later. Other options are vLLM's, as for `vllm serve`.

    \b
    Examples:
      switchyard serve
      switchyard serve my_config.yaml --port 9000
      switchyard serve Qwen/Qwen3-8B --as chat
      switchyard serve Qwen/Qwen3-8B --as chat --variant fp8='--quantization fp8' --gpu L4 --max-model-len 32k
    """
    from deployments.local import launcher, processes

    if target.startswith("-"):
        raise CommandError(f"{target} is for a model: {_NAME_FIRST}", ExitCode.USAGE)
    if _is_file(target):
        given = {_AS: endpoint, _VARIANT: variant, _GPU: gpu, _OUTPUT: output}
        options = [name for name, value in given.items() if value is not None] + list(context.args)
        if options:
            where = _NAME_FIRST if target == str(DEFAULT_FILE) else f"write it into {target} instead"
            raise CommandError(f"{options[0]} is for a model, and {target} is a file: {where}", ExitCode.USAGE)
        config = Path(target)
        if config.exists():
            typer.echo(f"Checking {config}", err=True)  # what follows takes seconds to import
    else:
        processes.require_none(processes.run_directory())  # before a file is written that nothing serves
        config = _written(
            target, endpoint, variants=variant or (), gpu=gpu, output=output, tokens=context.args, name="serve"
        )
    launcher.serve(config, port, partial(_earlier_runs, config, time.time()))


def _earlier_runs(config: Path, before: float) -> Sequence[str]:
    """A line for each experiment of the file that goes on with a run from before the Unix time `before`."""
    from app.config.loading import load
    from deployments.cli.traffic import earlier_runs, starting

    key = os.environ.get(KEY_VARIABLE)
    return earlier_runs(router_client(None, key), starting(load(config), key), before)


def init(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub's id, or `package:` and a name.")],
    endpoint: As = None,
    variant: Variants = None,
    gpu: Gpu = None,
    output: Output = None,
) -> None:
    """Write a configuration for a model, and start nothing.

    The options are those of `serve`. It asks no model hub: of a model that only the hub has, `--runner pooling` says
    that it embeds.

    \b
    Examples:
      switchyard init Qwen/Qwen3-8B --as chat --gpu L4
      switchyard init ./my-model --as chat --variant eager=--enforce-eager
    """
    if target.startswith("-"):
        raise CommandError(f"{target} is for a model: {_NAME_FIRST}", ExitCode.USAGE)
    config = _written(
        target, endpoint, variants=variant or (), gpu=gpu, output=output, tokens=context.args, name="init"
    )
    typer.echo(f"Start it with: {command(f'serve {argument(config)}')}")


def _is_file(target: str) -> bool:
    return Path(target).suffix in (".yaml", ".yml", ".json") or Path(target).is_file()


def _written(
    target: str,
    endpoint: str | None,
    *,
    variants: Sequence[str],
    gpu: str | None,
    output: Path | None,
    tokens: Sequence[str],
    name: str,
) -> Path:
    """The file with the configuration of a model; a file with the same content stays. Raises CommandError."""
    from deployments.cli.engine_options import engine_arguments
    from deployments.local.own_model import OwnModel, Variant, deployment_name, endpoint_name, name_of, tasks_of

    differences = [_difference(text) for text in variants]  # first: `tokens` has what was left out of quotes
    arguments = _with_file(engine_arguments(tokens, _OWN))
    source, config, embeds = _model(target, ask_hub=name == "serve")
    model_id = name_of(source)
    endpoint = endpoint or endpoint_name(model_id)
    others = [Variant(name, other or source, {**arguments, **own}) for name, other, own in differences]
    _require_names([other.name for other in others])
    first = deployment_name(model_id, [endpoint, *(other.name for other in others)])
    own = OwnModel(
        endpoint=endpoint,
        model_id=model_id,
        variants=[Variant(first, source, arguments), *others],
        placement=_placement(gpu),
        tasks=tasks_of(config, arguments.get("runner"), embeds=embeds),
    )
    file = output or Path(f"{first}.yaml")
    given = [("--as", endpoint), *(("--variant", text) for text in variants), *([("--gpu", gpu)] if gpu else [])]
    called = shlex.join([name, target, *(part for pair in given for part in pair), *tokens])
    text = own.as_yaml(
        [
            f"Written by: {command(called)}",
            "It is yours to edit. It has Ray Serve's schema; docs/reference/configuration.md explains every key.",
            f"  {command(f'check {argument(file)}')}    finds mistakes",
            f"  {command(f'serve {argument(file)}')}    starts it",
            f"  {command(f'deploy {argument(file)}')}   applies a change of traffic while it runs",
        ]
    )
    _require_valid(text)
    split = ", ".join(f"{share} % {deployment}" for deployment, share in own.traffic.items())
    if file.exists():
        if not _is_same(file, text):
            serve_it = command(f"serve {argument(file)}")
            fix = f"Serve it as it is: {serve_it}; or write another one with {_OUTPUT} FILE"
            raise CommandError(f"{file} exists, and differs from what these arguments give. {fix}")
        typer.echo(f"{file} has this already; {endpoint} is {split}", err=True)
    else:
        try:
            file.write_text(text)
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}. Name another with {_OUTPUT}") from None
        typer.echo(f"Wrote {file}, which is yours to edit; {endpoint} is {split}", err=True)
        if name == "init" and own.placement.kind == "cpu":
            typer.echo(f"It is for a CPU, as here; {_GPU} and a type, such as L4, writes one for GPUs", err=True)
    return file


def _model(target: str, *, ask_hub: bool) -> tuple[str, Mapping[str, Any], bool]:
    """The `model_source` of a model, its `config.json` (empty if it is unknown), and whether Sentence Transformers made
    it. Raises CommandError."""
    from deployments.local.processes import models_directory
    from deployments.weights import hub
    from deployments.weights.cache import prepare
    from deployments.weights.errors import WeightsError

    path = Path(target).expanduser()
    if path.is_file():
        serve_it = command(f"serve {argument(path)}")
        raise CommandError(f"{target} is a file, and a model is a folder or a hub's id. A configuration: {serve_it}")
    try:
        if target.startswith(PACKAGE_PREFIX):
            name = target.removeprefix(PACKAGE_PREFIX)
            return target, *_described(prepare(name, Path(os.environ.get(MODELS_VARIABLE) or models_directory())))
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise CommandError(f"{target} has no config.json: it is not a model's folder")
            return str(path.absolute()), *_described(path)
        _require_source(target)
        if "://" in target:
            return target, {}, False
        if ask_hub:
            typer.echo(f"Looking for {target} in the cache and at the hub", err=True)
        folder = hub.config_folder(target) if ask_hub else hub.cached_config_folder(target)
        return target, *(_described(folder) if folder is not None else ({}, False))
    except WeightsError as error:
        raise CommandError(str(error)) from None


def _require_source(target: str) -> None:
    """Raises CommandError if a word is no source of a model: a folder that does not exist, or no hub's id."""
    from deployments.local.fit import source_problem

    if target.startswith((".", "/", "~")) or (target.endswith("/") and target.count("/") == 1):
        raise CommandError(f"The folder {target} does not exist")
    if problem := source_problem(target):
        raise CommandError(problem, ExitCode.USAGE)
    if "/" not in target and (meant := _meant(target)):
        raise CommandError(f"'{target}' is no folder or hub's id. Did you mean {meant}?")


def _meant(word: str) -> str:
    """The file or packaged model that a word is meant to be; empty if nothing is like it."""
    from deployments.weights.recipes import RECIPES

    files = {file.stem: file.name for file in Path().glob("*.yaml")}
    known = {**files, **{name: f"{PACKAGE_PREFIX}{name}" for name in RECIPES}}
    return known.get(word) or known.get(closest(word, known) or "", "")


def _described(folder: Path) -> tuple[Mapping[str, Any], bool]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        config = {}
    return config if isinstance(config, dict) else {}, (folder / "modules.json").exists()


def _difference(text: str) -> tuple[str, str | None, Mapping[str, Any]]:
    """The name of a variant `NAME=WHAT`, its model if that differs from the first's, and the engine arguments that
    differ. Raises CommandError."""
    from deployments.cli.engine_options import engine_arguments

    name, equals, what = text.partition("=")
    try:
        words = shlex.split(what)
    except ValueError as error:
        raise CommandError(f"{_VARIANT} {text}: {error}", ExitCode.USAGE) from None
    if not (name and equals and words):
        shape = f"expected {_VARIANT} NAME=MODEL, or {_VARIANT} NAME='--engine-argument value'"
        raise CommandError(f"{_VARIANT} {text}: {shape}", ExitCode.USAGE)
    source = None if words[0].startswith("-") else _model(words.pop(0), ask_hub=False)[0]
    try:
        return name, source, _with_file(engine_arguments(words))
    except CommandError as error:
        if error.message != f"{what} needs a value":
            raise
        quoted = f"put both in quotes: {_VARIANT} {name}='{what} VALUE'"  # else the shell parts them
        raise CommandError(f"{error.message}; {quoted}", ExitCode.USAGE) from None


def _with_file(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine arguments with the whole path of the chat template's file. Raises CommandError if there is none."""
    from deployments.local.fit import is_missing_template

    template = arguments.get("chat_template")
    if is_missing_template(template):
        raise CommandError(f"--chat-template: there is no file {template}", ExitCode.USAGE)
    if isinstance(template, str) and "\n" not in template and Path(template).is_file():
        return {**arguments, "chat_template": str(Path(template).absolute())}
    return dict(arguments)


def _require_names(names: Sequence[str]) -> None:
    from deployments.local.own_model import MOST_VARIANTS, TAKEN

    for name in names:
        if not is_name(name):
            raise CommandError(f"{_VARIANT} {name}: '{name}' {NO_NAME}", ExitCode.USAGE)
        if name in TAKEN or names.count(name) > 1:
            why = "two variants have it" if name not in TAKEN else "it is another application's"
            raise CommandError(f"{_VARIANT} {name}: the name is taken, {why}; choose another", ExitCode.USAGE)
    if len(names) > MOST_VARIANTS:
        raise CommandError(f"{len(names)} variants are too many for 10 % each, {MOST_VARIANTS} at most", ExitCode.USAGE)


def _placement(gpu: str | None) -> Any:
    from app.config.reference import packages
    from deployments.local import accelerator
    from deployments.local.own_model import Placement

    if gpu is None and not accelerator.is_cuda_build():
        return Placement()
    try:
        count = len(accelerator.gpus())
    except accelerator.NoGpus:
        count = 1
    if gpu is None:
        return Placement("gpu", gpus=count)
    (choices, _) = packages()["$defs"]["LLMConfig"]["properties"]["accelerator_type"]["anyOf"]
    known = {name.lower(): name for name in choices["enum"]}
    if gpu.lower() not in known:
        remedy = gpu_remedy(gpu, known.values())
        raise CommandError(f"{_GPU} {gpu} is not a type that Ray knows{remedy}", ExitCode.USAGE)
    return Placement("gpu", known[gpu.lower()], count)


_ARGUMENT = re.compile(r"^applications[.\[].*?\.engine_kwargs\.(\w+)")
_ENDPOINT = re.compile(r"^(?:applications\S*\.user_config\.)?endpoints\.")


def _require_valid(text: str) -> None:
    """Raises CommandError for values that Ray Serve, vLLM or the router would refuse, by the options' names."""
    document = yaml.safe_load(text)
    lines = (_ENDPOINT.sub(f"{_AS} ", line) for line in _problems(document))
    if problems := [_ARGUMENT.sub(lambda match: f"--{match[1].replace('_', '-')}", line) for line in lines]:
        raise CommandError("\n".join(dict.fromkeys(problems)), ExitCode.USAGE)


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    from app.config.file_check import package_problems
    from app.config.loading import load_document
    from deployments.local.fit import engine_problems

    yield from package_problems(document)
    try:
        load_document(document)
    except ConfigError as error:
        yield from error.problems
        return
    yield from engine_problems(document)


def _is_same(file: Path, text: str) -> bool:
    """Whether the file configures the same; comments may differ."""
    try:
        return bool(yaml.safe_load(file.read_text()) == yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
