"""Plausible mistakes in the default configuration: each is reported in one line that names its place and the fix."""

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.base import ConfigError
from app.config.experiments import STATISTICS
from app.config.file_check import check_file, engine_warnings, located
from app.config.loading import load_document, read_yaml
from deployments.local.fit import engine_problems, left_out, misfits
from tests.support.processes.project import ROOT

DEFAULT = (ROOT / "serve_config.yaml").read_text()
BLUE = "applications.smollm2-blue"
ENGINE = f"{BLUE}.args.llm_config"
REPLICAS = f"{BLUE}.deployments[0]"

EXPERIMENT = "experiments.no-prefix-cache"

MISTAKES: list[tuple[str, str, str]] = [
    (
        "tasks: [chat, completions, responses]",
        "pin_s: 100\n              tasks: [chat, completions, responses]",
        "endpoints.chat.pin_s: has no effect without `sticky`; add `sticky: {by: conversation}`",
    ),
    (
        "tasks: [embeddings, rerank]}",
        "tasks: [embeddings, rerank, chat]}",
        "deployments.minilm.tasks: deployments.embedding:build, the import_path of the application 'minilm', does not "
        "do chat; deployments.llm:build does",
    ),
    (
        "minimal_effect: 0.05",
        "minimal_effect: 5",
        f"{EXPERIMENT}.primary[0].minimal_effect: expected less than 1, not 5; 5 % *",
    ),
    (
        "minimal_effect: 0.05",
        "minimal_effect: 0",
        f"{EXPERIMENT}.primary[0].minimal_effect: expected more than 0, not 0",
    ),
    (
        "primary: [{metric: ttft, minimal_effect: 0.05}]",
        "primary: []",
        f"{EXPERIMENT}.primary: expected at least 1, not 0",
    ),
    (
        "no-prefix-cache:",
        "no prefix cache:",
        "experiments.no prefix cache: 'no prefix cache' is no name: 63 letters, digits, *",
    ),
    (
        "applications:\n",
        "logging_config: {log_level: verbose}\napplications:\n",
        "logging_config.log_level: expected one of CRITICAL, *, not verbose",
    ),
    (
        "enforce_eager: true ",
        "kv_transfer_config: {kv_role: both}\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.kv_transfer_config.kv_role: expected one of * not both; did you mean kv_both?",
    ),
    (
        "num_cpus: 0.5}  # for",
        "num_cpus: -1}  # for",
        f"{ENGINE}.deployment_config.ray_actor_options.num_cpus: expected at least 0, not -1",
    ),
    ("- name: smollm2-green", "- name: smollm2-blue", f"{BLUE}.name: duplicate name 'smollm2-blue'; rename one"),
    (
        "max_num_seqs: 16  ",
        "max_num_seq: 16  ",
        f"{ENGINE}.engine_kwargs.max_num_seq: unknown key; did you mean max_num_seqs?",
    ),
    (
        "dtype: float32  ",
        "dtype: bf16  ",
        f"{ENGINE}.engine_kwargs.dtype: expected one of * not bf16; did you mean bfloat16?",
    ),
    (
        "package:SmolLM2-135M-Instruct",
        "package:SmolLM2-1.7B",
        f"{ENGINE}.model_loading_config.model_source: no package has the model 'SmolLM2-1.7B'; known: *",
    ),
    (
        "deployments.llm:build",
        "deployments.llm:app",
        f"{BLUE}.import_path: 'deployments.llm:app' does not exist; did you mean deployments.llm:build?",
    ),
    (
        "accelerator_config: {kind: cpu}",
        "accelerator_type: H10O",
        f"{ENGINE}.accelerator_type: H10O is not known; did you mean H100?",
    ),
    (
        "accelerator_config: {kind: cpu}",
        "accelerator_type: NVIDIA-A100-SXM4-80GB",
        f"{ENGINE}.accelerator_type: NVIDIA-A100-SXM4-80GB is not known; did you mean A100?",
    ),
    (
        "accelerator_config: {kind: cpu}",
        "accelerator_type: RTX-4090",
        f"{ENGINE}.accelerator_type: RTX-4090 is not known; leave it out to take any GPU",
    ),
    (
        "min_replicas: 1  ",
        "min_replicas: 3  ",
        f"{REPLICAS}.autoscaling_config.min_replicas: 3 is more than max_replicas, 1; raise one or lower the other",
    ),
    (
        "min_replicas: 1  ",
        "initial_replicas: 2  ",
        f"{REPLICAS}.autoscaling_config.initial_replicas: 2 is not between min_replicas, 1, and max_replicas, 1",
    ),
    (
        "            chat:\n",
        "\t\tchat:\n",
        "not YAML: found character '\\t' that cannot start any token; indent with spaces, not with a tab",
    ),
    (
        "              traffic: {smollm2-blue",
        "             traffic: {smollm2-blue",
        "not YAML: *; the indentation differs from that of the lines above",
    ),
    (
        "{app: smollm2-blue, model: SmolLM2-135M-Instruct}",
        "{app: smollm2-blue}",
        "deployments.smollm2-blue.model: Field required: The name under which that server knows the model.",
    ),
    (
        "              traffic: {smollm2",
        "              sticky: session\n              traffic: {smollm2",
        "endpoints.chat.sticky: expected a mapping with by, name; write {by: conversation}",
    ),
    (
        "smollm2-blue: 90,",
        "smollm2-blue: 90%,",
        "endpoints.chat.traffic.smollm2-blue: expected a whole number, not 90%; write 90, without %",
    ),
    (
        "smollm2-blue: 90,",
        'smollm2-blue: "90",',
        "endpoints.chat.traffic.smollm2-blue: expected a whole number, not 90; write 90, without quotes",
    ),
    (
        "[chat, completions, responses]",
        "[chats]",
        "endpoints.chat.tasks[0]: expected one of chat, *, not chats; did you mean chat?",
    ),
    (
        "tasks: [chat, completions, responses]",
        "task: [chat, completions, responses]",
        "endpoints.chat.task: unknown key; did you mean tasks?",
    ),
    ("smollm2-green: 10}", "smollm2-green: 5}", "endpoints.chat.traffic: sums to 95 *, it must be 100: add 5"),
    (
        "{app: smollm2-green,",
        "{app: smollm2-gren,",
        "deployments.smollm2-green.app: no application is named 'smollm2-gren'; did you mean smollm2-green?",
    ),
    (
        "green, model: SmolLM2-135M-Instruct",
        "green, model: SmolLM2",
        "deployments.smollm2-green.model: the application 'smollm2-green' does not serve 'SmolLM2', only *",
    ),
    (
        "metric: ttft",
        "metric: tftt",
        "experiments.no-prefix-cache.primary[0].metric: unknown metric 'tftt'; did you mean ttft?",
    ),
    (
        "route_prefix: /deployments/smollm2-blue",
        "route_prefix: /smollm2-blue",
        f"{BLUE}.route_prefix: must be /deployments/smollm2-blue for the router to find it",
    ),
    ("endpoints:      ", "endpoint:      ", "endpoint: unknown key; did you mean endpoints?"),
    ("            embed:\n", "            chat:\n", "duplicate key 'chat'; rename or remove one"),
    (
        "enforce_eager: true",
        "enforce_eager: yes please",
        f"{ENGINE}.engine_kwargs.enforce_eager: expected true or false, not yes please",
    ),
    (
        "max_model_len: 8192",
        "max_model_len: [8192]",
        f"{ENGINE}.engine_kwargs.max_model_len: expected a whole number, not a list",
    ),
    (
        "tool_call_parser: hermes",
        "tool_call_parser: hermess",
        f"{ENGINE}.engine_kwargs.tool_call_parser: hermess is not known; did you mean hermes?",
    ),
    (
        "max_num_seqs: 16  ",
        "gpu_memory_utilization: 1.5  ",
        f"{ENGINE}.engine_kwargs.gpu_memory_utilization: expected at most 1, not 1.5",
    ),
    (
        "        max_ongoing_requests: 32",
        "        num_replicas: 2\n        max_ongoing_requests: 32",
        f"{REPLICAS}.autoscaling_config: its deployment has `num_replicas`, too; remove one of both",
    ),
    (
        "          model_id: SmolLM2-135M-Instruct     #",
        "          # model_id: SmolLM2-135M-Instruct     #",
        f"{ENGINE}.model_loading_config: `model_id` is missing",
    ),
    (
        "model_source: package",
        "model_sauce: package",
        f"{ENGINE}.model_loading_config.model_sauce: unknown key; did you mean model_source?",
    ),
    (
        "max_model_len: 8192",
        "max_model_len: eight",
        f"{ENGINE}.engine_kwargs.max_model_len: expected a whole number, not eight",
    ),
    (
        "max_num_seqs: 16  ",
        "quantization: fp-8  ",
        f"{ENGINE}.engine_kwargs.quantization: fp-8 is not known; did you mean fp8?",
    ),
    (
        "max_num_seqs: 16  ",
        "speculative_config: {method: ngram, num_speculative_token: 3}  ",
        f"{ENGINE}.engine_kwargs.speculative_config.num_speculative_token: unknown key; "
        "did you mean num_speculative_tokens?",
    ),
    (
        "max_num_seqs: 16  ",
        "min_replicas: 1  ",
        f"{ENGINE}.engine_kwargs.min_replicas: unknown key; it belongs into `autoscaling_config`",
    ),
    (
        "max_num_seqs: 16  ",
        'max_num_seqs: "16"  ',
        f"{ENGINE}.engine_kwargs.max_num_seqs: expected a whole number, not 16 in quotes; leave them out",
    ),
    (
        "deployments.autoscaling:replicas_needed",
        "deployments.autoscaling:replica_needed",
        f"{REPLICAS}.autoscaling_config.policy.policy_function: 'deployments.autoscaling:replica_needed' does not "
        "exist; did you mean deployments.autoscaling:replicas_needed?",
    ),
    (
        "env_vars:",
        "env:",
        f"{ENGINE}.runtime_env.env: unknown key; *",
    ),
    (
        "    args: {}\n    deployments:\n      - name: Router",
        "    args: {user_config: {}}\n    deployments:\n      - name: Router",
        "applications.router.args.user_config: unknown key; it belongs into an application's `deployments`",
    ),
    (
        "tasks: [embeddings, rerank]\n",
        "tasks: embeddings\n",
        "endpoints.embed.tasks: expected a list, not embeddings; *",
    ),
    (
        "\napplications:",
        "\n---\na: b\n---\napplications:",
        "not YAML: found another document; one file *",
    ),
    ("max_num_seqs: 16  ", "max_num_seqs: 0  ", f"{ENGINE}.engine_kwargs.max_num_seqs: expected at least 1, not 0"),
    (
        "max_num_seqs: 16  ",
        "tensor_parallel_size: two  ",
        f"{ENGINE}.engine_kwargs.tensor_parallel_size: expected a whole number, not two",
    ),
    (
        "target_ongoing_requests: 12  ",
        "target_ongoing_request: 12  ",
        f"{REPLICAS}.autoscaling_config.target_ongoing_request: unknown key; did you mean target_ongoing_requests?",
    ),
    ("- name: Engine", "- name: engine", f"{REPLICAS}.name: expected Engine, not engine; did you mean Engine?"),
    (
        "model_loading_config:",
        "model_loading_conf:",
        f"{ENGINE}.model_loading_conf: unknown key; did you mean model_loading_config?",
    ),
    (
        "{kind: cpu}",
        "{kind: CPU}",
        f"{ENGINE}.accelerator_config.kind: expected one of cpu, gpu, tpu, not CPU; did you mean cpu?",
    ),
    ("\napplications:", "\naplications:", "aplications: unknown key; did you mean applications?"),
    (
        "import_path: deployments.router",
        "importpath: deployments.router",
        "applications.router.importpath: unknown key; did you mean import_path?",
    ),
    (
        "max_queued_requests: 64",
        "max_queued_requests: lots",
        f"{REPLICAS}.max_queued_requests: expected a whole number, not lots",
    ),
    (
        "max_ongoing_requests: 32",
        "max_ongoing_requests: 0",
        f"{REPLICAS}.max_ongoing_requests: expected more than 0, not 0",
    ),
    (
        "num_replicas: 1   ",
        "num_replicas: one   ",
        "applications.router.deployments[0].num_replicas: expected a whole number or auto, not one",
    ),
    (
        "state: draft",
        "state: drft",
        "experiments.no-prefix-cache.state: expected one of draft, *; did you mean draft?",
    ),
    (
        "control: smollm2-blue",
        "control: smollm2-bleu",
        f"{EXPERIMENT}.control: 'smollm2-bleu' is not in the traffic of 'chat' *; did you mean smollm2-blue?",
    ),
    (
        "chat: chat, completions",
        "chat: chatt, completions",
        "defaults.chat: unknown endpoint 'chatt'; did you mean chat?",
    ),
    ("- name: experiments", "- name: experiment", "experiments: no application is named 'experiments', *"),
    (
        "deployments.router:build",
        '"deployments.router:build',
        "not YAML: *; close the quotes of this line",
    ),
    (
        "[chat, completions, responses]",
        "[chat, completions, responses",
        "not YAML: *; close the bracket of the line, or of one above",
    ),
    ("runtime_env:", "runtime_envs:", f"{ENGINE}.runtime_envs: unknown key; did you mean runtime_env?"),
    (
        'VLLM_CPU_KVCACHE_SPACE: "1"',
        "VLLM_CPU_KVCACHE_SPACE: 1",
        f"{ENGINE}.runtime_env.env_vars.VLLM_CPU_KVCACHE_SPACE: expected a text, not 1; put it in quotes",
    ),
    (
        "{num_cpus: 0.5}  # for",
        "{num_cpu: 0.5}  # for",
        f"{ENGINE}.deployment_config.ray_actor_options.num_cpu: unknown key; did you mean num_cpus?",
    ),
    (
        "enforce_eager: true ",
        "gpu_memory_utilization: 90\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.gpu_memory_utilization: expected at most 1, not 90",
    ),
    (
        "max_model_len: 8192",
        "max_model_len: 32k",
        f"{ENGINE}.engine_kwargs.max_model_len: expected a whole number, not 32k; write 32000",
    ),
    (
        "enforce_eager: true ",
        "allowed_media_domains: example.com\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.allowed_media_domains: expected a list, not example.com",
    ),
    (
        "enforce_eager: true ",
        "served_model_name: x\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.served_model_name: has no effect on an engine; the name is `model_id`",
    ),
    (
        "enforce_eager: true ",
        "port: 8001\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.port: has no effect on an engine; clients reach the router, *",
    ),
    (
        "enforce_eager: true ",
        "tool-call-parser: hermes\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.tool-call-parser: unknown key; did you mean tool_call_parser?",
    ),
    (
        "package:SmolLM2-135M-Instruct",
        "packages:SmolLM2-135M-Instruct",
        f"{ENGINE}.model_loading_config.model_source: 'packages:SmolLM2-135M-Instruct' is neither a folder *"
        "; did you mean package:?",
    ),
    (
        "package:SmolLM2-135M-Instruct",
        "models/SmolLM2/135M",
        f"{ENGINE}.model_loading_config.model_source: 'models/SmolLM2/135M' is neither a folder (/… or ./…), a hub's *",
    ),
    (
        "accelerator_config: {kind: cpu}",
        "accelerator_type: H100\n        accelerator_config: {kind: cpu}",
        f"{ENGINE}.accelerator_type: H100 beside `accelerator_config: {{kind: cpu}}`; remove one of both",
    ),
    (
        "accelerator_config: {kind: cpu}",
        "placement_group_config: {bundle_per_worker: {gpu: 0.5}}",
        f"{ENGINE}.placement_group_config.bundle_per_worker.gpu: no machine has the resource 'gpu'; did you mean GPU?",
    ),
    (
        "target_ongoing_requests: 12",
        "target_ongoing_requests: 64",
        f"{REPLICAS}.autoscaling_config.target_ongoing_requests: 64 is more than max_ongoing_requests, 32, *",
    ),
    (
        "max_queued_requests: 64",
        "max_queued_requests: -2",
        f"{REPLICAS}.max_queued_requests: expected at least 0, or -1 for any number, not -2",
    ),
    (
        "num_replicas: 1   ",
        "num_replicas: 0   ",
        "applications.router.deployments[0].num_replicas: nothing answers without a replica; write at least 1",
    ),
    (
        "state: draft",
        "state: run",
        f"{EXPERIMENT}.state: expected one of draft, running, paused, stopped, not run; did you mean running?",
    ),
    (
        "smollm2-blue: 90,",
        "smollm2-blue: 90.5,",
        "endpoints.chat.traffic.smollm2-blue: expected a whole number, not 90.5; write 90 or 91, since 1 % *",
    ),
    (
        "smollm2-green: 10}",
        "smollm2-gren: 10}",
        "endpoints.chat.traffic: unknown deployment 'smollm2-gren'; did you mean smollm2-green?",
    ),
    (
        "treatments: [smollm2-green]",
        "treatments: [smollm2-gren]",
        f"{EXPERIMENT}.treatments[0]: 'smollm2-gren' is not in *; did you mean smollm2-green?",
    ),
    (
        "treatments: [smollm2-green]",
        "treatment: smollm2-green",
        f"{EXPERIMENT}.treatment: unknown key; did you mean treatments: [smollm2-green]?",
    ),
    (
        "endpoint: chat\n",
        "endpoint: chats\n",
        f"{EXPERIMENT}.endpoint: unknown endpoint 'chats'; did you mean chat?",
    ),
    (
        "metric: ttft",
        "metric: tfft",
        f"{EXPERIMENT}.primary[0].metric: unknown metric 'tfft'; did you mean ttft?",
    ),
    (
        "metric: ttft",
        "metric: tpot",
        f"{EXPERIMENT}.primary[0].metric: unknown metric 'tpot'; did you mean itl?",
    ),
    (
        "metric: ttft",
        "metric: e2e_latency",
        f"{EXPERIMENT}.primary[0].metric: unknown metric 'e2e_latency'; did you mean duration?",
    ),
    (
        "metric: ttft",
        "metric: error_rate",
        f"{EXPERIMENT}.primary[0].metric: unknown metric 'error_rate'; did you mean error?",
    ),
    (
        "metric: ttft",
        "metric: TTFT",
        f"{EXPERIMENT}.primary[0].metric: 'TTFT' is no metric's name: small letters, *",
    ),
    (
        "metric: ttft, ",
        "metric: ttft, statistic: median, ",
        f"{EXPERIMENT}.primary[0].statistic: expected one of *, not median; did you mean p50?",
    ),
    (
        "primary: [{metric: ttft, minimal_effect: 0.05}]",
        "primary: ttft",
        f"{EXPERIMENT}.primary: expected a list, not ttft; write [{{metric: ttft, minimal_effect: …}}]",
    ),
    (
        "minimal_effect: 0.05",
        "minimal_effect: 0,05",
        f"{EXPERIMENT}.primary[0].5: 5 is no key; put it in quotes, or write a decimal number with a point",
    ),
    (
        "minimal_effect: 0.05",
        "minimal_effect: 5%",
        f"{EXPERIMENT}.primary[0].minimal_effect: expected a number, not 5%; write 0.05",
    ),
    (
        "state: draft",
        "state: on",
        f"{EXPERIMENT}.state: expected one of *, not true; did you mean running?",
    ),
    (
        "tasks: [embeddings, rerank]\n",
        "task: embed\n",
        "endpoints.embed.task: unknown key; did you mean tasks: [embeddings]?",
    ),
    (
        "tasks: [embeddings, rerank]\n",
        "tasks: embed\n",
        "endpoints.embed.tasks: expected a list, not embed; write [embeddings]",
    ),
    (
        "tasks: [chat, completions, responses]",
        "tasks: {chat: true}",
        "endpoints.chat.tasks: expected a list, not a mapping; write [chat]",
    ),
    (
        "            chat:\n",
        "            no:\n",
        "endpoints.false: expected a text, not false; put it in quotes: YAML reads yes, no, *",
    ),
    (
        "{smollm2-blue: 90, smollm2-green: 10}",
        "[smollm2-blue: 90, smollm2-green: 10]",
        "endpoints.chat.traffic: expected a mapping, not a list; write {smollm2-blue: 90, smollm2-green: 10}",
    ),
    (
        "{minilm: 100}",
        "minilm",
        "endpoints.embed.traffic: expected a mapping, not minilm; write {minilm: 100}",
    ),
    (
        "{minilm: 100}",
        "{minilm:100}",
        "endpoints.embed.traffic.minilm:100: expected *; a space belongs after the colon of 'minilm:100'",
    ),
    (
        "{minilm: 100}",
        "{minilm: 0.9}",
        "endpoints.embed.traffic.minilm: expected a whole number, not 0.9; write 90 for 90 %, or 1, the finest *",
    ),
    (
        "{app: smollm2-blue, model: SmolLM2-135M-Instruct}",
        "{url: 'http://localhost:80 01', model: x}",
        "deployments.smollm2-blue: `url` 'http://localhost:80 01' must be a server's address, *",
    ),
    (
        "          experiments:   ",
        "          timeouts: {total_s: 60s}\n          experiments:   ",
        "timeouts.total_s: expected a number, not 60s; write 60, in seconds",
    ),
    (
        "          experiments:   ",
        "          timeouts: {total_s: 5m}\n          experiments:   ",
        "timeouts.total_s: expected a number, not 5m; write 300, in seconds",
    ),
    (
        "          experiments:   ",
        "          max_body_bytes: 32MiB\n          experiments:   ",
        "max_body_bytes: expected a whole number, not 32MiB; write 33554432, in bytes",
    ),
    (
        "          experiments:   ",
        "          ledger: {retention_days: 4 weeks}\n          experiments:   ",
        "ledger.retention_days: expected a whole number, not 4 weeks; write 28, in days",
    ),
    (
        "          experiments:   ",
        "          cors: {origins: [app.example.com]}\n          experiments:   ",
        "cors.origins[0]: 'app.example.com' is no origin: scheme and host, *",
    ),
    (
        "          experiments:   ",
        "          hosts: ['https://models.example.com']\n          experiments:   ",
        "hosts[0]: 'https://models.example.com' is no host's name: leave out the scheme, the port and the path",
    ),
    (
        "          experiments:   ",
        "          access: {keys_file: ~/keys.yaml}\n          experiments:   ",
        "access.keys_file: '~/keys.yaml' is taken as it is, and `~` is not expanded; write *",
    ),
    (
        "upscale_delay_s: 5 ",
        "upscale_delay_s: 1min ",
        f"{REPLICAS}.autoscaling_config.upscale_delay_s: expected a number, not 1min; write 60, in seconds",
    ),
    (
        "              endpoint: chat\n",
        "              max_duration_s: 14d\n              endpoint: chat\n",
        f"{EXPERIMENT}.max_duration_s: expected a number, not 14d; write 1209600, in seconds",
    ),
    (
        "              endpoint: chat\n",
        "              starts_at: 2026-12-01\n              endpoint: chat\n",
        f"{EXPERIMENT}.starts_at: expected a number, not 2026-12-01; write 1796083200, in Unix seconds",
    ),
    (
        "              endpoint: chat\n",
        "              ramp: true\n              endpoint: chat\n",
        f"{EXPERIMENT}.ramp: expected a mapping with steps, *; write {{}} for the defaults",
    ),
    (
        "              endpoint: chat\n",
        "              guardrails: [error]\n              endpoint: chat\n",
        f"{EXPERIMENT}.guardrails[0]: expected a mapping with event, *; write {{event: error}}",
    ),
    (
        "              traffic: {smollm2",
        "              sticky: {by: session}\n              traffic: {smollm2",
        "endpoints.chat.sticky.by: expected one of header, *, not session; did you mean conversation?",
    ),
    (
        "              traffic: {smollm2",
        "              mirror: smollm2-green\n              traffic: {smollm2",
        "endpoints.chat.mirror: expected a mapping with deployment, *; write {deployment: smollm2-green, percent: …}",
    ),
    (
        "              traffic: {smollm2",
        "              fallback: [smollm2-gren]\n              traffic: {smollm2",
        "endpoints.chat.fallback: unknown deployment 'smollm2-gren'; did you mean smollm2-green?",
    ),
    (
        "              traffic: {smollm2",
        "              content_filter: {patterns: ['(']}\n              traffic: {smollm2",
        "endpoints.chat.content_filter.patterns[0]: '(' is no regular expression: missing ), *",
    ),
    (
        "dtype: float32 ",
        "dtype: fp32 ",
        f"{ENGINE}.engine_kwargs.dtype: expected one of *, not fp32; did you mean float32?",
    ),
    (
        "enforce_eager: true ",
        "gpu_memory_utilization: 90%\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.gpu_memory_utilization: expected a number, not 90%; write 0.9",
    ),
    (
        "enforce_eager: true ",
        "max_num_batched_tokens: 8,192\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.max_num_batched_tokens: expected a whole number, not 8,192; write 8192",
    ),
    (
        "enforce_eager: true ",
        "enable_prefix_caching: 'false'\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.enable_prefix_caching: expected true or false, not false in quotes; leave them out",
    ),
    (
        "enforce_eager: true ",
        "reasoning_parser: no\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.reasoning_parser: expected one of *: YAML reads yes, no, on and off as true and false",
    ),
    (
        "enforce_eager: true ",
        "num_scheduler_steps: 8\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.num_scheduler_steps: unknown key; this vLLM does not have it: remove it",
    ),
    (
        "enforce_eager: true ",
        "task: embed\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.task: unknown key; this vLLM does not have it: for a model that embeds *",
    ),
    (
        "enforce_eager: true ",
        "model: Qwen/Qwen3-8B\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.model: has no effect on an engine; the model is `model_source`",
    ),
    (
        "enforce_eager: true ",
        "\u2013tensor_parallel_size: 2\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.\u2013tensor_parallel_size: unknown key; did you mean tensor_parallel_size?",
    ),
    (
        "enforce_eager: true ",
        "chat_template: ./missing.jinja\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.chat_template: there is no file ./missing.jinja here; write its whole path",
    ),
    (
        "enforce_eager: true ",
        "tokenizer: $HOME/tokenizer\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.tokenizer: '$HOME/tokenizer' is taken as it is, and `$` is not expanded; write *",
    ),
    (
        "model_source: package:SmolLM2-135M-Instruct",
        "model_source: https://huggingface.co/Qwen/Qwen3-8B",
        f"{ENGINE}.model_loading_config.model_source: 'https://huggingface.co/*; did you mean Qwen/Qwen3-8B?",
    ),
    (
        "model_source: package:SmolLM2-135M-Instruct",
        "model_source: ~/models/smol",
        f"{ENGINE}.model_loading_config.model_source: '~/models/smol' is taken as it is, *",
    ),
    (
        "VLLM_CPU_KVCACHE_SPACE: ",
        "VLLM_CPU_KV_CACHE_SPACE: ",
        f"{ENGINE}.runtime_env.env_vars.VLLM_CPU_KV_CACHE_SPACE: vLLM *; did you mean VLLM_CPU_KVCACHE_SPACE?",
    ),
    (
        "accelerator_config: {kind: cpu}",
        "accelerator_config: cpu",
        f"{ENGINE}.accelerator_config: expected a mapping with `kind` (cpu, gpu, tpu), not cpu; write {{kind: cpu}}",
    ),
    (
        "accelerator_config: {kind: cpu}",
        "accelerator_type: RTX4090",
        f"{ENGINE}.accelerator_type: RTX4090 is not known; leave it out to take any GPU",
    ),
    (
        "    route_prefix: /\n",
        "    route_prefix: /v1\n",
        "applications.router.route_prefix: expected /, not /v1: clients' paths begin there",
    ),
    (
        "deployments.llm:build",
        "deployments/llm.py:build",
        f"{BLUE}.import_path: expected MODULE:NAME, not deployments/llm.py:build; did you mean deployments.llm:build?",
    ),
    (
        "num_replicas: 1                       # must",
        "num_replicas: 2                       # must",
        "applications.experiments.deployments[0].num_replicas: the controller of experiments is one replica; set 1",
    ),
    (
        "max_replicas: 1    ",
        "max_replicas: 0    ",
        f"{REPLICAS}.autoscaling_config.max_replicas: expected more than 0, not 0",
    ),
    (
        "applications:\n",
        "experiments: {}\napplications:\n",
        "experiments: unknown key; it belongs into the router's `user_config`",
    ),
    (
        "applications:\n",
        "port: 8001\napplications:\n",
        "port: unknown key; it belongs into `http_options`",
    ),
    (
        "enforce_eager: true ",
        "block_size: 17\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.block_size: expected a multiple of 32 on CPUs, not 17; write 32",
    ),
    (
        "enforce_eager: true ",
        "uvicorn_log_level: inof\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.uvicorn_log_level: has no effect on an engine; *VLLM_LOGGING_LEVEL",
    ),
    (
        "enforce_eager: true ",
        "uvicorn_log_levl: info\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.uvicorn_log_levl: unknown key; remove it",
    ),
    (
        "enforce_eager: true ",
        "data_parallel_size: 2\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.data_parallel_size: a replica has one copy of the model, *`autoscaling_config`)",
    ),
    (
        "enforce_eager: true ",
        "nnodes: 2\n          enforce_eager: true ",
        f"{ENGINE}.engine_kwargs.nnodes: a replica has tensor_parallel_size times *, and none more for 2; remove it",
    ),
    (
        "              endpoint: chat\n",
        "              guardrails: [{metric: ttft, max: 5}]\n              endpoint: chat\n",
        f"{EXPERIMENT}.guardrails[0]: a guardrail counts an event, *; write {{event: slow, ttft_above_s: 5}}",
    ),
    (
        "              endpoint: chat\n",
        "              guardrails: [{metric: error_rate, max: 0.02}]\n              endpoint: chat\n",
        f"{EXPERIMENT}.guardrails[0]: a guardrail counts an event, *; write {{event: error, max_rate: 0.02}}",
    ),
    (
        "              endpoint: chat\n",
        "              ramp: [10, 50, 100]\n              endpoint: chat\n",
        f"{EXPERIMENT}.ramp: expected a mapping with steps, *; write {{steps: [10, 50, 100]}}",
    ),
    (
        "              endpoint: chat\n",
        "              ramp: {steps: 10}\n              endpoint: chat\n",
        f"{EXPERIMENT}.ramp.steps: expected a list, not 10; write [10]",
    ),
]
"""A text of the file, the one that a person wrote instead, and the problem; `*` is any text."""


