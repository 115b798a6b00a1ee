"""`/tokenize`."""

from dataclasses import dataclass
from typing import Any

from app.dialects.base import Call, Flow, ParseContext, Reply, Request, ServingContext, Translation
from app.dialects.json_body import dump
from app.dialects.spelling import request_object
from app.dialects.tgi.deployment_checks import truncated
from app.dialects.tgi.fields import read
from app.dialects.tgi.rules import check_inputs
from app.engine.model import Model


@dataclass(frozen=True, slots=True)
class Tokenize(Translation):
    """The tokens of `inputs`, the last `truncate` of them."""

    inputs: str
    truncate: int | None
    needs_model = True
    generates = False

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = read(request_object(request.body))
        check_inputs(fields.inputs)
        truncate = fields.parameters.truncate if fields.parameters else None
        return Call("completions", {"prompt": fields.inputs}, cls(fields.inputs, truncate))

    def engine_requests(self, serving: ServingContext) -> Flow:
        yield from ()  # a generator, not `no_lookups`: the exchange runs it in a thread if the text is long
        return Reply(dump(_tokens(self.inputs, self.truncate, serving.known_model)))


def _tokens(inputs: str, truncate: int | None, model: Model) -> list[dict[str, Any]]:
    """Each token with the characters of `inputs` that it covers. Raises Unprocessable."""
    (encoding,) = model.encodings([inputs])
    kept = len(truncated(encoding.ids, truncate, model.max_len))
    tokens = [
        {"id": id, "text": inputs[start:stop], "start": start, "stop": stop}
        for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
    return tokens[len(tokens) - kept :]
