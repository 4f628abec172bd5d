{{/* What pods of all roles have in common. */}}

{{- define "baton.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* (dict "capabilities" (list ...)) */}}
{{- define "baton.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with .capabilities }}
  add: {{ toJson . }}
  {{- end }}
{{- end -}}

{{/* (dict "root" $ "port" "admin" "startSeconds" 60). The admin port opens when the start is done; the
     loop that /livez watches may stand still for 10 s before it says no. */}}
{{- define "baton.probes" -}}
startupProbe:
  httpGet: {path: /startupz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ divf (float64 .startSeconds) 2.0 | ceil | int }}
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{- define "baton.downwardEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{- define "baton.secretArgs" -}}
- --cluster-secret-file=/etc/baton/cluster/secret
{{- if .Values.tls.existingSecret }}
- --tls-cert=/etc/baton/tls/tls.crt
- --tls-key=/etc/baton/tls/tls.key
- --tls-ca=/etc/baton/tls/ca.crt
{{- end }}
- --log-level={{ .Values.logLevel }}
{{- if ne .Values.logFormat "text" }}
- --log-format={{ .Values.logFormat }}
{{- end }}
{{- with .Values.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- with .Values.metricsAliases }}
- --metrics-aliases={{ join "," . }}
{{- end }}
{{- end -}}

{{- define "baton.secretMounts" -}}
- {name: cluster-secret, mountPath: /etc/baton/cluster, readOnly: true}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/baton/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "baton.secretVolumes" -}}
- name: cluster-secret
  secret: {secretName: {{ include "baton.clusterSecret" . | quote }}, defaultMode: 0440}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ .Values.tls.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "role" "prefill" "pool" .Values.prefill "revision" "pod-template-hash"): where the
     pods of one role may run. */}}
{{- define "baton.placement" -}}
{{- with .pool.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pool.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pool.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .pool.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .pool.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- if .pool.resourceClaims }}
resourceClaims:
  {{- range .pool.resourceClaims }}
  - {{ omit . "request" | toJson }}
  {{- end }}
{{- end }}
{{- if .pool.affinity }}
affinity: {{- toYaml .pool.affinity | nindent 2 }}
{{- else if and (ne .role "router") .root.Values.worker.placement.topologyKey }}
{{- $workers := dict "matchLabels" (include "baton.selector" (dict "root" .root "role" "") | fromYaml) "matchExpressions" (list (dict "key" "app.kubernetes.io/component" "operator" "In" "values" (list "prefill" "decode"))) }}
affinity:
  podAffinity:
    {{- if .root.Values.worker.placement.required }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: {{ .root.Values.worker.placement.topologyKey }}
        labelSelector: {{- toYaml $workers | nindent 10 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: {{ .root.Values.worker.placement.topologyKey }}
          labelSelector: {{- toYaml $workers | nindent 12 }}
    {{- end }}
{{- end }}
{{- if .pool.spread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "baton.selector" (dict "root" .root "role" .role) | nindent 8 }}
    matchLabelKeys: [{{ .revision }}]
{{- end }}
{{- end -}}

{{/* The values' resources of a container, with the claims of its pod. */}}
{{- define "baton.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- $claims := list -}}
{{- range .resourceClaims -}}
{{- $claims = append $claims (pick . "name" "request") -}}
{{- end -}}
{{- with $claims -}}
{{- $_ := set $resources "claims" . -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* (dict "root" $ "role" "router" "pool" .Values.router) */}}
{{- define "baton.podMetadata" -}}
{{- /* Not the chart's version: another chart that changes nothing of a pod restarts none. */}}
labels:
  {{- include "baton.selector" (dict "root" .root "role" .role) | nindent 2 }}
  {{- with .pool.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- /* Another secret rolls all pods: those of two do not pair. */}}
  {{- $secret := include "baton.clusterSecret" .root }}
  {{- with .root.Values.clusterSecret.value }}
  {{- $secret = printf "%s %s" $secret (trunc 8 (sha256sum .)) }}
  {{- end }}
  baton/cluster-secret: {{ $secret | quote }}
  {{- with .pool.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* A peer of a NetworkPolicy: (dict "root" $ "role" "router") */}}
{{- define "baton.peer" -}}
podSelector:
  matchLabels: {{- include "baton.selector" . | nindent 4 }}
{{- end -}}

{{- define "baton.podCommon" -}}
serviceAccountName: {{ include "baton.serviceAccount" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- include "baton.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
