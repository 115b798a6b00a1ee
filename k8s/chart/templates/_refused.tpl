{{- /* Values that a schema cannot refuse, or only without saying what to write instead: `fail` with one line. The
interpreter of `switchyard k8s` and `switchyard check` executes the same rules. Kubernetes' own rules for names, KubeRay's,
and those of the router's configuration. Nothing else is rendered before them. */}}
{{- define "switchyard.refused" -}}
{{- include "switchyard.refusedNames" . }}
{{- include "switchyard.refusedEntrance" . }}
{{- include "switchyard.refusedSizes" . }}
{{- if .Values.serveConfig }}
{{- if not (kindIs "slice" (get (fromYaml .Values.serveConfig) "applications")) }}
{{- fail "serveConfig: not YAML with a list of `applications`; check that file by itself" }}
{{- end }}
{{- else }}
{{- include "switchyard.refusedModels" . }}
{{- end }}
{{- end }}

{{- /* (list PLACE TEXT PATTERN INSTEAD): refuses a text that the pattern does not match. */}}
{{- define "switchyard.matching" -}}
{{- if not (regexMatch (index . 2) (index . 1)) }}
{{- fail (printf "%s: '%s': write %s" (index . 0) (index . 1) (index . 3)) }}
{{- end }}
{{- end }}

{{- /* A text as a name of Kubernetes. */}}
{{- define "switchyard.asName" -}}
{{- default "a" (regexReplaceAll "^-+|-+$" (regexReplaceAll "[^a-z0-9]+" (lower .) "-") "") }}
{{- end }}