def written(folder: Path, right: str, wrong: str) -> tuple[Path, int]:
    """The file with the mistake, and its line."""
    assert right in DEFAULT
    file = folder / "serve_config.yaml"
    file.write_text(DEFAULT.replace(right, wrong, 1))
    return file, DEFAULT[: DEFAULT.index(right)].count("\n") + 1 + (right.startswith("\n"))


@pytest.mark.parametrize(("right", "wrong", "problem"), MISTAKES, ids=[mistake[1].strip()[:40] for mistake in MISTAKES])
def test_a_mistake_is_one_line_with_its_place_and_the_fix(right: str, wrong: str, problem: str, tmp_path: Path) -> None:
    file, line = written(tmp_path, right, wrong)
    (found,) = check_file(file, engine_problems)
    place, _, said = found.removeprefix(f"{file}:").partition(": ")
    assert "\n" not in said
    before, _, after = problem.partition("*")
    assert said == problem or ("*" in problem and said.startswith(before) and said.endswith(after))
    assert not any(words in said for words in ("Input should", "String should", "Keys should", "given schemas"))
    nearby = problem.startswith(("not YAML", "endpoints.chat: ", "experiments: ", "duplicate", "deployments."))
    nearby = nearby or problem.startswith(f"{BLUE}.route_prefix") or "is missing" in problem or "too; " in problem
    assert int(place) == line or (nearby and abs(int(place) - line) < 45)


