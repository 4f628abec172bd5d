{{/* What a schema cannot say: combinations that could not run. Each message names the values, why, and
     what to set instead. */}}

{{- define "baton.validate" -}}
{{- include "baton.validateModel" . -}}
{{- include "baton.validateRouter" . -}}
{{- include "baton.validateSecret" . -}}
{{- include "baton.validatePolicy" . -}}
{{- range $role := splitList "," (include "baton.roles" .) -}}
{{- $in := dict "root" $ "role" $role "pool" (index $.Values $role) -}}
{{- include "baton.validateExtras" $in -}}
{{- if ne $role "router" -}}
{{- include "baton.validatePool" $in -}}
{{- include "baton.validateDevice" $in -}}
{{- include "baton.validateMemory" $in -}}
{{- include "baton.validateStorage" $in -}}
{{- include "baton.validateScaling" $in -}}
{{- end -}}
{{- end -}}
{{- if and .Values.checkConflicts (not (hasPrefix "v3." .Capabilities.HelmVersion.Version)) -}}
{{- range $role := splitList "," (include "baton.roles" .) -}}
{{- $in := dict "root" $ "role" $role "pool" (index $.Values $role) -}}
{{- $text := "" -}}
{{- if eq $role "router" }}{{ $text = include "baton.router" $ }}{{ else }}{{ $text = include "baton.worker" $in }}{{ end -}}
{{- include "baton.validateLive" (set $in "want" (fromYaml $text)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The chart refuses here what the API server would refuse in one object after it took others. */}}
{{- define "baton.validateExtras" -}}
{{- $env := list "POD_NAME" "POD_IP" "CPU_LIMIT" -}}
{{- if eq .role "router" }}{{ $env = list }}{{ else if gt (include "baton.gpus" .pool | int) 0 }}{{ $env = append $env "BATON_HOME" }}{{ end -}}
{{- range .pool.extraEnv -}}
{{- if has .name $env -}}
{{- fail (printf "%s.extraEnv: %s is set already, by the chart or twice" $.role .name) -}}
{{- end -}}
{{- $env = append $env .name -}}
{{- end -}}
{{- $volumes := list "cluster-secret" "tls" "models" "cache" "shm" "huge-pages" -}}
{{- range .pool.extraVolumes -}}
{{- if has .name $volumes -}}
{{- fail (printf "%s.extraVolumes: the name %s is taken, by the chart or twice" $.role .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $paths := list "/etc/baton/cluster" "/etc/baton/tls" "/models" "/var/cache/baton" "/dev/shm" "/dev/hugepages" -}}
{{- $own := list -}}
{{- range .pool.extraVolumes }}{{ $own = append $own .name }}{{ end -}}
{{- range .pool.extraVolumeMounts -}}
{{- if has (trimSuffix "/" .mountPath) $paths -}}
{{- fail (printf "%s.extraVolumeMounts: something is mounted at %s already, by the chart or twice" $.role .mountPath) -}}
{{- end -}}
{{- if not (has .name $own) -}}
{{- fail (printf "%s.extraVolumeMounts: %s.extraVolumes has no volume %q" $.role $.role .name) -}}
{{- end -}}
{{- $paths = append $paths (trimSuffix "/" .mountPath) -}}
{{- end -}}
{{- if ne .role "router" -}}
{{- range .root.Values.initContainers.extraVolumeMounts -}}
{{- if not (has .name $own) -}}
{{- fail (printf "initContainers.extraVolumeMounts: %s.extraVolumes has no volume %q" $.role .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $claims := list -}}
{{- range .pool.resourceClaims -}}
{{- if has .name $claims -}}
{{- fail (printf "%s.resourceClaims: two have the name %q" $.role .name) -}}
{{- end -}}
{{- $claims = append $claims .name -}}
{{- end -}}
{{- end -}}

{{- define "baton.validateModel" -}}
{{- $m := .Values.model -}}
{{- if not $m.size -}}
{{- fail "model.size is missing: the size of the model's file, e.g. 94MiB; probes and the check of memory are computed from it" -}}
{{- end -}}
{{- if and (ne $m.source "pull") (not $m.path) -}}
{{- fail (printf "model.path is missing: the .gguf file or model folder, with model.source %s" $m.source) -}}
{{- end -}}
{{- if and (eq $m.source "image") (not (hasPrefix "/" $m.path)) -}}
{{- fail (printf "model.path %q: with model.source image it is an absolute path" $m.path) -}}
{{- end -}}
{{- if and (eq $m.source "pvc") (not $m.pvc.claimName) -}}
{{- fail "model.pvc.claimName is missing: the claim that holds model.path" -}}
{{- end -}}
{{- if eq $m.source "pull" -}}
{{- if not (regexMatch "^hf:[^/]+/[^/]+/.+[.]gguf$" $m.pull.name) -}}
{{- fail (printf "model.pull.name %q is not hf:ORG/REPO/FILE.gguf; names of the catalogue come through pip, which the image does not have: put such a model on a volume (baton pull NAME) and use hostPath or pvc" $m.pull.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.validateRouter" -}}
{{- $r := .Values.router -}}
{{- if and (gt (int $r.maxReplicas) 0) (lt (int $r.maxReplicas) (int $r.replicas)) -}}
{{- fail (printf "router.maxReplicas %d is below router.replicas %d: workers would not register with the last ones" (int $r.maxReplicas) (int $r.replicas)) -}}
{{- end -}}
{{- if and $r.podDisruptionBudget.enabled (has (toString $r.podDisruptionBudget.maxUnavailable) (list "0" "0%")) -}}
{{- fail "router.podDisruptionBudget.maxUnavailable is 0: no node with a router could ever be drained" -}}
{{- end -}}
{{- if and .Values.tls.http (not .Values.tls.existingSecret) -}}
{{- fail "tls.http without tls.existingSecret: name the Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- range $api := list "http" "grpc" -}}
{{- $route := index $.Values.gatewayApi $api -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- fail (printf "gatewayApi.%s.enabled without gatewayApi.%s.parentRefs: name the Gateway that it hangs on" $api $api) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The values that need a metric while the policies let nobody scrape: "alerts.enabled, ...". */}}
{{- define "baton.unscraped" -}}
{{- $blind := list -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.monitoring) -}}
{{- if .Values.alerts.enabled }}{{ $blind = append $blind "alerts.enabled" }}{{ end -}}
{{- if .Values.podMonitor.enabled }}{{ $blind = append $blind "podMonitor.enabled" }}{{ end -}}
{{- range $role := without (splitList "," (include "baton.roles" .)) "router" -}}
{{- if include "baton.isAutoscaled" (index $.Values $role) }}{{ $blind = append $blind (printf "%s.autoscaling" $role) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- join ", " $blind -}}
{{- end -}}

{{- define "baton.validatePolicy" -}}
{{- $policy := .Values.networkPolicy -}}
{{- if and $policy.enabled $policy.clients .Values.worker.hostNetwork -}}
{{- $blocks := 0 -}}
{{- range $policy.clients }}{{ if hasKey . "ipBlock" }}{{ $blocks = add1 $blocks }}{{ end }}{{ end -}}
{{- if eq (int $blocks) 0 -}}
{{- fail "worker.hostNetwork with networkPolicy.clients: workers have their nodes' addresses, which no podSelector finds, and could not register; name the nodes by an ipBlock in networkPolicy.clients" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.validateSecret" -}}
{{- $s := .Values.clusterSecret -}}
{{- if and $s.existingSecret $s.value -}}
{{- fail "clusterSecret.existingSecret and clusterSecret.value are both set: which one is it?" -}}
{{- end -}}
{{- /* Only where there is a cluster to ask: `helm template` has none, and finds no namespace either. */ -}}
{{- if include "baton.hasCluster" . -}}
{{- range $value, $keys := dict "clusterSecret.existingSecret" (list $s.existingSecret "secret") "tls.existingSecret" (list .Values.tls.existingSecret "tls.crt" "tls.key" "ca.crt") -}}
{{- $name := first $keys -}}
{{- if $name -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace $name -}}
{{- if not $found -}}
{{- fail (printf "%s: there is no Secret %q in namespace %q; no pod could start" $value $name $.Release.Namespace) -}}
{{- end -}}
{{- range rest $keys -}}
{{- if not (hasKey (default dict $found.data) .) -}}
{{- fail (printf "%s: the Secret %q has no key %q" $value $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.validatePool" -}}
{{- $w := .root.Values.worker -}}
{{- if and (eq (int .pool.replicas) 0) (not (include "baton.isAutoscaled" .pool)) -}}
{{- fail (printf "%s.replicas is 0: router.mode %s needs at least one %s worker" .role .root.Values.router.mode .role) -}}
{{- end -}}
{{- if and $w.hostNetwork (ne (toString .pool.update.maxSurge) "0") -}}
{{- fail (printf "worker.hostNetwork with %s.update.maxSurge %v: the new pod would need the ports of the old one; set maxSurge 0 and maxUnavailable 1" .role .pool.update.maxSurge) -}}
{{- end -}}
{{- if and (eq (toString .pool.update.maxSurge) "0") (eq (toString .pool.update.maxUnavailable) "0") -}}
{{- fail (printf "%s.update: maxSurge and maxUnavailable are both 0, so no pod could ever be replaced" .role) -}}
{{- end -}}
{{- if and (eq $w.transport "shm") (not $w.hostNetwork) -}}
{{- fail "worker.transport shm needs worker.hostNetwork: workers find each other by abstract unix sockets, which end at a pod's own network; use auto or tcp" -}}
{{- end -}}
{{- if and (eq $w.transport "nccl") (ne .pool.device "cuda") -}}
{{- fail (printf "worker.transport nccl needs %s.device cuda: it moves KV between the memories of GPUs" .role) -}}
{{- end -}}
{{- if and (eq $w.transport "nccl") (not .pool.shmSize) -}}
{{- fail (printf "worker.transport nccl needs %s.shmSize: NCCL keeps its queues in /dev/shm, of which a container has 64 MiB; 1Gi will do" .role) -}}
{{- end -}}
{{- if and .pool.podDisruptionBudget.enabled (has (toString .pool.podDisruptionBudget.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s.podDisruptionBudget.maxUnavailable is 0: no node with a %s worker could ever be drained" .role .role) -}}
{{- end -}}
{{- $ports := list .pool.ports.grpc .pool.ports.kv .pool.ports.admin -}}
{{- if ne (len (uniq $ports)) 3 -}}
{{- fail (printf "%s.ports: grpc, kv and admin must differ" .role) -}}
{{- end -}}
{{- end -}}

{{- define "baton.validateDevice" -}}
{{- $gpus := int .pool.gpu.count -}}
{{- if not (has $gpus (list 0 1 2 4 8)) -}}
{{- fail (printf "%s.gpu.count %d: a model is divided among 1, 2, 4 or 8 GPUs; %s.replicas is the number of workers" .role $gpus .role) -}}
{{- end -}}
{{- $other := int (index .root.Values (ternary "decode" "prefill" (eq .role "prefill"))).gpu.count -}}
{{- $inexact := has "--allow-inexact" (default list .pool.extraArgs) -}}
{{- if and (eq .root.Values.router.mode "disagg") (gt $gpus 0) (gt $other 0) (ne $gpus $other) (not $inexact) -}}
{{- fail (printf "%s.gpu.count %d, the other pool's %d: their bits differ, so they are only paired with --allow-inexact in the extraArgs of both" .role $gpus $other) -}}
{{- end -}}
{{- if and (gt $gpus 0) (not .pool.gpu.resource) (not .pool.resourceClaims) -}}
{{- fail (printf "%s.gpu.resource is empty: name the device plugin's resource, or the claims that bring the GPUs in %s.resourceClaims" .role .role) -}}
{{- end -}}
{{- if and (eq .pool.device "cuda") (eq (include "baton.gpus" .pool | int) 0) -}}
{{- fail (printf "%s.device cuda without a GPU: set %s.gpu.count 1, or %s.resourceClaims" .role .role .role) -}}
{{- end -}}
{{- if and (eq .pool.device "cpu") (gt $gpus 0) -}}
{{- fail (printf "%s.gpu.count %d with %s.device cpu: the GPU would be reserved and idle" .role $gpus .role) -}}
{{- end -}}
{{- if and (gt $gpus 0) (has .root.Values.worker.kvDtype (list "f32" "q8")) -}}
{{- fail (printf "worker.kvDtype %s with %s.gpu.count: a GPU stores K and V in bf16 or fp8" .root.Values.worker.kvDtype .role) -}}
{{- end -}}
{{- if and (eq (include "baton.gpus" .pool | int) 0) (eq .root.Values.worker.kvDtype "fp8") -}}
{{- fail (printf "worker.kvDtype fp8 without %s.gpu.count: a processor stores K and V in bf16 or f32, or in q8" .role) -}}
{{- end -}}
{{- end -}}

{{- define "baton.validateMemory" -}}
{{- $need := addf (include "baton.mib" .root.Values.model.size | float64) (include "baton.mib" .pool.kvMemory | float64) -}}
{{- $gpu := and (gt (int .pool.gpu.count) 0) .pool.gpu.memory -}}
{{- if and $gpu (lt (mulf (include "baton.mib" .pool.gpu.memory | float64) (int .pool.gpu.count)) $need) -}}
{{- fail (printf "%s.gpu.memory %s times gpu.count is less than model.size %s and %s.kvMemory %s together: the model does not fit" .role .pool.gpu.memory .root.Values.model.size .role .pool.kvMemory) -}}
{{- end -}}
{{- /* A worker leaves 256 MiB of its limit free when it makes its pool, and takes some beside it. */ -}}
{{- $limit := dig "limits" "memory" "" .pool.resources -}}
{{- if and $limit (eq (include "baton.gpus" .pool | int) 0) (lt (include "baton.mib" $limit | float64) (addf $need 320.0)) -}}
{{- fail (printf "%s.resources.limits.memory %v is less than model.size %s, %s.kvMemory %s and 320MiB together: the worker would be killed; raise the limit or lower kvMemory" .role $limit .root.Values.model.size .role .pool.kvMemory) -}}
{{- end -}}
{{- end -}}

{{/* A model that is pulled into the pod counts as its ephemeral storage. */}}
{{- define "baton.validateStorage" -}}
{{- $limit := dig "limits" "ephemeral-storage" "" .pool.resources -}}
{{- $m := .root.Values.model -}}
{{- if and $limit (eq $m.source "pull") (not $m.pull.claimName) (lt (include "baton.number" $limit | float64) (addf (include "baton.number" $m.size | float64) 67108864.0)) -}}
{{- fail (printf "%s.resources.limits.ephemeral-storage %v is less than model.size %s and 64MiB together: the model is pulled into the pod, which would be evicted; raise the limit or name model.pull.claimName" .role $limit $m.size) -}}
{{- end -}}
{{- end -}}

{{- define "baton.validateScaling" -}}
{{- $a := .pool.autoscaling -}}
{{- if ne $a.kind "none" -}}
{{- if gt (int $a.minReplicas) (int $a.maxReplicas) -}}
{{- fail (printf "%s.autoscaling: minReplicas %d is above maxReplicas %d" .role (int $a.minReplicas) (int $a.maxReplicas)) -}}
{{- end -}}
{{- if and (eq $a.kind "keda") (not $a.prometheusAddress) -}}
{{- fail (printf "%s.autoscaling.kind keda without prometheusAddress: KEDA asks Prometheus itself, e.g. http://prometheus.monitoring:9090" .role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
