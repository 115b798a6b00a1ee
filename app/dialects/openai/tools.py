"""What vLLM can take of a request's tools, and of the items that are about them.

- The tools that a model can be offered: those that the client runs.
- The items of a Responses input that vLLM can put into a prompt: messages, calls of functions, results, reasoning.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from app.config.meant import nearest
from app.dialects.bodies import dump
from app.dialects.common.requests import required, settle_functions, with_parameters
from app.errors import BadRequest

# OpenAI also has tools that its own servers run (`web_search`, `mcp`, `code_interpreter` …). vLLM would accept them,
# tell the model nothing, and repeat them in the answer. Here a request gets an error, if it relies on one, or the
# answer's `tools` list what was in force. Contract: OpenAI's API reference, `tools` and `tool_choice`.

_RUN_BY_CLIENTS = frozenset({"function", "namespace"})

_OTHERS = frozenset(
    "apply_patch code_interpreter computer computer_use computer_use_preview custom file_search image_generation "
    "local_shell mcp programmatic_tool_calling shell tool_search web_search web_search_2025_08_26 web_search_preview "
    "web_search_preview_2025_03_11".split()
)
"""OpenAI's other types of tools. Any type but these and those above is a slip, which is never left out."""


def settle_tools(body: dict[str, Any], *, drop: bool) -> None:
    """Leaves in a Responses body the tools that this server has, and a `tool_choice` among them.

    `drop`: tools that it does not have are left out if the request has functions too, and its `tool_choice` does not
    demand one of them. Raises BadRequest otherwise.
    """
    tools, choice = body.get("tools", []), body.get("tool_choice")
    if not isinstance(tools, list):
        raise BadRequest("tools: must be a list", param="tools")
    if tools:
        _check_types(tools, "tools", _RUN_BY_CLIENTS | _OTHERS)
        own = [tool for tool in tools if _type(tool) in _RUN_BY_CLIENTS]
        if len(own) < len(tools) and not (drop and own):
            number = next(number for number, tool in enumerate(tools) if _type(tool) not in _RUN_BY_CLIENTS)
            raise _unsupported(f"tools[{number}]", _type(tools[number]))
        body["tools"] = [
            _with_parameters(tool, f"tools[{number}]")
            for number, tool in enumerate(tools)
            if _type(tool) in _RUN_BY_CLIENTS
        ]
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind == "allowed_tools":
            _allow(body, choice, drop=drop)
        elif kind is None:
            raise required("tool_choice.type")
        elif kind != "function":
            raise _unsupported("tool_choice", str(kind))
        else:
            _check_choice(body, choice.get("name"), "tool_choice.name")


def settle_chat_tools(body: dict[str, Any]) -> None:
    """The same for a chat body, where an empty list is no tools. Raises BadRequest."""
    _check_types(body.get("tools") or (), "tools", {"function"} | _OTHERS)
    for number, tool in enumerate(body.get("tools") or ()):
        if _type(tool) != "function":
            raise _unsupported(f"tools[{number}]", _type(tool))
        path = f"tools[{number}].function"
        if not isinstance(function := tool.get("function"), Mapping):
            raise BadRequest(f"{path}: must be an object", param=path)
        _require(function, path, "name")
    settle_functions(body)  # without tools the choice is "auto" or "none"
    choice = body.get("tool_choice")
    if not isinstance(choice, Mapping):
        return
    if (kind := choice.get("type")) == "allowed_tools":
        _allow(body, choice, drop=False)
    elif kind not in (None, "function"):
        raise _unsupported("tool_choice", str(kind))
    else:
        chosen = choice.get("function")
        _check_choice(body, chosen.get("name") if isinstance(chosen, Mapping) else None, "tool_choice.function.name")


def _check_choice(body: Mapping[str, Any], name: Any, path: str) -> None:
    """Raises BadRequest for a `tool_choice` of a function that `tools` has not."""
    if not isinstance(name, str):
        raise required(path)
    offered = {inner for tool in body.get("tools") or () for inner in _names(tool)}
    if name not in offered:
        raise BadRequest(f"tool_choice: no tool is named '{name[:64]}'{nearest(name, offered)}", param="tool_choice")


