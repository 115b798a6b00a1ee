"""The tools of a request that vLLM can offer to a model: those that the client runs.

OpenAI also has tools that its own servers run (`web_search`, `mcp`, `code_interpreter` …). vLLM would accept them, tell
the model nothing, and repeat them in the answer. Here a request gets an error, if it relies on one, or the answer's
`tools` list what was in force. Contract: OpenAI's API reference, `tools` and `tool_choice`.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from app.config.base import nearest
from app.errors import BadRequest

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
    tools, choice = body.get("tools"), body.get("tool_choice")
    if isinstance(tools, list):
        _check_types(tools, "tools", _RUN_BY_CLIENTS | _OTHERS)
        own = [tool for tool in tools if _type(tool) in _RUN_BY_CLIENTS]
        if len(own) < len(tools) and not (drop and own):
            number = next(number for number, tool in enumerate(tools) if _type(tool) not in _RUN_BY_CLIENTS)
            raise _unsupported(f"tools[{number}]", _type(tools[number]))
        body["tools"] = own
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind == "allowed_tools":
            _allow(body, choice, drop=drop)
        elif kind != "function":
            raise _unsupported("tool_choice", str(kind))


def settle_chat_tools(body: dict[str, Any]) -> None:
    """The same for a chat body, whose functions vLLM checks, and where an empty list is no tools. Raises BadRequest."""
    if body.get("tools") == []:
        del body["tools"]
        body.pop("tool_choice", None)  # "auto" or "none"
    _check_types(body.get("tools") or (), "tools", {"function"} | _OTHERS)
    for number, tool in enumerate(body.get("tools") or ()):
        if _type(tool) != "function":
            raise _unsupported(f"tools[{number}]", _type(tool))
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        _allow(body, choice, drop=False)


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
            raise BadRequest(f"{where}: Field required", param=where, code="missing_required_parameter")
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
