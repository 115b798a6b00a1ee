{{- /* Labels of all objects, and of a pod of a component: (list $ COMPONENT). Names begin with the release's. */}}
{{- define "switchyard.labels" -}}
app.kubernetes.io/name: switchyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "switchyard.pods" -}}
{app.kubernetes.io/name: switchyard, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}

{{- define "switchyard.component" -}}
{app.kubernetes.io/name: switchyard, app.kubernetes.io/instance: {{ (index . 0).Release.Name }}, app.kubernetes.io/component: {{ index . 1 }}}
{{- end }}

{{- define "switchyard.secret" -}}{{ .Values.secrets.cluster | default .Release.Name | quote }}{{- end }}

{{/* (list $ REPOSITORY TAG TARGET): without a tag, the chart's own version of that image; a tag has no `+`. */}}
{{- define "switchyard.image" -}}
{{- $root := index . 0 }}{{ $tag := default (printf "%s-%s" (replace "+" "_" $root.Chart.AppVersion) (index . 3)) (index . 2) -}}
{{ quote (printf "%s:%s" (default $root.Values.image.repository (index . 1)) $tag) }}
{{- end }}

{{/* Of the Job: the routers' image fetches from a hub, and that of models in packages has them. */}}
{{- define "switchyard.weightsImage" -}}
{{- $packages := contains "package:" (include "switchyard.fetched" .) }}{{ $own := .Values.weights.image -}}
{{ include "switchyard.image" (list . $own.repository (default (ternary "" .Values.image.tag $packages) $own.tag) (ternary "weights" "router" $packages)) }}
{{- end }}

{{- define "switchyard.restricted" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "switchyard.pullSecrets" -}}
{{- range .Values.image.pullSecrets }}
- {name: {{ quote . }}}
{{- end }}
{{- end }}

{{- /* `head` or `routers` of the values: the nodes of their pods. */}}
{{- define "switchyard.onNodes" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toRawJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toRawJson . }}
{{- end }}
{{- end }}

{{- /* The head, Redis: nothing recovers without them. */}}
{{- define "switchyard.permanent" -}}
nodeAffinity:                 # not on spot nodes
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: cloud.google.com/gke-spot, operator: NotIn, values: ["true"]}
          - {key: eks.amazonaws.com/capacityType, operator: NotIn, values: [SPOT]}
          - {key: karpenter.sh/capacity-type, operator: NotIn, values: [spot]}
          - {key: kubernetes.azure.com/scalesetpriority, operator: NotIn, values: [spot]}
{{- end }}

{{- /* (list A B): the JSON of object A with B's entries, which win; objects in both are merged. */}}
{{- define "switchyard.merged" -}}
{{- $all := fromJson (toRawJson (index . 0)) }}
{{- range $key, $value := index . 1 }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $all $key)) }}
{{- $_ := set $all $key (fromJson (include "switchyard.merged" (list (get $all $key) $value))) }}
{{- else }}
{{- $_ := set $all $key $value }}
{{- end }}
{{- end }}
{{- toRawJson $all }}
{{- end }}

{{- /* Every Ray node's environment. The reasons: docs/reference/environment.md. */}}
{{- define "switchyard.environment" -}}
- {name: PYTHONPATH, value: /app}
- {name: RAY_SERVE_ENABLE_HA_PROXY, value: "1"}
- {name: RAY_SERVE_THROUGHPUT_OPTIMIZED, value: "1"}
- {name: RAY_SERVE_HAPROXY_BINARY_PATH, value: /app/bin/haproxy}
- {name: RAY_SERVE_HAPROXY_NBTHREAD, value: "2"}
- {name: RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S, value: "3600"}
- {name: RAY_SERVE_HAPROXY_RETRY_ON, value: conn-failure empty-response}
- {name: RAY_SERVE_HAPROXY_RETRIES, value: "1"}
- {name: RAY_SERVE_HAPROXY_TUNE_BUFSIZE, value: "65536"}
- {name: RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S, value: "90"}
- {name: RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S, value: "2"}
- {name: SWITCHYARD_INGRESS_METRICS_HOST, value: "*"}
- {name: RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS, value: "1"}
- {name: RAY_max_direct_call_object_size, value: "1048576"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: VLLM_NO_USAGE_STATS, value: "1"}
- {name: DO_NOT_TRACK, value: "1"}
- {name: HF_HUB_OFFLINE, value: "1"}
- {name: SWITCHYARD_MODELS, value: /models}
- {name: SWITCHYARD_AWAIT_WEIGHTS, value: "1"}
- {name: SWITCHYARD_LEDGER_BASE, value: /var/lib/switchyard}
{{- end }}

{{- /* What only the head and routers know: nodes of engines get the key derived from the internal one instead. */}}
{{- define "switchyard.routersSecrets" -}}
- name: SWITCHYARD_INTERNAL_KEY   # the master; nodes of engines get the key derived from it instead
  valueFrom: {secretKeyRef: {name: {{ include "switchyard.secret" . }}, key: internal-key}}
- name: SWITCHYARD_UNIT_SECRET
  valueFrom: {secretKeyRef: {name: {{ include "switchyard.secret" . }}, key: unit-secret}}
- name: SWITCHYARD_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "switchyard.secret" . }}, key: redis-password}}
- {name: REDIS_URL, value: "redis://:$(SWITCHYARD_REDIS_PASSWORD)@{{ .Release.Name }}-redis:6379/0"}
{{- end }}