def _names(tool: Any) -> Iterator[str]:
    """The names of a tool's functions, by which `tool_choice` may call them."""
    inner = tool.get("tools") if _type(tool) == "namespace" else None
    if isinstance(inner, list):
        for function in inner:
            if (name := _name(function)) is not None:
                yield from (name, f"{_name(tool)}__{name}")
    elif (name := _name(tool)) is not None:
        yield name


_LONGEST_NAMESPACE = 256
"""Characters; OpenAI's names have 64."""


def _with_parameters(tool: dict[str, Any], path: str) -> dict[str, Any]:
    """A function of Responses, or a namespace, whose functions' arguments are objects. Raises BadRequest for a name of
    a namespace that is too long to be repeated with each of its functions."""
    inner = tool.get("tools")
    if _type(tool) != "namespace":
        return with_parameters(tool, path)
    for name in (tool.get("name", ""), _name(tool) or ""):
        if not isinstance(name, str) or len(name) > _LONGEST_NAMESPACE:
            message = f"tools: the name of a namespace is a string of at most {_LONGEST_NAMESPACE} characters"
            raise BadRequest(message, param="tools")
    if not isinstance(inner, list):
        return tool
    functions = [
        _with_parameters(one, f"{path}.tools[{number}]") if isinstance(one, dict) else one
        for number, one in enumerate(inner)
    ]
    return {**tool, "tools": functions}


def _allow(body: dict[str, Any], choice: Mapping[str, Any], *, drop: bool) -> None:
    """Leaves the allowed tools, with the mode as `tool_choice`: chats have both in an object, Responses have not, and
    clients confuse the two. `drop`: allowed tools that this server does not have are left out, unless none is left.
    """
    path, nested = "tool_choice", choice.get("allowed_tools")
    if isinstance(nested, Mapping):
        path, choice = "tool_choice.allowed_tools", nested
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequest(f"{path}.mode: must be 'auto' or 'required'", param=f"{path}.mode")
    path = f"{path}.tools"
    if not isinstance(allowed, list) or not allowed:
        raise BadRequest(f"{path}: must be a list of tools", param=path)
    _check_types(allowed, path, _RUN_BY_CLIENTS | _OTHERS, default="function")
    own = [tool for tool in allowed if _type(tool) in _RUN_BY_CLIENTS]
    if len(own) < len(allowed) and not (drop and own):
        number = next(number for number, tool in enumerate(allowed) if _type(tool) not in _RUN_BY_CLIENTS)
        raise _unsupported(f"{path}[{number}]", _type(allowed[number]))
    offered: Sequence[Any] = body.get("tools") or []
    named = {_name(tool): tool for tool in offered}
    for number, tool in enumerate(allowed):
        if _type(tool) in _RUN_BY_CLIENTS and _name(tool) not in named:
            raise BadRequest(f"{path}[{number}]: `tools` has no such tool", param=f"{path}[{number}]")
    names = {_name(tool) for tool in own}
    body["tools"] = [tool for tool in offered if _name(tool) in names]
    body["tool_choice"] = mode


def _check_types(tools: Sequence[Any], path: str, known: AbstractSet[str], *, default: str | None = None) -> None:
    """Raises BadRequest, with the type that was meant, for a tool of a type that nobody has. `default`: the type of
    those without one, which else are refused."""
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise BadRequest(f"{path}[{number}]: must be an object", param=f"{path}[{number}]")
        where, kind = f"{path}[{number}].type", tool.get("type", default)
        if kind is None:
            raise required(where)
        if not isinstance(kind, str) or kind not in known:
            name = str(kind)[:64]
            raise BadRequest(f"{where}: there are no tools of type '{name}'{nearest(name, known)}", param=where)


def _type(tool: Any) -> str:
    return str(tool.get("type", "function")) if isinstance(tool, Mapping) else "function"  # vLLM's to reject


def _name(tool: Any) -> str | None:
    """A tool's name, in the form of chats or of responses."""
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    return name if isinstance(name, str) else None


def _unsupported(path: str, kind: str) -> BadRequest:
    return BadRequest(
        f"{path}: '{kind[:64]}' is not supported; this server has only functions, which the client runs",
        param=path,
        code="unsupported_tool",
    )