{{- define "switchyard.refusedNames" -}}
{{- $release := .Release.Name }}
{{- $instead := include "switchyard.asName" (trunc 46 (printf "s-%s" $release)) }}
{{- include "switchyard.matching" (list "the release's name" $release "^[a-z]([a-z0-9-]{0,44}[a-z0-9])?$" (printf "at most 46 small letters, digits and hyphens after a letter, as %s" $instead)) }}
{{- if has $release (list "true" "false" "null" "yes" "no" "on" "off" "y" "n") }}
{{- fail (printf "the release's name: '%s' is no text in YAML; write %s" $release $instead) }}
{{- end }}
{{- $names := dict "secrets.cluster" .Values.secrets.cluster "secrets.keys" .Values.secrets.keys "secrets.hub" .Values.secrets.hub "entrance.tlsSecret" .Values.entrance.tlsSecret "entrance.class" .Values.entrance.class "weights.storageClass" .Values.weights.storageClass "redis.storageClass" .Values.redis.storageClass "ledger.storageClass" .Values.ledger.storageClass "ledger.credentials" .Values.ledger.credentials "ledger.serviceAccount" .Values.ledger.serviceAccount "incremental.gatewayClassName" .Values.incremental.gatewayClassName "operatorNamespace" .Values.operatorNamespace "monitoring.namespace" .Values.monitoring.namespace }}
{{- range $i, $name := .Values.image.pullSecrets }}{{ $_ := set $names (printf "image.pullSecrets[%d]" $i) $name }}{{ end }}
{{- range $type, $nodes := .Values.nodes }}{{ $_ := set $names (printf "nodes.%s.runtimeClassName" $type) (default "" $nodes.runtimeClassName) }}{{ end }}
{{- range $place, $name := $names }}
{{- if $name }}
{{- include "switchyard.matching" (list $place $name `^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$` (printf "a name of Kubernetes, as %s" (include "switchyard.asName" $name))) }}
{{- end }}
{{- end }}
{{- range $place, $image := dict "image" .Values.image "engineImage" .Values.engineImage "weights.image" .Values.weights.image }}
{{- if $image.repository }}
{{- $repository := regexReplaceAll `^[a-z]+://|:[^/]*$|[^a-z0-9._/:-]` (lower $image.repository) "" }}
{{- include "switchyard.matching" (list (printf "%s.repository" $place) $image.repository `^[a-z0-9.-]+(:[0-9]+/[a-z0-9._-]+)?(/[a-z0-9._-]+)*$` (printf "%s, and the tag as %s.%s" $repository $place (ternary "tag" "gpuTag" (hasKey $image "tag")))) }}
{{- end }}
{{- range $key := list "tag" "gpuTag" "cpuTag" }}
{{- if get $image $key }}{{ include "switchyard.matching" (list (printf "%s.%s" $place $key) (get $image $key) `^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(@sha256:[0-9a-f]{64})?$` "an image's tag, as 0.1.0-gpu") }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "switchyard.refusedEntrance" -}}
{{- if .Values.host }}
{{- $host := regexReplaceAll "[:/].*$" (regexReplaceAll "^[a-z]+://" (lower .Values.host) "") "" }}
{{- $pattern := `^([*]\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$` }}
{{- if or (not (regexMatch $pattern $host)) (gt (len $host) 253) }}{{ $host = "models.example.com" }}{{ end }}
{{- if gt (len .Values.host) 253 }}{{ fail "host: write at most 253 characters" }}{{ end }}
{{- include "switchyard.matching" (list "host" .Values.host $pattern (printf "a host's name, as %s" $host)) }}
{{- if eq .Values.upgrade "NewClusterWithIncrementalUpgrade" }}
{{- fail "host: it must be empty with upgrade: NewClusterWithIncrementalUpgrade, whose Gateway is KubeRay's own" }}
{{- end }}
{{- end }}
{{- if and (eq .Values.upgrade "NewClusterWithIncrementalUpgrade") (gt (int .Values.incremental.stepSizePercent) (int .Values.incremental.maxSurgePercent)) }}
{{- fail (printf "incremental.stepSizePercent: %d is more than maxSurgePercent, %d; lower it" (int .Values.incremental.stepSizePercent) (int .Values.incremental.maxSurgePercent)) }}
{{- end }}
{{- range $i, $cidr := .Values.dns.cidrs }}
{{- $octet := `(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])` }}
{{- $pattern := printf `^(%s\.%s\.%s\.%s/(3[0-2]|[12]?[0-9])|[0-9a-f]*:[0-9a-f]*:[0-9a-f:]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$` $octet $octet $octet $octet }}
{{- include "switchyard.matching" (list (printf "dns.cidrs[%d]" $i) $cidr $pattern "addresses and the size of their network, as 10.96.0.10/32") }}
{{- end }}
{{- end }}

{{- define "switchyard.refusedSizes" -}}
{{- $sizes := dict "weights.size" .Values.weights.size "redis.size" .Values.redis.size }}
{{- if .Values.ledger.size }}{{ $_ := set $sizes "ledger.size" .Values.ledger.size }}{{ end }}
{{- range $type, $nodes := .Values.nodes }}
{{- if $nodes.memory }}{{ $_ := set $sizes (printf "nodes.%s.memory" $type) $nodes.memory }}{{ end }}
{{- if $nodes.shm }}{{ $_ := set $sizes (printf "nodes.%s.shm" $type) $nodes.shm }}{{ end }}
{{- include "switchyard.refusedPlacement" (list (printf "nodes.%s" $type) $nodes) }}
{{- if ne $type "cpu" }}{{ include "switchyard.typeOfGpu" (list $ (printf "nodes.%s" $type) $type) }}{{ end }}
{{- end }}
{{- range $place, $size := $sizes }}
{{- $number := default "100" (regexFind "^[1-9][0-9]*" $size) }}
{{- include "switchyard.matching" (list $place $size "^[1-9][0-9]{0,5}[MGT]i$" (printf "a number and Mi, Gi or Ti, as %sGi" $number)) }}
{{- end }}
{{- if and .Values.ledger.storageClass (not .Values.ledger.size) }}{{ fail "ledger.storageClass: without effect without ledger.size; write that, as 20Gi" }}{{ end }}
{{- range list "credentials" "serviceAccount" }}
{{- if and (get $.Values.ledger .) (not $.Values.ledger.url) (not $.Values.serveConfig) }}{{ fail (printf "ledger.%s: without effect without ledger.url; write the bucket there" .) }}{{ end }}
{{- end }}
{{- with .Values.ledger.url }}
{{- include "switchyard.matching" (list "ledger.url" . `^(s3|gs|abfs)://[^ /][^ ]*$` "a bucket, as s3://bucket/ledger, or for a volume ledger.size instead") }}
{{- if $.Values.ledger.size }}{{ fail "ledger.size: without effect beside ledger.url; remove one" }}{{ end }}
{{- if $.Values.serveConfig }}{{ fail "ledger.url: without effect beside serveConfig; write it there" }}{{ end }}
{{- end }}
{{- include "switchyard.refusedPlacement" (list "head" .Values.head) }}
{{- include "switchyard.refusedPlacement" (list "routers" .Values.routers) }}
{{- if gt (int .Values.routers.min) (int .Values.routers.max) }}
{{- fail (printf "routers.min: %d is more than routers.max, %d; raise that, or lower this" (int .Values.routers.min) (int .Values.routers.max)) }}
{{- end }}
{{- end }}

