"""No text of a request is in a log line or metric, whatever the outcome."""

from collections.abc import Iterator

import pytest

from tests.router.hostile.engine import compact
from tests.router.hostile.rig import HostileRig
from tests.router.hostile.strategies import VALID
from tests.support.processes.log_lines import log_lines

SECRET = "my-diagnosis"


@pytest.fixture
def logged() -> Iterator[list[str]]:
    with log_lines() as lines:
        yield lines


def test_no_prompt_is_in_any_log_line_or_metric(hostile: HostileRig, logged: list[str]) -> None:
    client = hostile.client
    for path, _, body in VALID:
        secret = compact(body).replace(b'"hi"', compact(SECRET)).replace(b'"a"', compact(SECRET))
        client.request("POST", path, secret)
        client.request("POST", path, secret[:-1])  # no JSON
        client.request("POST", path, secret.replace(b'"chat"', compact(SECRET)))  # a model that does not exist
        client.request("POST", path, secret[:-1] + b',"%b":1,"temperature":"%b"}' % ((SECRET.encode(),) * 2))
        hostile.engine.pieces = [b'data: {"choices": 1, "text": "%b"}\n\n' % SECRET.encode(), SECRET.encode()]
        client.request("POST", path, secret)
        client.request("POST", path, secret[:-1] + b',"stream":true}')
        hostile.engine.pieces = None
        client.request("POST", f"{path.partition('?')[0]}/{SECRET}", secret)
    metrics = client.request("GET", "/metrics").body.decode()
    assert any('"request_id"' in line for line in logged), "the access log is among them"
    assert not [line for line in logged if SECRET in line]
    assert SECRET not in metrics
