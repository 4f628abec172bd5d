{{/* Names, labels, addresses and sizes. */}}

{{- define "baton.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- /* A worker's id is the name of its pod, at most 63 characters with a Deployment's two suffixes. */ -}}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 36 | trimSuffix "-" -}}
{{- end -}}

{{/* (dict "root" $ "role" "prefill") */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .role }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "baton.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "baton.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "baton.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "baton.clusterSecret" -}}
{{- default (printf "%s-cluster-%v" (include "baton.fullname" .) (int .Values.clusterSecret.generation)) .Values.clusterSecret.existingSecret -}}
{{- end -}}

{{- define "baton.anyAddress" -}}
{{- ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") -}}
{{- end -}}

{{- define "baton.podAddress" -}}
{{- ternary "[$(POD_IP)]" "$(POD_IP)" (eq .Values.ipFamily "IPv6") -}}
{{- end -}}

{{/* Each router by its own name: a worker registers with all of them, whoever is behind the Service.
     Relative to the namespace, as the resolver of a pod completes them. */}}
{{- define "baton.routers" -}}
{{- $full := include "baton.fullname" . -}}
{{- $names := list -}}
{{- range $i := until (max (int .Values.router.replicas) (int .Values.router.maxReplicas) | int) -}}
{{- $names = append $names (printf "%s-router-%d.%s-routers:7070" $full $i $full) -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* MiB of "94MiB", "1GiB", "2Gi", "512M"; decimal units of Kubernetes count as such. */}}
{{- define "baton.mib" -}}
{{- $text := ternary (printf "%.0f" (float64 .)) (toString .) (kindIs "float64" .) -}}
{{- $units := dict "K" 0.00095367431640625 "M" 0.95367431640625 "G" 953.67431640625 "T" 953674.31640625 "Ki" 0.0009765625 "Mi" 1.0 "Gi" 1024.0 "Ti" 1048576.0 -}}
{{- $unit := regexFind "[KMGT]i?" $text -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" $text | float64 -}}
{{- if $unit -}}
{{- mulf $number (get $units $unit) -}}
{{- else -}}
{{- divf $number 1048576.0 -}}
{{- end -}}
{{- end -}}

{{/* Where the model is inside a pod. */}}
{{- define "baton.modelPath" -}}
{{- $m := .Values.model -}}
{{- if eq $m.source "image" -}}
{{ $m.path }}
{{- else if eq $m.source "pull" -}}
{{- $parts := trimPrefix "hf:" $m.pull.name | splitList "/" -}}
/models/models/{{ index $parts 0 }}--{{ index $parts 1 }}/{{ slice $parts 2 | join "/" }}
{{- else -}}
/models/{{ $m.path }}
{{- end -}}
{{- end -}}

{{/* Seconds that a start may take: a minute, and what reading and packing the weights takes. */}}
{{- define "baton.startSeconds" -}}
{{- $gib := divf (include "baton.mib" .Values.model.size | float64) 1024.0 -}}
{{- addf 60.0 (mulf $gib (float64 .Values.model.loadSecondsPerGiB)) | ceil | int -}}
{{- end -}}

{{- define "baton.isAutoscaled" -}}
{{- if ne .autoscaling.kind "none" }}true{{ end -}}
{{- end -}}