{{- /* (list PLACE VALUES): nodeSelector and tolerations that the API server refuses, and with them every pod. */}}
{{- define "switchyard.refusedPlacement" -}}
{{- $place := index . 0 }}
{{- range $key, $value := default (dict) (get (index . 1) "nodeSelector") }}
{{- include "switchyard.label" (list (printf "%s.nodeSelector" $place) $key $value) }}
{{- end }}
{{- range $i, $toleration := default (list) (get (index . 1) "tolerations") }}
{{- $at := printf "%s.tolerations[%d]" $place $i }}
{{- $exists := eq "Exists" (default "Equal" (get $toleration "operator")) }}
{{- if get $toleration "key" }}{{ include "switchyard.label" (list $at (get $toleration "key") (default "" (get $toleration "value"))) }}
{{- else if not $exists }}{{ fail (printf "%s: there is no key; write the taint's, or operator: Exists alone, for every taint" $at) }}
{{- end }}
{{- if and $exists (get $toleration "value") }}{{ fail (printf "%s.value: none with operator: Exists; remove it, or write operator: Equal" $at) }}{{ end }}
{{- if and (hasKey $toleration "tolerationSeconds") (ne "NoExecute" (default "" (get $toleration "effect"))) }}
{{- fail (printf "%s.tolerationSeconds: only with effect: NoExecute; write that, or remove it" $at) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* (list PLACE KEY VALUE): refuses what is no label of a node. */}}
{{- define "switchyard.label" -}}
{{- $place := index . 0 }}{{ $key := index . 1 }}{{ $value := index . 2 }}
{{- $part := `[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?` }}
{{- include "switchyard.matching" (list $place $key (printf `^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?%s$` $part) "a label's name, as pool or example.com/pool") }}
{{- include "switchyard.matching" (list (printf "%s.%s" $place $key) $value (printf `^(%s)?$` $part) "a label's value: at most 63 letters, digits, hyphens, dots and underscores") }}
{{- end }}

{{- /* (list $ PLACE TYPE): refuses a type of GPU that Ray does not know. The longest known name in a wrong one is meant. */}}
{{- define "switchyard.typeOfGpu" -}}
{{- $root := index . 0 }}{{ $facts := fromYaml ($root.Files.Get "files/gpus.yaml") }}
{{- $types := concat (keys $facts.gpus | sortAlpha) $facts.others }}{{ $type := index . 2 }}
{{- if not (has $type $types) }}
{{- $meant := "" }}
{{- range $types }}{{ if and (contains (lower .) (lower $type)) (gt (len .) (len $meant)) }}{{ $meant = . }}{{ end }}{{ end }}
{{- fail (printf "%s: '%s' is no GPU's name in Ray; write %s" (index . 1) $type (default (join ", " $types) $meant)) }}
{{- end }}
{{- end }}