@pytest.mark.parametrize(
    ("right", "wrong", "fix"),
    [
        ("            chat:\n", "            chat\n", "a key ends with a colon"),
        ("tasks: [chat,", "tasks:[chat,", "a space belongs after the colon"),
        (
            "            chat:\n",
            "<<<<<<< HEAD\n            chat:\n",
            "a merge left its marks: *",
        ),
        ("traffic: {smollm2-blue", "traffic: '{smollm2-blue", "close the quotes of this line"),
        ("traffic: {smollm2-blue", "traffic: \u201csmollm2-blue", "write plain quotes instead of typographic ones"),
        (
            "tasks: [chat, completions, responses]",
            "tasks: - chat",
            "write the items in the lines below *",
        ),
        ("metric: ttft", "metric: `ttft`", "put the text in quotes"),
    ],
)
def test_the_line_that_breaks_the_syntax_is_named_and_not_the_one_where_it_shows(
    right: str, wrong: str, fix: str, tmp_path: Path
) -> None:
    file, line = written(tmp_path, right, wrong)
    (problem,) = check_file(file)
    assert problem.startswith(f"{file}:{line}: not YAML: ")
    assert fnmatch(problem.rpartition("; ")[2], fix)


def test_the_file_of_the_project_has_no_problem() -> None:
    assert check_file(ROOT / "serve_config.yaml", engine_problems) == []


