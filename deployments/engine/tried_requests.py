"""Tries the constraint of a request before vLLM reads it. Importing it imports vLLM."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.request import StructuredOutputRequest
from vllm.v1.structured_output.utils import choice_as_grammar, convert_lark_to_ebnf, grammar_is_likely_lark

from app.engine.errors import TOO_COSTLY
from deployments.engine.trial import Bounds, TooCostly, Trials, trial_s


def trials_for(config: Any) -> Trials | None:
    """Trials for the model of vLLM's `config`, whose process is starting; None where vLLM compiles no constraint, or
    knows better: of its backends they are for xgrammar, its default. llguidance has bounds of its own.
    """
    settings, model = config.structured_outputs_config, config.model_config
    if model.runner_type != "generate" or model.skip_tokenizer_init or settings.backend not in ("auto", "xgrammar"):
        return None
    try:
        bounds = Bounds(total_s=trial_s(model.get_vocab_size()))
        trials = Trials(vocabulary(config), any_whitespace=not settings.disable_any_whitespace, bounds=bounds)
    except ValueError:  # a tokenizer that xgrammar does not know: vLLM says so when there is a constraint
        return None
    trials.start()
    return trials


def vocabulary(config: Any) -> str:
    """The model's as xgrammar's `TokenizerInfo`, as vLLM makes it."""
    model = config.model_config
    backend = XgrammarBackend(config, cached_tokenizer_from_config(model), model.get_vocab_size())
    made: str = backend.compile_grammar(
        StructuredOutputOptions.GRAMMAR, 'root ::= "a"'
    ).ctx.tokenizer_info.serialize_json()
    return made


def tried(add_request: Callable[..., Awaitable[Any]], trials: Trials) -> Callable[..., Awaitable[Any]]:
    """vLLM's `AsyncLLM.add_request` after a trial, which also raises VLLMValidationError. Routers name the field."""

    async def after_trial(request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if (constraint := constraint_of(params)) is not None:
            try:
                await trials.check(*constraint)
            except TooCostly as error:
                raise VLLMValidationError(f"{TOO_COSTLY}: {error}") from None
        return await add_request(request_id, prompt, params, *args, **kwargs)

    return after_trial


def constraint_of(params: Any) -> tuple[str, str] | None:
    """The kind and text of what xgrammar compiles for a request with these parameters; None if it compiles nothing."""
    request = StructuredOutputRequest.from_sampling_params(params if isinstance(params, SamplingParams) else None)
    if request is None:
        return None
    kind, text = request.structured_output_key
    match kind:
        case StructuredOutputOptions.JSON_OBJECT:
            return "json", '{"type": "object"}'
        case StructuredOutputOptions.CHOICE:
            return "grammar", choice_as_grammar(json.loads(text))
        case StructuredOutputOptions.GRAMMAR if grammar_is_likely_lark(text):
            try:
                return "grammar", convert_lark_to_ebnf(text)
            except ValueError:  # vLLM refuses it
                return None
    return kind.name.lower(), text
