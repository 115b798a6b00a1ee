"""One generation of TGI's: what its client asked for, and the same in vLLM's words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic_core import from_json

from app.dialects.base import ServingContext
from app.dialects.common.engine_request import draw_seed, missing_capability, temperature
from app.dialects.tgi.fields import Grammar, Parameters
from app.dialects.tgi.profile import RequestStyle
from app.dialects.tgi.rules import check, samples
from app.engine.model import Model
from app.errors import Unprocessable
from app.internal_api import Xarg, to_int64_seed
from app.routing.traffic import Random


def sampling(parameters: Parameters, manner: RequestStyle, seed: int) -> dict[str, Any]:
    """How vLLM is to choose tokens. Processors of the deployment do what its sampler lacks (`vllm_xargs`)."""
    extras: dict[str, Any] = {Xarg.WATERMARK: True} if parameters.watermark else {}
    chosen: dict[str, Any] = {
        name: value
        for name in ("repetition_penalty", "frequency_penalty")
        if (value := getattr(parameters, name)) is not None
    }
    if not samples(parameters, manner):
        chosen["temperature"] = 0.0
    else:
        heat = temperature(1.0 if parameters.temperature is None else parameters.temperature)
        extras |= heat.pop("vllm_xargs", {})
        chosen |= {**heat, "seed": to_int64_seed(seed)}
        chosen |= {name: value for name in ("top_k", "top_p") if (value := getattr(parameters, name)) is not None}
        if parameters.typical_p is not None and parameters.typical_p < 1:
            extras[Xarg.TYPICAL_P] = parameters.typical_p
    return {**chosen, "vllm_xargs": extras} if extras else chosen


def structured(grammar: Grammar, param: str = "parameters.grammar") -> dict[str, Any]:
    """vLLM's `structured_outputs`. What the engine cannot compile it refuses itself. Raises Unprocessable (`param`)."""
    value = grammar.value
    if grammar.type == "regex":
        if not isinstance(value, str) or not value:
            raise _wrong_grammar(param, "the value of a regex must be a string")
        return {"regex": value}
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError as error:
            raise _wrong_grammar(param, str(error)) from None
    if grammar.type == "json_schema" and isinstance(value, dict) and "schema" in value:
        value = value["schema"]
    if not isinstance(value, dict) or "properties" not in value:
        raise _wrong_grammar(param, "Grammar must have a 'properties' field")
    # To TGI's grammars whatever has properties is an object; JSON Schema says so only of `type`.
    return {"json": {"type": "object", **value}}


def _wrong_grammar(param: str, why: str) -> Unprocessable:
    return Unprocessable(f"grammar is not valid: {why}", param=param)


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation as its client asked for it: what is made of the answer later.

    `max_new_tokens` None is the rest of the context; `must_fit`: the client set it itself. `seed` is what is reported.
    """

    inputs: str
    parameters: Parameters
    max_new_tokens: int | None
    must_fit: bool
    return_full_text: bool
    as_list: bool
    seed: int | None

    @classmethod
    def of(
        cls, inputs: str, given: Parameters | None, manner: RequestStyle, random: Random
    ) -> tuple[Self, dict[str, Any]]:
        """The generation, and vLLM's request for it, whose prompt is text as yet. Raises Unprocessable."""
        profile = manner.profile
        parameters = given or Parameters(do_sample=profile.samples_without_parameters)
        check(inputs, parameters, manner)
        seed = draw_seed(random) if parameters.seed is None else parameters.seed
        tells_seed = samples(parameters, manner) or profile.tells_greedy_seeds
        full_text = parameters.return_full_text
        generation = cls(
            inputs,
            parameters,
            profile.max_new_tokens if parameters.max_new_tokens is None else parameters.max_new_tokens,
            parameters.max_new_tokens is not None,
            manner.at_root and profile.shows_the_prompt if full_text is None else full_text,
            manner.at_root and manner.is_tgis,
            seed if tells_seed else None,
        )
        return generation, {**generation._question(manner.stream), **sampling(parameters, manner, seed)}

    @property
    def tells_tokens(self) -> bool:
        """Either flag asks for all details."""
        return self.parameters.details or self.parameters.decoder_input_details

    def _question(self, stream: bool) -> dict[str, Any]:
        parameters = self.parameters
        question: dict[str, Any] = {
            "prompt": self.inputs,
            "n": parameters.best_of,
            "stream": stream,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if parameters.stop:
            question |= {"stop": parameters.stop, "include_stop_str_in_output": True}
        if stream or self.tells_tokens or parameters.best_of > 1:
            question["logprobs"] = parameters.top_n_tokens
        if parameters.decoder_input_details:
            question["prompt_logprobs"] = 0
        if parameters.grammar is not None:
            question["structured_outputs"] = structured(parameters.grammar)
        return question

    def fit(self, question: dict[str, Any], served: ServingContext) -> dict[str, Any]:
        """The question with ids for a prompt, counted as the engine counts them. Raises Unprocessable."""
        refuse_extras(question, served, "parameters.")
        model = served.known_model
        ids = truncated(model.encode(self.inputs), self.parameters.truncate, model)
        rest = model.max_len - len(ids)
        wanted = rest if self.max_new_tokens is None else self.max_new_tokens
        if self.must_fit and wanted > rest:
            raise Unprocessable(
                f"`inputs` tokens + `max_new_tokens` must be <= {model.max_len}. "
                f"Given: {len(ids)} `inputs` tokens and {wanted} `max_new_tokens`",
                param="parameters.max_new_tokens",
                value=wanted,
            )
        if rest < 1:
            raise Unprocessable(
                f"`inputs` must have less than {model.max_len - 1} tokens. Given: {len(ids)}", param="inputs"
            )
        return {**question, "prompt": ids, "max_tokens": min(wanted, rest)}


def refuse_extras(question: Mapping[str, Any], served: ServingContext, prefix: str = "") -> None:
    """Raises Unprocessable where the question asks the deployment for what it does not have.

    `prefix` is where the fields are in the request.
    """
    if (lack := missing_capability(question, served)) is not None:
        name, why = lack
        raise Unprocessable(f"`{name}`: {why}", param=prefix + name, value=question["vllm_xargs"][name])


def truncated(ids: list[int], truncate: int | None, model: Model) -> list[int]:
    """The last `truncate` ids. Raises Unprocessable where that is no length of a prompt."""
    if truncate is None:
        return ids
    longest = model.max_len - 1
    if not 0 < truncate <= longest:
        raise Unprocessable(
            f"`truncate` must be strictly positive and less than {longest}. Given: {truncate}",
            param="parameters.truncate",
            value=truncate,
        )
    return ids[-truncate:]
