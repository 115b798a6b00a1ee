"""The items of a Responses input that vLLM can put into a prompt: messages, calls of functions, results, reasoning.

OpenAI's servers know more. Calls of other tools that the client runs become calls of functions, and their results
results. What vLLM does not know fails in it with a 500: here it is left out where it tells the model nothing, as tools
are (`tools.settle_tools`), or refused by name. Contract: OpenAI's API reference, `input`; vLLM 0.29,
`entrypoints/openai/responses/utils.py`.
"""

from collections.abc import Mapping
from typing import Any

from app.dialects.json_body import dump
from app.errors import BadRequest

_ROLES = frozenset({"assistant", "developer", "system", "user"})

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
    if kind == "message":
        return _message(item, path)
    if kind == "reasoning":
        return _reasoning(item)
    if kind == "function_call":
        _require(item, path, "call_id", "name", "arguments")
        return item
    if kind == "function_call_output":
        return _with_known_parts(item, "output", path)
    if not isinstance(kind, str):
        raise BadRequest(f"{path}.type: must be a string", param=f"{path}.type")
    if kind in _CALLS:
        return _function_call(item, path, *_CALLS[kind])
    if kind in _RESULTS:
        return _function_output(item, path)
    if kind in _LEFT_OUT and drop:
        return None
    instead = _INSTEAD.get(kind, "send messages, calls of functions and their outputs")
    raise BadRequest(f"{path}: items of type '{kind[:64]}' are not supported; {instead}", param=path)


def _message(item: dict[str, Any], path: str) -> dict[str, Any]:
    """A message; the model's has one text, as vLLM reads only the first one."""
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"{path}.role: must be one of {', '.join(sorted(_ROLES))}", param=f"{path}.role")
    if role != "assistant" or not isinstance(content, list):
        return _with_known_parts(item, "content", path)
    texts: list[str] = []
    for number, part in enumerate(content):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            where = f"{path}.content[{number}]"
            raise BadRequest(f"{where}: only texts are supported in a message of the model", param=where)
        texts.append(text)
    is_one_text = len(content) == 1 and "text" in content[0]
    return item if is_one_text else {**item, "content": "".join(texts)}


def _with_known_parts(item: dict[str, Any], field: str, path: str) -> dict[str, Any]:
    """The item, whose `field` is a text or a list of parts. Raises BadRequest for parts that vLLM would leave out."""
    content = item.get(field)
    if not isinstance(content, str | list):
        raise BadRequest(f"{path}.{field}: must be a text or a list", param=f"{path}.{field}")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        where = f"{path}.{field}[{number}]"
        if kind == "input_file" or (kind == "input_image" and not part.get("image_url")):
            message = f"{where}: this server stores no files; send the text, or an image's URL as `image_url`"
            raise BadRequest(message, param=where)
    return item


def _reasoning(item: dict[str, Any]) -> dict[str, Any] | None:
    """Reasoning; None if only OpenAI's servers can decrypt it."""
    if not item.get("content") and not item.get("summary"):
        return None
    return {name: value for name, value in item.items() if name != "encrypted_content"}


def _function_call(item: Mapping[str, Any], path: str, field: str, name: str | None) -> dict[str, Any]:
    _require(item, path, "call_id", *(() if name else ("name",)))
    if field not in item:
        raise BadRequest(f"{path}.{field}: Field required", param=f"{path}.{field}")
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
