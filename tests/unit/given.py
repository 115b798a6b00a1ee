"""What a dialect is given beside the request, for tests that do not care."""

from random import Random

from app.config import parse
from app.dialects.base import Context, Request, Served

CONFIG = parse(
    {
        "endpoints": {"chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}}},
        "deployments": {"blue": {"url": "http://blue", "model": "m"}},
    }
)
CONTEXT = Context(CONFIG, Random(0))
SERVED = Served("blue", CONFIG.deployments["blue"])
REQUEST = Request("POST", "/x")
