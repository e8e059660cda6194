{{- define "vllm-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "vllm-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "vllm-operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "vllm-operator.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "vllm-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vllm-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "vllm-operator.labels" -}}
{{ include "vllm-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "vllm-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "vllm-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: say which account the operator uses, or let the chart create one (serviceAccount.create)" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "vllm-operator.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .Chart.AppVersion $image.tag }}{{ end }}
{{- end }}

{{- /* What the operator may do in a namespace. A test compares this with what it does. */}}
{{- define "vllm-operator.rules" -}}
- apiGroups: [vllm-operator.dev]
  resources: [vllmdeployments]
  verbs: [get, list, watch]
- apiGroups: [vllm-operator.dev]
  resources: [vllmpresets]
  verbs: [list, watch]
- apiGroups: [vllm-operator.dev]
  resources: [vllmdeployments/status]
  verbs: [patch]
- apiGroups: [vllm-operator.dev]
  resources: [vllmdeployments/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, create, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch, delete]
{{- if (default dict .Values.integrations).gateway }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if (default dict .Values.integrations).keda }}
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if .Values.rbac.readTokens }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end }}

{{- /* The ConfigMaps with rules and signatures that the operator reads, as NAMESPACE/NAME: those of the chart, or named ones. */}}
{{- define "vllm-operator.knowledge" -}}
{{- $root := . }}
{{- range $kind, $own := dict "rules" .Values.extraRules "signatures" .Values.extraSignatures "instance_types" list }}
{{- $setting := printf "%s_config_map" $kind }}
{{- $named := get $root.Values.settings $setting }}
{{- if and $own $named }}
{{- fail (printf "settings.%s names a ConfigMap, and extra%s makes one: use one of them" $setting (title $kind)) }}
{{- end }}
{{- if $own }}
{{ $root.Release.Namespace }}/{{ include "vllm-operator.fullname" $root }}-{{ $kind }}
{{- else if $named }}
{{ contains "/" $named | ternary $named (printf "%s/%s" $root.Release.Namespace $named) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What it may read of the cluster, to know the GPUs and the presets for all namespaces. */}}
{{- define "vllm-operator.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
- apiGroups: [resource.k8s.io]
  resources: [resourceslices]
  verbs: [list]
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [list]
- apiGroups: [vllm-operator.dev]
  resources: [clustervllmpresets]
  verbs: [list, watch]
{{- if not .Values.namespaces }}
# which devices are free; with a list of namespaces it does not ask
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [list]
{{- end }}
{{- end }}