# OpenAI's servers know more. Calls of other tools that the client runs become calls of functions, and their results
# results. What vLLM does not know fails in it with a 500: here it is left out where it tells the model nothing, as
# tools are (`tools.settle_tools`), or refused by name. Contract: OpenAI's API reference, `input`; vLLM 0.29,
# `entrypoints/openai/responses/utils.py`.

_ROLES = frozenset({"assistant", "developer", "system", "user"})
_STATUSES = ("in_progress", "completed", "incomplete")
_DETAILS = ("auto", "low", "high", "original")
_INPUT_PARTS = ("input_text", "input_image")
_PARTS_OF_MODELS = ("output_text", "refusal")
_MODELS_PARTS = (*_PARTS_OF_MODELS, "input_text", "text")
"""Types of the parts in a message of the model: those of OpenAI, and those that clients confuse with them."""

_CALLS: Mapping[str, tuple[str, str | None]] = {
    "apply_patch_call": ("operation", "apply_patch"),
    "custom_tool_call": ("input", None),
    "local_shell_call": ("action", "local_shell"),
    "shell_call": ("action", "shell"),
}
"""Calls of tools that the client runs: the field with what the tool gets, and its name, unless the item has that."""

_RESULTS = frozenset(f"{call}_output" for call in _CALLS)

_LEFT_OUT = frozenset({"mcp_list_tools", "web_search_call"})
"""What servers' tools were asked; what came of it is in the message that follows."""

_INSTEAD: Mapping[str, str] = {
    "compaction": "only OpenAI's servers can decrypt it; send the conversation's items",
    "item_reference": "items are not stored; send the item itself. Clients do so with `store: false`; for Vercel's AI "
    "SDK that is `providerOptions: {openai: {store: false}}`",
}


def settle_items(body: dict[str, Any], *, drop: bool) -> None:
    """Leaves in a Responses body whose `input` is a list the items that vLLM has.

    `drop`: items of servers' tools that tell the model nothing are left out. Raises BadRequest.
    """
    settled = (_settled(item, f"input[{number}]", drop=drop) for number, item in enumerate(body["input"]))
    body["input"] = [item for item in settled if item is not None]
    if not body["input"]:
        raise BadRequest("input: has no item that tells the model anything", param="input")


def _settled(item: Any, path: str, *, drop: bool) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        raise BadRequest(f"{path}: must be an object", param=path)
    kind = item.get("type", "message" if "role" in item or "id" not in item else "item_reference")
    if not isinstance(kind, str):
        raise BadRequest(f"{path}.type: must be a string", param=f"{path}.type")
    if kind in _PASSED:
        _check_record(item, path)
        return _PASSED[kind](item, path)
    if kind in _CALLS:
        return _function_call(item, path, *_CALLS[kind])
    if kind in _RESULTS:
        return _function_output(item, path)
    if kind in _LEFT_OUT and drop:
        return None
    instead = _INSTEAD.get(kind, "send messages, calls of functions and their outputs")
    raise BadRequest(f"{path}: items of type '{kind[:64]}' are not supported; {instead}", param=path)


def _check_record(item: Mapping[str, Any], path: str) -> None:
    """Raises BadRequest for what vLLM would refuse without naming it, in the fields that items of answers have."""
    if not isinstance(item.get("id", ""), str):
        raise BadRequest(f"{path}.id: must be a string", param=f"{path}.id")
    if item.get("status", "completed") not in _STATUSES:
        raise BadRequest(f"{path}.status: must be one of {', '.join(_STATUSES)}", param=f"{path}.status")


def _message(item: dict[str, Any], path: str) -> dict[str, Any]:
    """A message; the model's has one text, and no id: vLLM reads only the first text of a list, which it knows by
    fields that clients leave out, and takes a text with an id for such a list.
    """
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"{path}.role: must be one of {', '.join(sorted(_ROLES))}", param=f"{path}.role")
    if role != "assistant":
        # vLLM would continue a user's message that is incomplete, too.
        return _with_known_parts({name: value for name, value in item.items() if name != "status"}, "content", path)
    known = {name: value for name, value in item.items() if name not in ("id", "phase")}
    if not isinstance(content, list):
        return _with_known_parts(known, "content", path)
    return {**known, "content": "".join(_said(part, f"{path}.content[{n}]") for n, part in enumerate(content))}


