{{/* Names, labels, addresses and sizes. */}}

{{- define "baton.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full := default $own .Values.fullnameOverride -}}
{{- /* A worker's id is the name of its pod: at most 63 characters with a role and the two suffixes of a
       Deployment, which leaves 36. A longer name is cut, and a hash of the whole keeps two apart. Release
       0.1.0 cut without a hash: a release that lives under such a name keeps it, since other names would be
       other objects. */ -}}
{{- $plain := $full | replace "." "-" -}}
{{- $cut := $plain | trunc 36 | trimSuffix "-" -}}
{{- if and (gt (len $plain) 36) (not (include "baton.owns" (dict "root" . "name" $cut))) -}}
{{- printf "%s-%s" ($plain | trunc 27 | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- else -}}
{{- $cut -}}
{{- end -}}
{{- end -}}

{{/* "true" when the routers of this release live under `name`: (dict "root" $ "name" "demo-baton"). Another
     release may have the same beginning, so the label decides. */}}
{{- define "baton.owns" -}}
{{- $found := lookup "apps/v1" "StatefulSet" .root.Release.Namespace (printf "%s-router" .name) -}}
{{- $labels := dig "metadata" "labels" dict (default dict $found) -}}
{{- if eq (dig "app.kubernetes.io/instance" "" $labels | toString) .root.Release.Name }}true{{ end -}}
{{- end -}}

{{/* (dict "root" $ "role" "prefill") */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
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

{{/* The number that a quantity of Kubernetes ("1e3", "500m", "1Ki", "0.5", 2) or a size of Baton
     ("94MiB") stands for. */}}
{{- define "baton.number" -}}
{{- $text := toString . | trimSuffix "B" -}}
{{- if regexMatch "^[0-9.]+[eE][-+]?[0-9]+$" $text -}}
{{- float64 $text -}}
{{- else -}}
{{- $units := dict "" 1.0 "n" 0.000000001 "u" 0.000001 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $digits := regexFind "^[0-9.]+" $text -}}
{{- mulf (float64 $digits) (get $units (trimPrefix $digits $text)) -}}
{{- end -}}
{{- end -}}

{{- define "baton.mib" -}}
{{- divf (include "baton.number" . | float64) 1048576.0 -}}
{{- end -}}

{{/* A size as the flags of the binary spell it: "2GiB" as it is, "2Gi" and "2e9" in bytes. */}}
{{- define "baton.bytes" -}}
{{- if hasSuffix "B" (toString .) -}}
{{- . -}}
{{- else -}}
{{- printf "%.0fB" (include "baton.number" . | float64) -}}
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
{{- if ne (dig "autoscaling" "kind" "none" .) "none" }}true{{ end -}}
{{- end -}}

{{/* The roles that this release has, with commas. */}}
{{- define "baton.roles" -}}
router,{{ if ne .Values.router.mode "aggregated" }}prefill,{{ end }}decode
{{- end -}}

{{/* Label matchers of Prometheus for the pods of one role of this release: (dict "root" $ "role" "decode").
     The endings are those of a StatefulSet and of a Deployment, so that the pods of a release whose name
     begins like this one's do not match. */}}
{{- define "baton.series" -}}
{{- $ending := ternary "[0-9]+" "[0-9a-z]+(-[0-9a-z]+)?" (eq .role "router") -}}
namespace="{{ .root.Release.Namespace }}",pod=~"{{ include "baton.fullname" .root }}-{{ .role }}-{{ $ending }}"
{{- end -}}

{{/* GPUs of one worker: gpu.count, or at least one where its resource claims bring them. */}}
{{- define "baton.gpus" -}}
{{- if gt (int .gpu.count) 0 -}}
{{- int .gpu.count -}}
{{- else -}}
{{- ternary 1 0 (and (eq .device "cuda") (not (empty .resourceClaims))) -}}
{{- end -}}
{{- end -}}
