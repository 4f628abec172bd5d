{{/* One pool of workers. Everything takes (dict "root" $ "role" "prefill" "pool" .Values.prefill). */}}

{{- define "baton.worker" -}}
{{- $root := .root -}}
{{- $full := include "baton.fullname" $root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $full }}-{{ .role }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels: {{- include "baton.labels" (dict "root" $root "role" .role) | nindent 4 }}
  annotations: {{- include "baton.replicasAnnotation" . | nindent 4 }}
spec:
  {{- with include "baton.replicas" . }}
  replicas: {{ . }}
  {{- end }}
  # A worker that cannot start leaves those of the revision before where they are.
  progressDeadlineSeconds: {{ add 120 (include "baton.workerStartSeconds" . | int) }}
  revisionHistoryLimit: 5
  selector:
    matchLabels: {{- include "baton.selector" (dict "root" $root "role" .role) | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: {{ .pool.update.maxSurge }}, maxUnavailable: {{ .pool.update.maxUnavailable }}}
  template:
    metadata: {{- include "baton.podMetadata" . | nindent 6 }}
    spec: {{- include "baton.workerSpec" . | nindent 6 }}
{{- end -}}

{{- define "baton.workerSpec" -}}
{{- $root := .root -}}
{{- $gpus := gt (include "baton.gpus" .pool | int) 0 -}}
{{- include "baton.podCommon" $root }}
{{- if $root.Values.worker.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
# The drain, what it announces before and says after it, and room.
terminationGracePeriodSeconds: {{ add 15 (int $root.Values.worker.drainTimeoutSeconds) }}
{{- include "baton.placement" (dict "root" $root "role" .role "pool" .pool "revision" "pod-template-hash") | nindent 0 }}
{{- include "baton.initContainers" $root | nindent 0 }}
containers:
  - name: {{ .role }}
    image: {{ include "baton.image" $root }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args: {{- include "baton.workerArgs" . | nindent 6 }}
    env:
      {{- include "baton.downwardEnv" $root | nindent 6 }}
      {{- if include "baton.threadsOfLimit" .pool }}
      - name: CPU_LIMIT
        valueFrom: {resourceFieldRef: {containerName: {{ .role }}, resource: limits.cpu}}
      {{- end }}
      {{- if $gpus }}
      - {name: BATON_HOME, value: /var/cache/baton}
      {{- end }}
      {{- with .pool.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: grpc, containerPort: {{ .pool.ports.grpc }}}
      - {name: kv, containerPort: {{ .pool.ports.kv }}}
      - {name: admin, containerPort: {{ .pool.ports.admin }}}
    {{- include "baton.probes" (dict "startSeconds" (include "baton.workerStartSeconds" .)) | nindent 4 }}
    resources: {{- include "baton.workerResources" .pool | nindent 6 }}
    {{- $capabilities := ternary (list "IPC_LOCK") (list) (gt (int .pool.rdma.count) 0) }}
    securityContext: {{- include "baton.containerSecurity" (dict "capabilities" $capabilities) | nindent 6 }}
    volumeMounts:
      {{- include "baton.secretMounts" $root | nindent 6 }}
      {{- if ne $root.Values.model.source "image" }}
      - {name: models, mountPath: /models, readOnly: true}
      {{- end }}
      {{- if $gpus }}
      - {name: cache, mountPath: /var/cache/baton}
      {{- end }}
      {{- if .pool.shmSize }}
      - {name: shm, mountPath: /dev/shm}
      {{- end }}
      {{- if .pool.hugePages.amount }}
      - {name: huge-pages, mountPath: /dev/hugepages}
      {{- end }}
      {{- with .pool.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  {{- include "baton.secretVolumes" $root | nindent 2 }}
  {{- include "baton.modelVolume" $root | nindent 2 }}
  {{- if $gpus }}
  # Which algorithm multiplies what, timed by the first container of this pod and read by the next.
  - name: cache
    emptyDir: {sizeLimit: 16Mi}
  {{- end }}
  {{- with .pool.shmSize }}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ . | quote }}}
  {{- end }}
  {{- if .pool.hugePages.amount }}
  - name: huge-pages
    emptyDir: {medium: HugePages-{{ .pool.hugePages.pageSize }}}
  {{- end }}
  {{- with .pool.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* On a GPU products are timed too, after another worker there has timed its own. */}}
{{- define "baton.workerStartSeconds" -}}
{{- add (include "baton.startSeconds" .root | int) (ternary 60 0 (gt (include "baton.gpus" .pool | int) 0)) -}}
{{- end -}}

{{/* With a CPU limit the threads are as many as it allows, rounded up. */}}
{{- define "baton.threadsOfLimit" -}}
{{- if and (eq (int .threads) 0) (dig "limits" "cpu" "" .resources) }}true{{ end -}}
{{- end -}}

{{- define "baton.workerArgs" -}}
{{- $w := .root.Values.worker -}}
{{- $any := include "baton.anyAddress" .root -}}
- {{ .role }}
- --router={{ include "baton.routers" .root }}
- --listen={{ $any }}:{{ .pool.ports.grpc }}
- --kv-listen={{ $any }}:{{ .pool.ports.kv }}
- --admin={{ $any }}:{{ .pool.ports.admin }}
- --advertise={{ include "baton.podAddress" .root }}
- --worker-id=$(POD_NAME)
- --model={{ include "baton.modelPath" .root }}
- --device={{ .pool.device }}
{{- if include "baton.threadsOfLimit" .pool }}
- --threads=$(CPU_LIMIT)
{{- else }}
- --threads={{ int .pool.threads }}
{{- end }}
{{- if gt (int .pool.gpu.count) 1 }}
- --tensor-parallel={{ int .pool.gpu.count }}
{{- end }}
- --isa={{ $w.isa }}
- --transport={{ $w.transport }}
- --kv-dtype={{ $w.kvDtype }}
- --kv-memory={{ include "baton.bytes" .pool.kvMemory }}
- --max-context={{ int $w.maxContext }}
- --prefix-cache={{ ternary "on" "off" $w.prefixCache }}
- --drain-timeout={{ int $w.drainTimeoutSeconds }}
{{ include "baton.secretArgs" .root }}
{{- range .pool.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The values' resources with GPUs, RDMA devices and huge pages, which must be limits. */}}
{{- define "baton.workerResources" -}}
{{- $extra := dict -}}
{{- if and (gt (int .gpu.count) 0) .gpu.resource -}}{{- $_ := set $extra .gpu.resource (int .gpu.count) -}}{{- end -}}
{{- if gt (int .rdma.count) 0 -}}{{- $_ := set $extra .rdma.resource (int .rdma.count) -}}{{- end -}}
{{- with .hugePages.amount -}}{{- $_ := set $extra (printf "hugepages-%s" $.hugePages.pageSize) . -}}{{- end -}}
{{- $resources := deepCopy .resources -}}
{{- $_ := set $resources "limits" (merge $extra (default dict $resources.limits)) -}}
{{- include "baton.resources" (dict "resources" $resources "resourceClaims" .resourceClaims) -}}
{{- end -}}

{{- define "baton.initContainers" -}}
{{- $m := .Values.model -}}
{{- if or (eq $m.source "pull") $m.check }}
initContainers:
  {{- if eq $m.source "pull" }}
  - name: pull-model
    image: {{ include "baton.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [pull, {{ $m.pull.name | quote }}]
    env:
      - {name: BATON_HOME, value: /models}
      {{- with $m.pull.endpoint }}
      - {name: HF_ENDPOINT, value: {{ . | quote }}}
      {{- end }}
      {{- with $m.pull.tokenSecret.name }}
      - name: HF_TOKEN
        valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $m.pull.tokenSecret.key | quote }}}}
      {{- end }}
      {{- with $.Values.initContainers.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    resources: {{- toYaml $.Values.initContainers.resources | nindent 6 }}
    securityContext: {{- include "baton.containerSecurity" (dict) | nindent 6 }}
    volumeMounts:
      - {name: models, mountPath: /models}
      {{- with $.Values.initContainers.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  {{- end }}
  {{- if $m.check }}
  # Refuses what the worker would refuse, and says so in its own log.
  - name: check-model
    image: {{ include "baton.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [inspect, {{ include "baton.modelPath" . | quote }}]
    resources: {{- toYaml $.Values.initContainers.resources | nindent 6 }}
    securityContext: {{- include "baton.containerSecurity" (dict) | nindent 6 }}
    {{- if ne $m.source "image" }}
    volumeMounts:
      - {name: models, mountPath: /models, readOnly: true}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "baton.modelVolume" -}}
{{- $m := .Values.model -}}
{{- if eq $m.source "hostPath" -}}
- name: models
  hostPath: {path: {{ $m.hostPath.folder | quote }}, type: Directory}
{{- else if eq $m.source "pvc" -}}
- name: models
  persistentVolumeClaim: {claimName: {{ $m.pvc.claimName | quote }}}
{{- else if and (eq $m.source "pull") $m.pull.claimName -}}
- name: models
  persistentVolumeClaim: {claimName: {{ $m.pull.claimName | quote }}}
{{- else if eq $m.source "pull" -}}
- name: models
  emptyDir: {}
{{- end -}}
{{- end -}}
