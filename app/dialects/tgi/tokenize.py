"""`/tokenize`."""

from array import array
from dataclasses import dataclass

import msgspec

from app.dialects.base import Call, Flow, ParseContext, Reply, Request, ServingContext, Translation
from app.dialects.common.tokenize import in_steps
from app.dialects.json_body import dump_members
from app.dialects.spelling import request_object
from app.dialects.tgi.deployment_checks import truncated
from app.dialects.tgi.fields import read
from app.dialects.tgi.rules import check_inputs
from app.engine.pieces import Piece

_STEP = 4096
"""Tokens that are written at once."""


class _Token(msgspec.Struct):
    id: int
    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Tokenize(Translation):
    """The tokens of `inputs` with the characters that each covers, the last `truncate` of them."""

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
        model = serving.known_model
        ids, starts, stops = array("I"), array("I"), array("I")

        def collect(piece: Piece) -> None:
            ids.extend(piece.ids)
            if piece.ids:
                begins, ends = zip(*piece.offsets, strict=True)
                starts.extend(begins)
                stops.extend(ends)

        yield from in_steps(model, self.inputs, "inputs", collect)
        kept = range(len(ids))[len(ids) - len(truncated(ids, self.truncate, model.max_len)) :]
        written = [b"["]
        for step in range(0, len(kept), _STEP):
            if step:
                yield ()
            part = slice(kept[step], kept[step : step + _STEP][-1] + 1)
            places = zip(ids[part], starts[part], stops[part], strict=True)
            tokens = [_Token(id, self.inputs[start:stop], start, stop) for id, start, stop in places]
            written += (b"," if step else b"", dump_members(tokens)[1:-1])
        written.append(b"]")
        return Reply(b"".join(written))
