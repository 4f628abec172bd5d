{{/* The routers; takes the root. */}}

{{- define "baton.router" -}}
{{- $full := include "baton.fullname" . -}}
{{- $any := include "baton.anyAddress" . -}}
{{- $r := .Values.router -}}
{{- $in := dict "root" . "role" "router" "pool" $r -}}
# A StatefulSet for the sake of names: every worker registers with every router, by name.
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $full }}-router
  namespace: {{ .Release.Namespace | quote }}
  labels: {{- include "baton.labels" $in | nindent 4 }}
  annotations: {{- include "baton.replicasAnnotation" $in | nindent 4 }}
spec:
  serviceName: {{ $full }}-routers
  replicas: {{ include "baton.replicas" $in }}
  podManagementPolicy: Parallel
  revisionHistoryLimit: 5
  selector:
    matchLabels: {{- include "baton.selector" $in | nindent 6 }}
  template:
    metadata: {{- include "baton.podMetadata" $in | nindent 6 }}
    spec:
      {{- include "baton.podCommon" . | nindent 6 }}
      # 5 s in which new requests are still taken, the drain, and room.
      terminationGracePeriodSeconds: {{ add 20 (int $r.drainTimeoutSeconds) }}
      {{- include "baton.placement" (dict "root" . "role" "router" "pool" $r "revision" "controller-revision-hash") | nindent 6 }}
      containers:
        - name: router
          image: {{ include "baton.image" . }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          args:
            - router
            - --grpc={{ $any }}:7070
            - --http={{ $any }}:8080
            - --admin={{ $any }}:9090
            - --mode={{ $r.mode }}
            - --local-prefill-tokens={{ int $r.localPrefillTokens }}
            - --queue-wait-ms={{ int $r.queueWaitMs }}
            - --prefill-wait-ms={{ int $r.prefillWaitMs }}
            - --drain-timeout={{ int $r.drainTimeoutSeconds }}
            {{- include "baton.secretArgs" . | nindent 12 }}
            {{- if .Values.tls.http }}
            - --tls-http=on
            {{- end }}
            {{- range $r.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          {{- with $r.extraEnv }}
          env: {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - {name: http, containerPort: 8080}
            - {name: grpc, containerPort: 7070}
            - {name: admin, containerPort: 9090}
          {{- include "baton.probes" (dict "startSeconds" 60) | nindent 10 }}
          resources: {{- include "baton.resources" $r | nindent 12 }}
          securityContext: {{- include "baton.containerSecurity" (dict) | nindent 12 }}
          volumeMounts:
            {{- include "baton.secretMounts" . | nindent 12 }}
            {{- with $r.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "baton.secretVolumes" . | nindent 8 }}
        {{- with $r.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