{{- define "switchyard.refusedModels" -}}
{{- if not .Values.models }}
{{- fail "models: there is none; add one, as {name: qwen3-8b, source: \"hf:Qwen/Qwen3-8B\", gpu: L4, replicas: 1-8}" }}
{{- end }}
{{- include "switchyard.refusedEngine" (list "engine" .Values.engine) }}
{{- $places := dict "router" "the router" "experiments" "the controller of experiments" }}{{ $tasks := dict }}
{{- range $i, $model := .Values.models }}
{{- $at := printf "models[%d]" $i }}
{{- include "switchyard.matching" (list (printf "%s.name" $at) $model.name `^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$` (printf "at most 42 small letters, digits and hyphens, as %s" (include "switchyard.asName" (trunc 42 $model.name)))) }}
{{- if hasKey $places $model.name }}
{{- fail (printf "%s.name: '%s' is the name of %s, too; rename one" $at $model.name (get $places $model.name)) }}
{{- end }}
{{- $_ := set $places $model.name $at }}
{{- include "switchyard.refusedSource" (list $at $model.source) }}
{{- if hasKey $model "gpu" }}{{ include "switchyard.typeOfGpu" (list $ (printf "%s.gpu" $at) $model.gpu) }}
{{- else if hasKey $model "gpus" }}
{{- fail (printf "%s.gpus: the model has no gpu, so it runs on CPUs; write gpu, as L4, or leave gpus out" $at) }}
{{- end }}
{{- $engine := default (dict) $model.engine }}
{{- include "switchyard.refusedEngine" (list (printf "%s.engine" $at) $engine) }}
{{- $product := mul (default (default 1 $model.gpus) (get $engine "tensor_parallel_size")) (default 1 (get $engine "pipeline_parallel_size")) }}
{{- if and (hasKey $model "gpus") (ne (int $product) (int $model.gpus)) }}
{{- fail (printf "%s.gpus: %d, but the engine's tensor_parallel_size times its pipeline_parallel_size is %d; leave gpus out" $at (int $model.gpus) (int $product)) }}
{{- end }}
{{- include "switchyard.refusedReplicas" (list $at (toString $model.replicas)) }}
{{- $endpoint := include "switchyard.endpoint" $model }}
{{- include "switchyard.matching" (list (printf "%s.endpoint" $at) $endpoint `^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$` (printf "at most 63 small letters, digits, dots and hyphens, as %s" (include "switchyard.asName" $endpoint))) }}
{{- $task := default "chat" $model.task }}
{{- if ne $task (default $task (get $tasks $endpoint)) }}
{{- fail (printf "%s.task: %s, but its endpoint %s is for %s; write another endpoint" $at $task $endpoint (get $tasks $endpoint)) }}
{{- end }}
{{- $_ := set $tasks $endpoint $task }}
{{- end }}
{{- range $endpoint, $_ := $tasks }}
{{- if hasKey $places $endpoint }}
{{- fail (printf "%s.name: '%s' is an endpoint's name, too; clients could mean either, so rename one" (get $places $endpoint) $endpoint) }}
{{- end }}
{{- end }}
{{- include "switchyard.refusedRouter" . }}
{{- end }}

{{- /* (list MODEL SOURCE) */}}
{{- define "switchyard.refusedSource" -}}
{{- $source := index . 1 }}{{ $hub := "[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(@[A-Za-z0-9._-]+)?" }}
{{- $instead := "hf:ORGANISATION/NAME@REVISION, package:NAME, or a directory below /models" }}
{{- $id := regexReplaceAll "^(https?://huggingface.co/|[hH][fF]:/*)" $source "" }}
{{- if regexMatch (printf "^%s$" $hub) $id }}{{ $instead = printf "hf:%s" $id }}{{ end }}
{{- include "switchyard.matching" (list (printf "%s.source" (index . 0)) $source (printf "^(hf:%s|package:[A-Za-z0-9._-]+|/models(/[A-Za-z0-9._-]+)+(@[A-Za-z0-9._-]+)?)$" $hub) $instead) }}
{{- if regexMatch `(^|[:/])\.\.?(/|$)` $source }}
{{- fail (printf "%s.source: '%s': write the path without . and .." (index . 0) $source) }}
{{- end }}
{{- end }}

