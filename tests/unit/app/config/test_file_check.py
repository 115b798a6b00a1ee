"""Plausible mistakes in the default configuration: each is reported in one line that names its place and the fix."""

from pathlib import Path

import pytest

from app.config.file_check import check_file
from app.config.loading import load_document, read_yaml
from deployments.local.fit import engine_problems, misfits
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
        f"{EXPERIMENT}.primary.0.minimal_effect: expected less than 1, not 5; 5 % *",
    ),
    (
        "minimal_effect: 0.05",
        "minimal_effect: 0",
        f"{EXPERIMENT}.primary.0.minimal_effect: expected more than 0, not 0",
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
        "endpoints.chat.sticky: expected a mapping with by, name",
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
        "endpoints.chat.tasks.0: expected one of chat, *, not chats; did you mean chat?",
    ),
    (
        "tasks: [chat, completions, responses]",
        "task: [chat, completions, responses]",
        "endpoints.chat.task: unknown key; did you mean tasks?",
    ),
    ("smollm2-green: 10}", "smollm2-green: 5}", "endpoints.chat: traffic sums to 95 *, it must be 100: add 5"),
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
    ("metric: ttft", "metric: tftt", "experiments.no-prefix-cache.primary.0.metric: unknown metric 'tftt'; *"),
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
        "experiments.no-prefix-cache.control: 'smollm2-bleu' is not in the traffic of 'chat' *",
    ),
    (
        "chat: chat, completions",
        "chat: chatt, completions",
        "defaults.chat: unknown endpoint 'chatt'; known: chat, embed",
    ),
    ("- name: experiments", "- name: experiment", "experiments: no application is named 'experiments', *"),
    (
        "deployments.router:build",
        '"deployments.router:build',
        "not YAML: *; the indentation differs from that of the lines above",
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
        f"{ENGINE}.engine_kwargs.max_model_len: expected a whole number, not 32k",
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
        "endpoints.chat.traffic.smollm2-blue: expected a whole number, not 90.5",
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
    if right == "deployments.router:build":  # the quotes close in a later line
        return
    nearby = problem.startswith(("not YAML", "endpoints.chat: ", "experiments: ", "duplicate", "deployments."))
    nearby = nearby or problem.startswith(f"{BLUE}.route_prefix") or "is missing" in problem or "too; " in problem
    assert int(place) == line or (nearby and abs(int(place) - line) < 45)


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
            "num_cpus: the applications reserve 68.7 CPUs, smollm2-blue/Engine 65 of them",
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