@pytest.mark.parametrize(
    ("right", "wrong", "misfit"),
    [
        (
            "# access: {keys_file: /etc/switchyard/keys.yaml}",
            "access: {keys_file: none.yaml}",
            "access.keys_file: none.yaml: No such file or directory",
        ),
        (
            "{num_cpus: 0.5}  # for",
            "{num_cpus: 64}  # for",
            "num_cpus: smollm2-blue/Engine asks for 64 and 1 for its engine; all applications together reserve 68.7",
        ),
        (
            "ray_actor_options: {num_cpus: 0.5}\n        user_config",
            "ray_actor_options: {num_cpus: 64}\n        user_config",
            "num_cpus: router/Router asks for 64; all applications together reserve 68.7, and a local run has 16",
        ),
        (
            "{min_replicas: 1, max_replicas: 1,",
            "{min_replicas: 20, max_replicas: 20,",
            "num_cpus: smollm2-green/Engine asks for 0.5 and 1 for its engine for each of 20 replicas; all",
        ),
        (
            "model_source: package:SmolLM2-135M-Instruct",
            "model_source: ./missing",
            "smollm2-blue: model_source: ./missing does not exist; correct it",
        ),
        (
            "enforce_eager: true ",
            "lora_modules: [{name: a, path: /missing}]\n          enforce_eager: true ",
            "smollm2-blue: lora_modules: /missing has no adapter_config.json: it is no adapter's folder; correct it",
        ),
    ],
)
def test_what_only_this_machine_lacks_is_no_mistake(right: str, wrong: str, misfit: str, tmp_path: Path) -> None:
    file, _ = written(tmp_path, right, wrong)
    assert check_file(file, engine_problems) == []
    document = read_yaml(file)
    assert isinstance(document, dict)
    (found,) = misfits(document, load_document(document))
    assert found.startswith(misfit)


