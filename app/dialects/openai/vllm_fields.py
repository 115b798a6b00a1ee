"""The names of vLLM's own fields, which the router does not import.

`tests/engine/test_field_names.py` compares them.
"""

_ENGINE = frozenset(
    "add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo frequency_penalty ignore_eos "
    "include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs max_tokens "
    "min_p min_tokens model n presence_penalty priority prompt_logprobs repetition_detection repetition_penalty "
    "request_id response_format return_token_ids return_token_offsets return_tokens_as_token_ids "
    "routed_experts_prompt_start seed session_id skip_special_tokens spaces_between_special_tokens stop "
    "stop_token_ids stream stream_interval stream_options structured_outputs temperature thinking_token_budget top_k "
    "top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs".split()
)

ENGINE_CHAT = _ENGINE | frozenset(
    "add_generation_prompt chat_template chat_template_kwargs continue_final_message documents include_reasoning "
    "max_completion_tokens media_io_kwargs messages mm_processor_kwargs parallel_tool_calls reasoning_effort "
    "return_assistant_tokens_mask return_prompt_text tool_choice tools top_logprobs".split()
)

ENGINE_COMPLETIONS = _ENGINE | frozenset({"prompt", "prompt_embeds", "suffix"})

ENGINE_EMBEDDINGS = frozenset(
    "add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs continue_final_message "
    "dimensions embed_dtype encoding_format endianness input media_io_kwargs messages mm_processor_kwargs model "
    "padding priority request_id truncate_prompt_tokens truncation_side use_activation user".split()
)

_SCORING = frozenset(
    "cache_salt chat_template_kwargs instruction max_tokens_per_doc max_tokens_per_query mm_processor_kwargs model "
    "padding priority request_id truncate_prompt_tokens truncation_side use_activation user".split()
)

ENGINE_POOLING = ENGINE_EMBEDDINGS | {"task"}

ENGINE_CLASSIFY = ENGINE_EMBEDDINGS - {"dimensions", "embed_dtype", "encoding_format", "endianness"}

ENGINE_RERANK = _SCORING | frozenset({"documents", "query", "top_n"})

ENGINE_SCORE = _SCORING | frozenset("data_1 data_2 documents items queries text_1 text_2".split())

ENGINE_RESPONSES = frozenset(
    "background cache_salt chat_template_kwargs ec_transfer_params enable_response_messages frequency_penalty "
    "ignore_eos include include_reasoning include_stop_str_in_output input instructions kv_transfer_params logit_bias "
    "max_output_tokens max_tool_calls media_io_kwargs metadata mm_processor_kwargs model parallel_tool_calls "
    "presence_penalty previous_input_messages previous_response_id priority prompt prompt_cache_key reasoning "
    "repetition_penalty request_id seed service_tier session_id skip_special_tokens stop store stream "
    "structured_outputs temperature text tool_choice tools top_k top_logprobs top_p truncation user vllm_xargs".split()
)

ENGINE_TOKENIZE = frozenset(
    "add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message "
    "media_io_kwargs messages mm_processor_kwargs model prompt return_token_strs tools".split()
)
