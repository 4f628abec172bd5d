{{/* State that an upgrade finds in the cluster. `lookup` gives nothing where there is none to ask (`helm
     template`) and nothing before the first install. */}}

{{/* The workload of one role as JSON, "{}" without: (dict "root" $ "role" "decode") */}}
{{- define "baton.live" -}}
{{- $kind := ternary "StatefulSet" "Deployment" (eq .role "router") -}}
{{- lookup "apps/v1" $kind .root.Release.Namespace (printf "%s-%s" (include "baton.fullname" .root) .role) | toJson -}}
{{- end -}}

{{- define "baton.hasCluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}true{{ end -}}
{{- end -}}

{{/* Who owns what of a workload that baton.live gave, as JSON: serverSide, whether helm applies it by
     server-side apply; replicas and replicasOfOthers, whether helm and whether somebody else set the
     number that it has; others, the managers beside helm with their fields. Whoever owns the selector is helm: it never changes after the
     install, and the name of the manager differs between the programs that use helm. */}}
{{- define "baton.owners" -}}
{{- $serverSide := false -}}
{{- $replicas := false -}}
{{- $ofOthers := false -}}
{{- $others := list -}}
{{- range (dig "metadata" "managedFields" list .) -}}
{{- $spec := dig "fieldsV1" "f:spec" dict . -}}
{{- if hasKey $spec "f:selector" -}}
{{- if eq .operation "Apply" -}}{{- $serverSide = true -}}{{- end -}}
{{- if hasKey $spec "f:replicas" -}}{{- $replicas = true -}}{{- end -}}
{{- else if ne (default "" .subresource) "status" -}}
{{- if hasKey $spec "f:replicas" -}}{{- $ofOthers = true -}}{{- end -}}
{{- $others = append $others (dict "manager" .manager "fields" .fieldsV1) -}}
{{- end -}}
{{- end -}}
{{- dict "serverSide" $serverSide "replicas" $replicas "replicasOfOthers" $ofOthers "others" $others | toJson -}}
{{- end -}}

{{/* The number of pods to ask for, "" for none: (dict "root" $ "role" "decode" "pool" .Values.decode)

     A scaler's number stays. It is named while helm is its owner, since helm would otherwise remove
     the field, and one pod be left; and where helm does not apply by server-side apply, since helm
     then removes whatever the manifest before had. Without a workload: minReplicas, and nothing
     where there is no cluster, since the manifest may be for another tool that applies it again and
     again.
     Else a number that somebody set in the cluster stays until `replicas` of the values is another
     one than at the last upgrade. */}}
{{- define "baton.replicas" -}}
{{- $live := include "baton.live" . | fromJson -}}
{{- $owners := include "baton.owners" $live | fromJson -}}
{{- if include "baton.isAutoscaled" .pool -}}
{{- if $live -}}
{{- if or $owners.replicas (not $owners.serverSide) -}}
{{- int $live.spec.replicas -}}
{{- end -}}
{{- else if include "baton.hasCluster" . -}}
{{- max 1 (int .pool.autoscaling.minReplicas) -}}
{{- end -}}
{{- else -}}
{{- $before := dig "metadata" "annotations" "baton/replicas" "" $live -}}
{{- if and $owners.replicasOfOthers (or (not $before) (eq $before (toString (int .pool.replicas)))) -}}
{{- int $live.spec.replicas -}}
{{- else -}}
{{- int .pool.replicas -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* `replicas` of the values, for the next upgrade. */}}
{{- define "baton.replicasAnnotation" -}}
baton/replicas: {{ int .pool.replicas | quote }}
{{- end -}}

{{/* Fields that another manager owns with another value than the one wanted, one a line:
     (dict "fields" FIELDS_OF_THE_MANAGER "live" OBJECT "want" OBJECT "path" "") */}}
{{- define "baton.conflicts" -}}
{{- range $key, $inner := .fields -}}
{{- if hasPrefix "f:" $key -}}
{{- $name := trimPrefix "f:" $key -}}
{{- if and (kindIs "map" $.want) (kindIs "map" $.live) -}}
{{- if and (hasKey $.want $name) (hasKey $.live $name) -}}
{{- $in := dict "fields" $inner "live" (index $.live $name) "want" (index $.want $name) "path" (printf "%s.%s" $.path $name | trimPrefix ".") -}}
{{- if $inner -}}
{{- include "baton.conflicts" $in -}}
{{- else if not (include "baton.sameValue" $in) -}}
{{- printf "%s is %s and would be %s\n" $in.path (toJson $in.live) (toJson $in.want) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- else if and (hasPrefix "k:" $key) (kindIs "slice" $.want) (kindIs "slice" $.live) -}}
{{- $id := trimPrefix "k:" $key | fromJson -}}
{{- $in := dict "fields" $inner "path" (printf "%s[%s]" $.path (values $id | sortAlpha | join ",")) -}}
{{- range $side := list "live" "want" -}}
{{- range $item := index $ $side -}}
{{- $matches := true -}}
{{- range $k, $v := $id -}}
{{- if ne (toString (index $item $k)) (toString $v) -}}{{- $matches = false -}}{{- end -}}
{{- end -}}
{{- if $matches -}}{{- $_ := set $in $side $item -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $in "live") (hasKey $in "want") -}}
{{- include "baton.conflicts" $in -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "1", 1 and "1000m" are the same: the API server keeps quantities in a spelling of its own. */}}
{{- define "baton.sameValue" -}}
{{- $quantity := "^([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+|[KMGTPE]i|[numkMGTPE])?$" -}}
{{- if eq (toJson .live) (toJson .want) -}}
true
{{- else if and (regexMatch $quantity (toString .live)) (regexMatch $quantity (toString .want)) -}}
{{- if eq (include "baton.number" .live) (include "baton.number" .want) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* helm 4 applies object by object: one that another tool has changed would stay as it is while the
     others get, for example, a new secret. So nothing is changed at all: (dict "root" $ "role" "decode"
     "want" OBJECT) */}}
{{- define "baton.validateLive" -}}
{{- $live := include "baton.live" . | fromJson -}}
{{- $owners := include "baton.owners" $live | fromJson -}}
{{- if $owners.serverSide -}}
{{- range $owners.others -}}
{{- $conflicts := include "baton.conflicts" (dict "fields" .fields "live" $live "want" $.want "path" "") | trim -}}
{{- if $conflicts -}}
{{- $where := printf "%s %s" $live.kind $live.metadata.name -}}
{{- fail (printf "%s was changed by %q: %s. helm 4 would update everything but this, and the roles would differ. Give the values what the cluster has, or the cluster what the values say (for example `kubectl scale %s/%s --replicas=N`), then upgrade again; with checkConflicts false and `helm upgrade --force-conflicts` the values win" $where .manager ($conflicts | replace "\n" "; ") (lower $live.kind) $live.metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
