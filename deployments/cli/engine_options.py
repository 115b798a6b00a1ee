"""vLLM's engine arguments on the command line, as `vllm serve` takes them: `--max-model-len 32k --enforce-eager`.

Their names and types are those of the installed vLLM, which is not imported (`app/config/packages.json`).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from app.config.file_check import WITHOUT_EFFECT
from app.config.meant import FORMER_ARGUMENTS, nearest
from app.config.reference import packages
from deployments.cli.options import CommandError, ExitCode
from deployments.invocation import command

_SHORT: Mapping[str, str] = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
}
"""vLLM's short options that people write."""

_LONG: Mapping[str, str] = {f"-{short}": f"--{name.replace('_', '-')}" for short, name in _SHORT.items()}
"""The same with two hyphens, which vLLM does not take."""

_NOT_ENGINES: Mapping[str, Callable[[], str]] = {
    "model": lambda: f"name the model first: {command('serve MODEL')}",
    "served_model_name": lambda: "write --as NAME",
    "host": lambda: "write `http_options: {host: 0.0.0.0}` into the file, which needs `access`",
    "port": lambda: f"name it at the start: {command('serve FILE --port N')}",
    "api_key": lambda: f"create one with `{command('keys create')}`, and name its file in `access`",
    "hf_token": lambda: "export HF_TOKEN, so that no file has it",
    "lora_modules": lambda: "write them into the file, each with a deployment of its own",
    **dict.fromkeys(("root_path", "middleware"), lambda: "leave it out: the router serves the clients"),
}
"""Arguments of vLLM's server that are not an engine's, and what to do instead."""

_SIZES = (
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_num_queued_tokens",
    "kv_cache_memory_bytes",
    "safetensors_prefetch_block_size",
)
"""Numbers that `vllm serve` takes as `32k` (32,000) or `32K` (32,768), too; the configuration has whole numbers."""

_POWERS = "kmgt"


def engine_arguments(tokens: Sequence[str], own: Sequence[str] = ()) -> dict[str, Any]:
    """`engine_kwargs` for command-line tokens. Values stay texts where they do not have their argument's type, which
    `package_problems` words.

    `own`: the command's own options, among which a misspelt one may be meant. Raises CommandError for a token that is
    no argument of vLLM's engine.
    """
    known = packages()["$defs"]["EngineArguments"]["properties"]
    arguments: dict[str, Any] = {}
    for option, values in _options(tokens, own):
        name = _SHORT.get(option, option.lstrip("-").replace("-", "_"))
        negated = name.removeprefix("no_")
        if name not in known and negated in known and _is_switch(known[negated]):
            if values:
                raise _wrong(f"{option} takes no value, and '{values[0]}' follows it")
            arguments[negated] = False
        elif name in _NOT_ENGINES:
            raise _wrong(f"{option} is not an engine's argument: {_NOT_ENGINES[name]()}")
        elif name in WITHOUT_EFFECT:
            raise _wrong(f"{option} is not an engine's argument: {WITHOUT_EFFECT[name]}")
        elif name not in known and name in FORMER_ARGUMENTS:
            raise _wrong(f"this vLLM does not have {option}: {FORMER_ARGUMENTS[name]}")
        elif name not in known:
            options = [*own, *(f"--{name.replace('_', '-')}" for name in known)]
            meant = f"; did you mean {_LONG[option]}?" if option in _LONG else nearest(option, options)
            raise _wrong(f"{option} is neither an option nor an engine argument of vLLM{meant}")
        else:
            value = _value(option, values, known[name])
            arguments[name] = _size(value) if name in _SIZES else value
    return arguments


def _options(tokens: Sequence[str], own: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with the values that follow it."""
    option, values = "", list[str]()
    for token in tokens:
        if token.startswith("--") or (token.startswith("-") and token.partition("=")[0] in _SHORT):
            if option:
                yield option, values
            option, equals, value = token.partition("=")
            values = [value] if equals else []
        elif not option:
            meant = f"; did you mean --{token}?" if f"--{token}" in own else ""
            raise _wrong(f"Got an unexpected '{token}'{meant}")
        else:
            values.append(token)
    if option:
        yield option, values


def _value(option: str, values: Sequence[str], schema: Mapping[str, Any]) -> object:
    if _is_switch(schema):
        switches = {"true": True, "false": False}
        if len(values) > 1 or (values and values[0].lower() not in switches):
            raise _wrong(f"{option} takes no value, and '{values[0]}' follows it")
        return switches[values[0].lower()] if values else True
    if not values:
        raise _wrong(f"{option} needs a value")
    if "array" in schema.get("type", ()) and not values[0].startswith("["):
        return [_typed(value, {}) for value in values]
    if len(values) > 1:
        raise _wrong(f"{option} takes one value, and '{values[1]}' follows '{values[0]}'")
    return _typed(values[0], schema)


def _size(value: object) -> object:
    match = re.fullmatch(rf"(\d+(?:\.\d+)?)([{_POWERS}{_POWERS.upper()}])", value) if isinstance(value, str) else None
    if match is None:
        return -1 if value == "auto" else value
    base = 1000 if match[2] in _POWERS else 1024
    return int(float(match[1]) * base ** (1 + _POWERS.index(match[2].lower())))


def _is_switch(schema: Mapping[str, Any]) -> bool:
    return "boolean" in schema.get("type", ())


def _typed(text: str, schema: Mapping[str, Any]) -> object:
    """The text as what the argument takes: numbers and JSON where it takes more than texts."""
    if schema.get("type") == ["string", "null"] or ("enum" in schema and text in schema["enum"]):
        return text
    number = re.fullmatch(r"([+-]?)(\.\d+)", text)  # JSON wants a digit before the point
    try:
        value = json.loads(f"{number[1]}0{number[2]}" if number is not None else text)
    except ValueError:
        if text[:1] in ("{", "["):
            raise _wrong(f"'{text}' is not JSON; quote it for the shell: '{{\"key\": 1}}'") from None
        return text
    return text if value is None else value


def _wrong(message: str) -> CommandError:
    return CommandError(message, ExitCode.USAGE)
