{{- /* The Serve configuration: `serveConfig`, or what `models` and `router` describe. */}}
{{- define "switchyard.serve" -}}
{{- include "switchyard.refused" . }}
{{- if .Values.serveConfig }}
{{- .Values.serveConfig | trim }}
{{- else -}}
http_options: {host: 0.0.0.0, port: 8000, keep_alive_timeout_s: 120}
applications:
  - name: router
    route_prefix: /
    import_path: deployments.router:build
    args: {}
    deployments:
      - name: Router
        autoscaling_config:
          min_replicas: {{ int .Values.routers.min }}
          max_replicas: {{ int .Values.routers.max }}
          target_ongoing_requests: 200
          upscale_delay_s: 5
          downscale_delay_s: 300
        max_replicas_per_node: 1
        ray_actor_options: {num_cpus: 1, label_selector: {ray.io/node-group: cpu}}
        user_config:
        {{- range $key, $value := fromJson (include "switchyard.router" .) }}
          {{ $key }}: {{ toRawJson $value }}
        {{- end }}
  - name: experiments
    route_prefix: /deployments/experiments
    import_path: deployments.experiments:build
    args: {}
    deployments:
      - name: Experiments
        num_replicas: 1
        ray_actor_options: {num_cpus: 0.2, label_selector: {ray.io/node-group: cpu}}
{{- range .Values.models }}
{{- include "switchyard.application" (list $ .) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The router's user_config, as JSON. An endpoint offers its first model's task. */}}
{{- define "switchyard.router" -}}
{{- $endpoints := dict }}{{ $defaults := dict }}{{ $deployments := dict }}{{ $counts := dict }}
{{- $tasks := dict "chat" (list "chat" "completions" "responses") "embeddings" (list "embeddings") }}
{{- range .Values.models }}
{{- $endpoint := include "switchyard.endpoint" . }}
{{- $_ := set $counts $endpoint (add 1 (int (get $counts $endpoint))) }}
{{- end }}
{{- range .Values.models }}
{{- $task := default "chat" .task }}
{{- $name := include "switchyard.endpoint" . }}
{{- $_ := set $deployments .name (dict "app" .name "model" .name "tasks" (get $tasks $task)) }}
{{- if not (hasKey $endpoints $name) }}
{{- $_ := set $endpoints $name (dict "tasks" (get $tasks $task) "traffic" (dict)) }}
{{- end }}
{{- range get $tasks $task }}
{{- if not (hasKey $defaults .) }}{{ $_ := set $defaults . $name }}{{ end }}
{{- end }}
{{- $alone := eq 1 (int (get $counts $name)) }}
{{- $share := ternary 100 0 $alone }}
{{- if hasKey . "share" }}{{ $share = .share }}{{ end }}
{{- if $share }}{{ $_ := set (get (get $endpoints $name) "traffic") .name $share }}{{ end }}
{{- end }}
{{- $limits := dict "default" .Values.limits "store" (dict "url_env" "REDIS_URL") }}
{{- $access := dict "keys_file" "/etc/switchyard/keys.yaml" "managers" .Values.managers "limits" $limits }}
{{- $all := dict "endpoints" $endpoints "defaults" $defaults "access" $access "deployments" $deployments }}
{{- with .Values.ledger.url }}{{ $_ := set $all "ledger" (dict "url" .) }}{{ end }}
{{- with .Values.router.access }}
{{- if and .allow_anonymous $.Values.host (not (contains "*" $.Values.host)) }}
{{- $_ := set $all "hosts" (list $.Values.host (printf "%s-serve-svc.%s" $.Release.Name $.Release.Namespace)) }}
{{- end }}
{{- end }}
{{- include "switchyard.merged" (list $all .Values.router) }}
{{- end }}

{{- define "switchyard.endpoint" -}}
{{ default (ternary "embed" "chat" (eq "embeddings" (default "chat" .task))) .endpoint }}
{{- end }}