{{- /* (list MODEL REPLICAS) */}}
{{- define "switchyard.refusedReplicas" -}}
{{- $place := printf "%s.replicas" (index . 0) }}{{ $replicas := index . 1 }}
{{- if eq "0" $replicas }}{{ fail (printf "%s: 0 never serves; write 0-1, which starts one for a request" $place) }}{{ end }}
{{- include "switchyard.matching" (list $place $replicas `^([1-9][0-9]{0,3}|(0|[1-9][0-9]{0,3})-[1-9][0-9]{0,3})$` "a number, or the least and the most, as 1-8") }}
{{- $ends := splitList "-" $replicas }}
{{- if gt (int (index $ends 0)) (int (last $ends)) }}
{{- fail (printf "%s: '%s': write %s-%s" $place $replicas (last $ends) (index $ends 0)) }}
{{- end }}
{{- end }}

{{- /* Who may call, and each endpoint's traffic, with what `router` says of them. */}}
{{- define "switchyard.refusedRouter" -}}
{{- $router := fromJson (include "switchyard.router" .) }}
{{- include "switchyard.refusedCallers" $router }}
{{- range $name, $endpoint := $router.endpoints }}
{{- $behind := dict "fallback" (default (list) (get $endpoint "fallback")) }}
{{- with get $endpoint "mirror" }}{{ $_ := set $behind "mirror.deployment" (list .deployment) }}{{ end }}
{{- range $place, $listed := $behind }}
{{- range $listed }}{{ include "switchyard.refusedDeployment" (list $router $name $place .) }}{{ end }}
{{- end }}
{{- $sum := 0 }}{{ $shares := list }}{{ $without := list }}
{{- $traffic := default (dict) (get $endpoint "traffic") }}
{{- range $deployment, $share := $traffic }}
{{- if not (hasKey $router.deployments $deployment) }}
{{- fail (printf "router.endpoints.%s.traffic.%s: no model has this name" $name $deployment) }}
{{- end }}
{{- $sum = add $sum (int $share) }}{{ $shares = append $shares (printf "%s %d" $deployment (int $share)) }}
{{- end }}
{{- range $.Values.models }}
{{- if and (eq $name (include "switchyard.endpoint" .)) (not (hasKey . "share")) (not (hasKey $traffic .name)) }}{{ $without = append $without .name }}{{ end }}
{{- end }}
{{- if and (not $shares) (gt (len $without) 1) }}
{{- fail (printf "models: no model of the endpoint %s has a share; write share for each, 100 in all" $name) }}
{{- end }}
{{- if ne 100 (int $sum) }}
{{- $instead := printf "take away %d" (sub $sum 100) }}
{{- if lt (int $sum) 100 }}{{ $instead = printf "add %d" (sub 100 $sum) }}{{ end }}
{{- if and (lt (int $sum) 100) (eq 1 (len $without)) }}{{ $instead = printf "write share: %d for %s" (sub 100 $sum) (index $without 0) }}{{ end }}
{{- fail (printf "models: the shares of the endpoint %s sum to %d (%s), not to 100: %s" $name $sum (join ", " $shares) $instead) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* (list ROUTER ENDPOINT PLACE NAME): refuses what cannot answer for the endpoint. */}}
{{- define "switchyard.refusedDeployment" -}}
{{- $router := index . 0 }}{{ $endpoint := get $router.endpoints (index . 1) }}{{ $name := index . 3 }}
{{- $at := printf "router.endpoints.%s.%s: %s" (index . 1) (index . 2) $name }}
{{- if not (hasKey $router.deployments $name) }}
{{- fail (printf "%s: no model has this name; write one of %s" $at (join ", " (keys $router.deployments | sortAlpha))) }}
{{- end }}
{{- $tasks := default $endpoint.tasks (get (get $router.deployments $name) "tasks") }}
{{- range $endpoint.tasks }}
{{- if not (has . $tasks) }}{{ fail (printf "%s is for %s, but the endpoint for %s; write another model" $at (join ", " $tasks) (join ", " $endpoint.tasks)) }}{{ end }}
{{- end }}
{{- end }}

