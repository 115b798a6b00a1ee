"""What the dialects promise and vLLM's sampler lacks: custom logits processors, switched on by a request.

A request asks for them in `vllm_xargs` of `/v1/completions`, `/v1/chat/completions`, `/v1/responses` and
`/v1/messages`, or in `sampling_params.extra_args` of `/inference/v1/generate`; both are `SamplingParams.extra_args`.

| key                    | value                          | what it does                                              |
| ---------------------- | ------------------------------ | --------------------------------------------------------- |
| `watermark`            | true, false, 1 or 0            | a green-list watermark; `watermark.detect` finds it again |
| `no_repeat_ngram`      | integer >= 1; 1 is off         | no n-gram of this length twice in prompt and output       |
| `bad_word_tokens`      | `[12, 7, -1, 99]`              | forbids sequences of token ids; -1 separates them         |
| `forced_output_tokens` | `[12, 7, 99]`                  | the k-th token of the output is the k-th of these         |
| `temperature`          | number > 2                     | a higher temperature than vLLM's; its own must be 2       |
| `typical_p`            | number in (0, 1]; 1 is off     | locally typical sampling                                  |
| `xtc_threshold`        | number in [0, 1]; 0 is off     | exclude top choices: from which probability on, and       |
| `xtc_probability`      | number in [0, 1]; 0 is off     | how often. It draws from the request's `seed`             |

Lists are flat since these routes refuse a list in a list, and a null or an object too; true arrives there as 1. What is
wrong is answered with 400 and a message that begins with the key. Keys that are not listed are left alone: vLLM has
some of its own.

The first four act before vLLM's penalties, and on greedy decoding too (`batch.RawScores`); the others after vLLM's
temperature and min_p, before its top_k and top_p, and never on greedy decoding (`batch.Sampling`). Each acts in the
order of the table. vLLM reports logprobs from before all of them, unless its `logprobs_mode` says otherwise.

Each file holds one and knows nothing of vLLM; `batch` is what vLLM loads. vLLM's beam search, speculative decoding and
pooling models know no custom processors.
"""