{{- /* (list $ MODEL): its application. */}}
{{- define "switchyard.application" -}}
{{- $root := index . 0 }}{{ $model := index . 1 }}
{{- $chat := eq "chat" (default "chat" $model.task) }}
{{- $replicas := splitList "-" (toString $model.replicas) }}
{{- $concurrency := int (default (ternary 24 12 (hasKey $model "gpu")) $model.concurrency) }}
{{- $engine := dict "max_num_seqs" (mul 2 $concurrency) }}
{{- if not (hasKey $model "gpu") }}{{ $engine = dict "max_num_seqs" (mul 2 $concurrency) "dtype" "float32" "enforce_eager" true }}{{ end }}
{{- if gt (int (default 1 $model.gpus)) 1 }}{{ $_ := set $engine "tensor_parallel_size" (int $model.gpus) }}{{ end }}
{{- if $chat }}{{ $engine = fromJson (include "switchyard.merged" (list $engine $root.Values.engine)) }}{{ end }}
{{- $engine = fromJson (include "switchyard.merged" (list $engine (default (dict) $model.engine))) }}
  - name: {{ quote $model.name }}
    route_prefix: /deployments/{{ $model.name }}
    import_path: deployments.{{ ternary "llm" "embedding" $chat }}:build
    args:
      {{- with get (default (dict) (get $root.Values.nodes (default "cpu" $model.gpu))) "notice" }}
      {{- if $chat }}
      hand_over_after_s: {{ div . 4 }}
      {{- end }}
      {{- end }}
      llm_config:
        model_loading_config: {model_id: {{ quote $model.name }}, model_source: {{ quote (include "switchyard.source" $model.source) }}}
        {{- if hasKey $model "gpu" }}
        accelerator_type: {{ quote $model.gpu }}
        {{- else }}
        accelerator_config: {kind: cpu}
        placement_group_config: {bundle_per_worker: {CPU: 1, engines: 0.001}}   # only the group `engines` has it
        deployment_config: {ray_actor_options: {num_cpus: 0.5}}
        {{- end }}
        engine_kwargs: {{ toRawJson $engine }}
        {{- $env := default (dict) $model.env }}
        {{- if not (hasKey $model "gpu") }}{{ $env = fromJson (include "switchyard.merged" (list (dict "VLLM_CPU_KVCACHE_SPACE" "1") $env)) }}{{ end }}
        {{- if $env }}
        runtime_env: {env_vars: {{ toRawJson $env }}}
        {{- end }}
    deployments:
      - name: Engine
        autoscaling_config:
          min_replicas: {{ int (index $replicas 0) }}
          max_replicas: {{ int (last $replicas) }}
          target_ongoing_requests: {{ $concurrency }}
          upscale_delay_s: 5
          downscale_delay_s: 300
          {{- if eq 0 (int (index $replicas 0)) }}
          downscale_to_zero_delay_s: 600
          {{- end }}
          look_back_period_s: 10
          metrics_interval_s: 2
          policy: {policy_function: "deployments.autoscaling:replicas_needed"}
        max_ongoing_requests: {{ mul 4 $concurrency }}
        max_queued_requests: {{ mul 8 $concurrency }}
{{- end }}