@pytest.mark.parametrize("metric", [*STATISTICS, "error_rate", "time_to_first_token", "speed"])
@pytest.mark.parametrize("limit", [0.02, 5])
def test_the_guardrail_that_a_mistake_is_told_to_write_is_right(metric: str, limit: float, tmp_path: Path) -> None:
    wrong = {"guardrails": [{"metric": metric, "max": limit}]}
    with pytest.raises(ConfigError) as refused:
        load_document(experiment_with(wrong))
    (problem,) = refused.value.problems
    meant = yaml.safe_load(problem.partition("; write ")[2].replace("…", "0.5"))
    assert load_document(experiment_with({"guardrails": [meant]}))


def experiment_with(keys: Mapping[str, Any]) -> Any:
    """The default configuration, with these keys in its experiment."""
    document: Any = yaml.safe_load(DEFAULT)
    user_config = document["applications"][0]["deployments"][0]["user_config"]
    user_config["experiments"]["no-prefix-cache"] |= keys
    return document


def test_http_options_that_only_a_cluster_takes_are_said(tmp_path: Path) -> None:
    document = yaml.safe_load(DEFAULT)
    assert (
        list(left_out(document | {"http_options": {"host": "127.0.0.1", "port": 9, "keep_alive_timeout_s": 120}})) == []
    )
    (said,) = left_out(document | {"http_options": {"root_path": "/x"}})
    assert said.startswith("http_options.root_path: only a cluster takes it; ")


