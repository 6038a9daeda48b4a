{{- /* The name of everything: that of the release, with the chart's where it lacks it. Pods add a number. */ -}}
{{- define "ncserverd.name" -}}
{{- $name := .Release.Name | replace "." "-" -}}
{{- if contains .Chart.Name $name }}{{ $name }}{{ else }}{{ printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- end }}

{{- define "ncserverd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ncserverd.labels" -}}
{{ include "ncserverd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* What a server could not start with, or what would serve everybody unasked. */ -}}
{{- define "ncserverd.check" -}}
{{- if and (not .Values.admission.keysSecret) (not .Values.admission.insecure) }}
{{- fail "set admission.keysSecret, or admission.insecure=true to serve everybody" }}
{{- end }}
{{- if and .Values.admission.keysSecret .Values.admission.insecure }}
{{- fail "admission.keysSecret and admission.insecure exclude each other" }}
{{- end }}
{{- with .Values.fleet }}
{{- if and (eq .engine "nats") (or (not .nats.urls) (not .nats.passwordsSecret)) }}
{{- fail "fleet.engine=nats needs fleet.nats.urls and fleet.nats.passwordsSecret" }}
{{- end }}
{{- if and (eq .engine "static") (not .static.secret) }}
{{- fail "fleet.engine=static needs fleet.static.secret" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ncserverd.advertise" -}}
{{- if .Values.fleet.advertise }}{{ .Values.fleet.advertise }}
{{- else if .Values.hostNetwork }}$(HOST_IP):{{ .Values.port }}
{{- else }}$(POD_NAME).{{ include "ncserverd.name" . }}-pods.{{ .Release.Namespace }}.svc:{{ .Values.port }}
{{- end }}
{{- end }}