{{- /* The callers that the router's configuration names, and the endpoints that it gives them. */}}
{{- define "switchyard.refusedCallers" -}}
{{- $router := . }}{{ $endpoints := join ", " (keys $router.endpoints | sortAlpha) }}
{{- range $task, $endpoint := $router.defaults }}
{{- if not (hasKey $router.endpoints $endpoint) }}{{ fail (printf "router.defaults.%s: '%s' is no endpoint; write one of %s" $task $endpoint $endpoints) }}{{ end }}
{{- end }}
{{- with $router.access }}
{{- $access := . }}
{{- if not (or .keys_file .oidc .allow_anonymous) }}{{ fail "router.access: everyone could call; write keys_file, oidc or allow_anonymous: true" }}{{ end }}
{{- $roles := dict "managers" (default (list) .managers) "router.access.viewers" (default (list) .viewers) }}
{{- range $endpoint, $listed := default (dict) .operators }}
{{- if not (hasKey $router.endpoints $endpoint) }}{{ fail (printf "router.access.operators.%s: no endpoint has this name; write one of %s" $endpoint $endpoints) }}{{ end }}
{{- $_ := set $roles (printf "router.access.operators.%s" $endpoint) $listed }}
{{- end }}
{{- range $endpoint, $_ := default (dict) (get (default (dict) .limits) "endpoints") }}
{{- if not (or (hasKey $router.endpoints $endpoint) (hasKey $router.deployments $endpoint)) }}
{{- fail (printf "router.access.limits.endpoints.%s: no endpoint has this name; write one of %s" $endpoint $endpoints) }}
{{- end }}
{{- end }}
{{- range $place, $listed := $roles }}
{{- range $name := $listed }}
{{- $hasKeys := or $access.keys_file $access.issue_keys }}
{{- if eq "anonymous" $name }}{{ fail (printf "%s: 'anonymous' would give everyone the role; remove it" $place) }}{{ end }}
{{- if and (hasPrefix "key:" $name) (not $hasKeys) }}{{ fail (printf "%s: '%s', but there are no keys; write keys_file in router.access, or remove it" $place $name) }}{{ end }}
{{- if and (hasPrefix "oidc:" $name) (not $access.oidc) }}{{ fail (printf "%s: '%s', but there are no tokens; write oidc in router.access, or remove it" $place $name) }}{{ end }}
{{- if and $hasKeys $access.oidc (not (hasPrefix "key:" $name)) (not (hasPrefix "oidc:" $name)) }}
{{- fail (printf "%s: '%s' may be a key's name or a token's principal; write key:%s or oidc:%s" $place $name $name $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* (list PLACE ENGINE): sizes that vLLM takes, and with which no replica starts. */}}
{{- define "switchyard.refusedEngine" -}}
{{- $place := index . 0 }}{{ $engine := index . 1 }}
{{- if gt (int (get $engine "data_parallel_size")) 1 }}
{{- fail (printf "%s.data_parallel_size: a replica has one copy of the model; leave it out, and raise replicas" $place) }}
{{- end }}
{{- range list "prefill_context_parallel_size" "data_parallel_size_local" "nnodes" }}
{{- if gt (int (get $engine .)) 1 }}
{{- fail (printf "%s.%s: a replica has tensor_parallel_size times pipeline_parallel_size processors, and none more; leave it out" $place .) }}
{{- end }}
{{- end }}
{{- end }}