def test_a_problem_has_the_line_of_the_key_or_item_that_it_quotes(tmp_path: Path) -> None:
    right = "traffic: {smollm2-blue: 90, smollm2-green: 10}"
    block = "traffic:\n                smollm2-blue: 90\n                smollm2-gren: 10"
    file, line = written(tmp_path, right, block)
    (found,) = check_file(file)
    assert found.startswith(f"{file}:{line + 2}: endpoints.chat.traffic: unknown deployment 'smollm2-gren'")
    file, line = written(
        tmp_path, right, f"{right}\n              fallback:\n                - minilm\n                - gone"
    )
    assert [problem.partition(": endpoints")[0] for problem in check_file(file)] == [
        f"{file}:{line + 2}",
        f"{file}:{line + 3}",
    ]


@pytest.mark.parametrize(
    ("at_once", "warning"),
    [
        (8, "a replica gets 8 requests at a time, and its batch (max_num_seqs) has room for 16, which it never fills"),
        (16, ""),
        (32, ""),
        (2000, "a replica takes 2000 requests at a time, of which 16 (max_num_seqs) run; the others wait inside vLLM"),
    ],
)
def test_a_replica_gets_as_many_requests_as_fill_its_batch(at_once: int, warning: str, tmp_path: Path) -> None:
    file, line = written(tmp_path, "max_ongoing_requests: 32", f"max_ongoing_requests: {at_once}")
    document = read_yaml(file)
    assert isinstance(document, dict)
    warnings = located(file, engine_warnings(document))
    assert [text.partition(f"{line}: {REPLICAS}.max_ongoing_requests: ")[2][: len(warning)] for text in warnings] == (
        [warning] if warning else []
    )