def _said(part: Any, path: str) -> str:
    """The text of a part of the model's message."""
    _check_type(part, path, _MODELS_PARTS, _PARTS_OF_MODELS)
    field = "refusal" if part["type"] == "refusal" else "text"
    _require(part, path, field)
    text: str = part[field]
    return text


def _with_known_parts(item: dict[str, Any], field: str, path: str) -> dict[str, Any]:
    """The item, whose `field` is a text or a list of parts, with what vLLM requires. Raises BadRequest for parts that
    vLLM would leave out, or refuse without naming them."""
    content = item.get(field)
    if isinstance(content, str):
        return item
    if not isinstance(content, list):
        raise BadRequest(f"{path}.{field}: must be a text or a list", param=f"{path}.{field}")
    return {**item, field: [_part(part, f"{path}.{field}[{number}]") for number, part in enumerate(content)]}


def _part(part: Any, path: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_file" or (kind == "input_image" and not part.get("image_url")):
        message = f"{path}: this server stores no files; send the text, or an image's URL as `image_url`"
        raise BadRequest(message, param=path)
    _check_type(part, path, _INPUT_PARTS, _INPUT_PARTS)
    _require(part, path, "text" if kind == "input_text" else "image_url")
    if kind == "input_image" and part.get("detail", "auto") not in _DETAILS:
        raise BadRequest(f"{path}.detail: must be one of {', '.join(_DETAILS)}", param=f"{path}.detail")
    return {"detail": "auto", **part} if kind == "input_image" else {**part}


def _check_type(part: Any, path: str, known: Sequence[str], named: Sequence[str]) -> None:
    """Raises BadRequest for a part of no `known` type, with those that are `named`, or the one that was meant."""
    if not isinstance(part, dict):
        raise BadRequest(f"{path}: must be an object", param=path)
    if "type" not in part:
        raise required(f"{path}.type")
    kind = part["type"]
    if not isinstance(kind, str) or kind not in known:
        types = " or ".join(f"'{name}'" for name in named)
        raise BadRequest(f"{path}: parts of type '{str(kind)[:64]}' are not supported here; use {types}", param=path)


def _reasoning(item: dict[str, Any], path: str) -> dict[str, Any] | None:
    """Reasoning; None if only OpenAI's servers can decrypt it."""
    if not item.get("content") and not item.get("summary"):
        return None
    settled = {name: value for name, value in item.items() if name != "encrypted_content"}
    for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(field, [])
        if not isinstance(parts, list):
            raise BadRequest(f"{path}.{field}: must be a list", param=f"{path}.{field}")
        for number, part in enumerate(parts):
            where = f"{path}.{field}[{number}]"
            _check_type(part, where, [kind], [kind])
            _require(part, where, "text")
    return {"summary": [], **settled}


def _passed_call(item: dict[str, Any], path: str) -> dict[str, Any]:
    _require(item, path, "call_id", "name", "arguments")
    return item


def _passed_output(item: dict[str, Any], path: str) -> dict[str, Any]:
    if "call_id" in item:
        _require(item, path, "call_id")
    return _with_known_parts(item, "output", path)


_PASSED: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any] | None]] = {
    "function_call": _passed_call,
    "function_call_output": _passed_output,
    "message": _message,
    "reasoning": _reasoning,
}
"""The types of items that vLLM has, to what checks and completes one."""


def _function_call(item: Mapping[str, Any], path: str, field: str, name: str | None) -> dict[str, Any]:
    _require(item, path, "call_id", *(() if name else ("name",)))
    if field not in item:
        raise required(f"{path}.{field}")
    arguments = dump({field: item[field]}).decode()
    return {
        "type": "function_call",
        "call_id": item["call_id"],
        "name": name or item["name"],
        "arguments": arguments,
    }


def _function_output(item: dict[str, Any], path: str) -> dict[str, Any]:
    output = item.get("output", item.get("status", ""))
    if item["type"] == "custom_tool_call_output":
        _with_known_parts(item, "output", path)
    elif not isinstance(output, str):
        output = dump(output).decode()
    return {"type": "function_call_output", "call_id": item.get("call_id", item.get("id")), "output": output}


def _require(item: Mapping[str, Any], path: str, *fields: str) -> None:
    for field in fields:
        if not isinstance(item.get(field), str):
            raise BadRequest(f"{path}.{field}: must be a string", param=f"{path}.{field}")
