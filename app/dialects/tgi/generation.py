"""One generation in TGI's form, and vLLM's completions request for it."""

from dataclasses import dataclass
from typing import Any, Self

from app.dialects.common.engine_request import draw_seed, temperature
from app.dialects.tgi.fields import GenerateRequest, Parameters
from app.dialects.tgi.grammar import structured_outputs
from app.dialects.tgi.profile import RequestStyle
from app.dialects.tgi.rules import check, samples
from app.internal_api import to_int64_seed
from app.routing.traffic import Random


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request with its defaults.

    `max_new_tokens` None is the rest of the context. `as_list`: the answer is a list of one object. `seed` is for the
    engine; the details report it if `reports_seed`.
    """

    inputs: str
    parameters: Parameters
    stream: bool
    samples: bool
    max_new_tokens: int | None
    return_full_text: bool
    as_list: bool
    seed: int
    reports_seed: bool
    top_k_below_vocabulary: bool

    @classmethod
    def of(cls, request: GenerateRequest, style: RequestStyle, random: Random) -> Self:
        """Raises Unprocessable."""
        profile = style.profile
        parameters = request.parameters or Parameters(do_sample=profile.samples_without_parameters)
        check(request.inputs, parameters, style)
        sampled, full_text = samples(parameters, style), parameters.return_full_text
        return cls(
            inputs=request.inputs,
            parameters=parameters,
            stream=style.stream,
            samples=sampled,
            max_new_tokens=(profile.max_new_tokens if parameters.max_new_tokens is None else parameters.max_new_tokens),
            return_full_text=style.at_root and profile.full_text_at_root if full_text is None else full_text,
            as_list=style.at_root and style.is_tgi,
            seed=draw_seed(random) if parameters.seed is None else parameters.seed,
            reports_seed=sampled or profile.reports_greedy_seed,
            top_k_below_vocabulary=profile.top_k_below_vocabulary,
        )

    @property
    def has_details(self) -> bool:
        """Either flag asks for all details."""
        return self.parameters.details or self.parameters.decoder_input_details

    def reported_seed(self, index: int = 0) -> int | None:
        """The seed of the candidate at `index`: the engine counts up from the first."""
        return self.seed + index if self.reports_seed else None

    def engine_body(self) -> dict[str, Any]:
        """vLLM's completions request; its prompt is text, and `max_tokens` is left out. Raises Unprocessable."""
        parameters = self.parameters
        body: dict[str, Any] = {
            "prompt": self.inputs,
            "n": parameters.best_of,
            "stream": self.stream,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if parameters.stop:
            body |= {"stop": parameters.stop, "include_stop_str_in_output": True}
        if self.stream or self.has_details or parameters.best_of > 1:
            body["logprobs"] = parameters.top_n_tokens
        if parameters.decoder_input_details:
            body["prompt_logprobs"] = 0
        if parameters.grammar is not None:
            body["structured_outputs"] = structured_outputs(parameters.grammar, "parameters.grammar")
        return {**body, **self._sampling()}

    def _sampling(self) -> dict[str, Any]:
        """vLLM's sampling fields; logits processors of the deployment add the missing ones (`vllm_xargs`)."""
        parameters = self.parameters
        extensions: dict[str, Any] = {"watermark": True} if parameters.watermark else {}
        fields = self._sent("repetition_penalty", "frequency_penalty")
        if not self.samples:
            fields["temperature"] = 0.0
        else:
            heat = temperature(1.0 if parameters.temperature is None else parameters.temperature)
            extensions |= heat.pop("vllm_xargs", {})
            fields |= {**heat, "seed": to_int64_seed(self.seed), **self._sent("top_k", "top_p")}
            if parameters.typical_p is not None and parameters.typical_p < 1:
                extensions["typical_p"] = parameters.typical_p
        return {**fields, "vllm_xargs": extensions} if extensions else fields

    def _sent(self, *names: str) -> dict[str, Any]:
        """The parameters that the request has."""
        return {name: value for name in names if (value := getattr(self.parameters, name)) is not None}
