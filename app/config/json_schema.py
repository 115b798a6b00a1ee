from typing import Any

from app.config.schema import Config


def schema() -> dict[str, Any]:
    """JSON Schema of `serve_config.yaml`: Serve's file, with the router's `user_config` spelt out."""
    router = Config.model_json_schema(ref_template="#/$defs/{model}")
    definitions = router.pop("$defs")
    deployment = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}},
        "if": {"properties": {"name": {"const": "Router"}}},
        "then": {"properties": {"user_config": {"$ref": "#/$defs/Config"}}, "required": ["user_config"]},
    }
    application = {
        "type": "object",
        "required": ["name", "import_path"],
        "properties": {
            "name": {"type": "string"},
            "import_path": {"type": "string"},
            "route_prefix": {"type": ["string", "null"]},
            "args": {"type": "object"},
            "deployments": {"type": "array", "items": deployment},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Switchyard serve_config.yaml",
        "type": "object",
        "required": ["applications"],
        "properties": {"applications": {"type": "array", "items": application}},
        "$defs": {**definitions, "Config": router},
    }