{{- /* Where engines find a model's files: a hub's models are on the volume, below their id. */}}
{{- define "switchyard.source" -}}
{{- if hasPrefix "hf:" . }}/models/{{ trimPrefix "hf:" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* The groups of nodes for engines, in the order in which applications first need them, as JSON: KubeRay adds groups
in place only at the end. Each: name, gpu (Ray's type; empty for CPUs), and the pods that all replicas may fill. */}}
{{- define "switchyard.groups" -}}
{{- $groups := list }}{{ $pods := dict }}{{ $largest := dict }}{{ $types := dict }}
{{- $facts := fromYaml (.Files.Get "files/gpus.yaml") }}
{{- $engines := fromJsonArray (include "switchyard.engines" .) }}
{{- range $engines }}
{{- $_ := set $largest .group (max (int (get $largest .group)) .gpus) }}
{{- end }}
{{- range $engines }}
{{- $group := .group }}
{{- $size := int (default (get $largest $group) (get (default (dict) (get $.Values.nodes (default "cpu" .gpu))) "gpus")) }}
{{- $needed := 0 }}
{{- if eq .gpu "" }}
{{- $cpus := int (default $facts.cpu.cpu (get (default (dict) (get $.Values.nodes "cpu")) "cpu")) }}
{{- $together := div (mul 2 $cpus) (add 1 (mul 2 .gpus)) }}      {{- /* half a core for the replica, one for each process */}}
{{- if not $together }}{{ fail (printf "nodes.cpu.cpu: %d, but a replica of %s needs %d and a half" $cpus .name (int .gpus)) }}{{ end }}
{{- $needed = int (ceil (divf .replicas $together)) }}
{{- else if ge $size (int .gpus) }}{{ $needed = int (ceil (divf .replicas (div $size .gpus))) }}
{{- else }}{{ $needed = mul .replicas (int (ceil (divf .gpus $size))) }}
{{- end }}
{{- if not (hasKey $pods $group) }}{{ $groups = append $groups (dict "name" $group "gpu" .gpu "gpus" $size) }}{{ end }}
{{- $_ := set $pods $group (add (int (get $pods $group)) $needed) }}
{{- end }}
{{- range $groups }}{{ $_ := set . "pods" (get $pods .name) }}{{ end }}
{{- toRawJson $groups }}
{{- end }}

{{- /* The engines of the Serve configuration, as JSON: name, group, gpu, the GPUs (or CPU processes) of a replica, replicas. */}}
{{- define "switchyard.engines" -}}
{{- $engines := list }}
{{- range (fromYaml (include "switchyard.serve" .)).applications }}
{{- $llm := get (default (dict) .args) "llm_config" }}
{{- if $llm }}
{{- $engine := default (dict) (get $llm "engine_kwargs") }}
{{- $gpus := mul (default 1 (get $engine "tensor_parallel_size")) (default 1 (get $engine "pipeline_parallel_size")) }}
{{- $gpu := toString (get $llm "accelerator_type") }}
{{- $deployment := dict }}{{ range .deployments }}{{ $deployment = . }}{{ end }}
{{- $scaling := default (dict) (get $deployment "autoscaling_config") }}
{{- $replicas := int (default (default 1 (get $deployment "num_replicas")) (get $scaling "max_replicas")) }}
{{- $group := "engines" }}{{ if $gpu }}{{ $group = printf "gpu-%s" (lower $gpu) }}{{ end }}
{{- $engines = append $engines (dict "name" .name "group" $group "gpu" $gpu "gpus" $gpus "replicas" $replicas) }}
{{- end }}
{{- end }}
{{- toRawJson $engines }}
{{- end }}

{{- /* All groups' settings, as JSON: each group with `nodes`. */}}
{{- define "switchyard.groupsOfNodes" -}}
{{- $groups := list }}
{{- range fromJsonArray (include "switchyard.groups" .) }}
{{- $groups = append $groups (set . "nodes" (fromJson (include "switchyard.nodes" (list $ .)))) }}
{{- end }}
{{- toRawJson $groups }}
{{- end }}

{{- /* (list $ GROUP): its pods' settings as JSON: gpus, cpu, memory, shm, max, nodeSelector, values of the cloud's label. */}}
{{- define "switchyard.nodes" -}}
{{- $root := index . 0 }}{{ $group := index . 1 }}
{{- $facts := fromYaml ($root.Files.Get "files/gpus.yaml") }}
{{- $type := default "cpu" $group.gpu }}
{{- $own := default (dict) (get $root.Values.nodes $type) }}
{{- $fact := $facts.cpu }}{{ if $group.gpu }}{{ $fact = default (dict) (get $facts.gpus $type) }}{{ end }}
{{- $gpus := ternary $group.gpus 0 (ne "" $group.gpu) }}
{{- $machines := default (list) (get (default (dict) (get $facts.machines $root.Values.cloud)) $type) }}
{{- $fitting := list }}{{ $most := 0 }}
{{- range $machines }}
{{- $most = max $most (index . 0) }}
{{- if ge (int (index . 0)) (int $gpus) }}{{ $fitting = append $fitting . }}{{ end }}
{{- end }}
{{- if and $group.gpu (not (hasKey $own "nodeSelector")) }}
{{- if not (or $machines (get $fact $root.Values.cloud)) }}
{{- fail (printf "nodes.%s: set nodeSelector: the chart knows no label of cloud %s for this GPU" $type $root.Values.cloud) }}
{{- end }}
{{- if and $machines (not $fitting) }}
{{- fail (printf "nodes.%s.gpus: a pod has %d, but no machine of %s has more than %d; lower the model's gpus, or write %d here, so that a replica has several pods" $type (int $gpus) $root.Values.cloud (int $most) (int $most)) }}
{{- end }}
{{- end }}
{{- if not (or $fact (and (hasKey $own "cpu") (hasKey $own "memory"))) }}
{{- fail (printf "nodes.%s: set cpu and memory: the chart does not know this GPU" $type) }}
{{- end }}
{{- $cpu := mul (default 0 (get $fact "cpu")) (max 1 $gpus) }}
{{- $memory := mul (int (trimSuffix "Gi" (toString (default "0Gi" (get $fact "memory"))))) (max 1 $gpus) }}
{{- if $fitting }}
{{- $machine := index $fitting 0 }}
{{- $cpu = min $cpu (div (mul 7 (index $machine 1) $gpus) (mul 8 (index $machine 0))) }}
{{- $memory = min $memory (div (mul 7 (index $machine 2) $gpus) (mul 8 (index $machine 0))) }}
{{- end }}
{{- $values := default (list) (get $fact $root.Values.cloud) }}
{{- $all := dict "gpus" $gpus "cpu" $cpu "memory" (printf "%dGi" (int $memory)) "shm" (ternary "8Gi" "2Gi" (ne "" $group.gpu)) "max" (add $group.pods (ternary 2 1 (ne "" $group.gpu))) "tolerations" (list) "runtimeClassName" "" "label" (get $facts.clouds $root.Values.cloud) "values" $values "nodeSelector" (dict) }}
{{- if hasKey $own "nodeSelector" }}{{ $_ := set $all "values" (list) }}{{ end }}
{{- $all = fromJson (include "switchyard.merged" (list $all $own)) }}
{{- if and $machines (not (hasKey $own "nodeSelector")) }}
{{- $holding := list }}
{{- range $fitting }}
{{- if and (lt (int $all.cpu) (int (index . 1))) (lt (int (include "switchyard.mebibytes" $all.memory)) (int (mul 1024 (index . 2)))) }}{{ $holding = append $holding . }}{{ end }}
{{- end }}
{{- if not $holding }}
{{- fail (printf "nodes.%s: no machine of %s with %d %s has more than %d cores and %s; lower cpu or memory, or write the nodeSelector of one that has" $type $root.Values.cloud (int $gpus) $type (int $all.cpu) $all.memory) }}
{{- end }}
{{- if not $all.values }}{{ range $holding }}{{ $_ := set $all "values" (append $all.values (index . 3)) }}{{ end }}{{ end }}
{{- end }}
{{- if lt (int $all.max) (int $group.pods) }}
{{- fail (printf "nodes.%s.max: %d pods, but the models' replicas need %d; raise it, or leave it out" $type (int $all.max) (int $group.pods)) }}
{{- end }}
{{- if and $gpus (lt (int $all.cpu) (int (add 1 $gpus))) }}
{{- fail (printf "nodes.%s.cpu: %d, but a pod with %d GPUs keeps %d cores busy; write at least that" $type (int $all.cpu) (int $gpus) (int (add 1 $gpus))) }}
{{- end }}
{{- $least := 8 }}{{ if not $gpus }}{{ $least = mul 4 (add 1 (div (mul 2 (int $all.cpu)) 3)) }}{{ end }}
{{- $memory = add (mul 1024 $least) (include "switchyard.mebibytes" $all.shm) }}
{{- if lt (int (include "switchyard.mebibytes" $all.memory)) (int $memory) }}
{{- fail (printf "nodes.%s.memory: %s, but shm (%s) is a part of it and the engines of a pod need %dGi; write at least %dMi" $type $all.memory $all.shm (int $least) (int $memory)) }}
{{- end }}
{{- toRawJson $all }}
{{- end }}

{{- define "switchyard.mebibytes" -}}
{{- mul (int (regexFind "^[0-9]+" .)) (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[MGT]i$" .)) }}
{{- end }}

{{- /* The sources of the models and adapters on the volume, as JSON: what the Job fetches. A model of /models is there
already, or comes: in a whole Serve configuration, where a hub's models have such paths, too, the Job fetches it. */}}
{{- define "switchyard.fetched" -}}
{{- $sources := list }}{{ $filled := list }}{{ $hubs := list }}
{{- if not .Values.serveConfig }}
{{- range .Values.models }}{{ if hasPrefix "hf:" .source }}{{ $hubs = append $hubs .source }}{{ end }}{{ end }}
{{- range .Values.models }}
{{- if and (hasPrefix "/models/" .source) (not (has (printf "hf:%s" (trimPrefix "/models/" .source)) $hubs)) }}{{ $filled = append $filled .source }}{{ end }}
{{- end }}
{{- end }}
{{- range (fromYaml (include "switchyard.serve" .)).applications }}
{{- $llm := get (default (dict) .args) "llm_config" }}
{{- if $llm }}
{{- $loading := default (dict) (get $llm "model_loading_config") }}
{{- $sources = append $sources (default (get $loading "model_id") (get $loading "model_source")) }}
{{- range (default (list) (get (default (dict) (get $llm "engine_kwargs")) "lora_modules")) }}
{{- $sources = append $sources .path }}
{{- end }}
{{- end }}
{{- end }}
{{- $fetched := list }}
{{- range uniq $sources }}
{{- if hasPrefix "package:" . }}{{ $fetched = append $fetched . }}
{{- else if and (hasPrefix "/models/" .) (not (has . $filled)) }}{{ $fetched = append $fetched (printf "hf:%s" (trimPrefix "/models/" .)) }}
{{- end }}
{{- end }}
{{- toRawJson $fetched }}
{{- end }}
