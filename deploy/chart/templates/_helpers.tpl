{{/* A driver can be in a cluster only once, so its objects have fixed names. */}}

{{- define "bowline.labels" -}}
app.kubernetes.io/name: bowline
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "bowline.selector" -}}
app.kubernetes.io/name: bowline
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "bowline.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "bowline.pullSecrets" -}}
{{- with .Values.imagePullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the profile "restricted" of the Pod Security Standards asks of a container. */}}
{{- define "bowline.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Whether snapshots are served: "true" or nothing. */}}
{{- define "bowline.snapshots" -}}
{{- if eq (toString .Values.snapshots.enabled) "auto" -}}
{{- if .Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1" }}true{{ end }}
{{- else if eq (toString .Values.snapshots.enabled) "true" -}}true{{ end }}
{{- end }}

{{/* Flags that all sidecars have. */}}
{{- define "bowline.sidecarArgs" -}}
- --csi-address=/csi/csi.sock
# The lease of the controller beside it governs it too: only the leader is ready on the socket, and a sidecar waits for that.
- --leader-election=false
- --timeout={{ .sidecar.timeout }}
- --kube-api-qps={{ .all.kubeApiQps }}
- --kube-api-burst={{ .all.kubeApiBurst }}
- --retry-interval-max=1m
{{- end }}

{{/* Probes at a port; at an address of the host that is not the pod's, if one is given. */}}
{{- define "bowline.probes" -}}
{{- $host := "" }}
{{- with .host }}{{ if not (has . (list "0.0.0.0" "::")) }}{{ $host = printf ", host: %q" . }}{{ end }}{{ end -}}
livenessProbe:
  httpGet: { path: /healthz, port: {{ .port }}{{ $host }} }
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: {{ .port }}{{ $host }} }
  periodSeconds: 5
{{- end }}

{{/* Whether nodes reach volumes over NVMe/TCP: "true" or nothing. */}}
{{- define "bowline.nvme" -}}
{{- if eq (toString .Values.node.nvme.enabled) "auto" -}}
{{- if or .Values.nvmeTarget.enabled .Values.rdsTargets }}true{{ end }}
{{- else if eq (toString .Values.node.nvme.enabled) "true" -}}true{{ end }}
{{- end }}

{{/* An address in front of a port: one of IPv6 stands in brackets there. */}}
{{- define "bowline.literal" -}}
{{- if contains ":" . }}[{{ . }}]{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Every address of a pod, in front of a port. */}}
{{- define "bowline.everywhere" -}}
{{- include "bowline.literal" .Values.listenAddress }}
{{- end }}

{{/* Where pods in the host's network answer probes: everybody who reaches the host could ask. */}}
{{- define "bowline.hostAddress" -}}
{{- .Values.metrics.hostAddress | default .Values.listenAddress }}
{{- end }}

{{/* Where the node's pod answers them, in whichever network it is. */}}
{{- define "bowline.nodeAddress" -}}
{{- if include "bowline.nvme" . }}{{ include "bowline.hostAddress" . }}{{ else }}{{ .Values.listenAddress }}{{ end }}
{{- end }}

{{/* An agent reads the kernel's loop devices and stops mounted filesystems for a moment: see docs/install.md. */}}
{{- define "bowline.agentVolumeMounts" -}}
- { name: tls, mountPath: /tls, readOnly: true }
- { name: dev, mountPath: /dev }
# To stop a mounted filesystem for a moment while a snapshot is taken.
- { name: kubelet, mountPath: {{ .Values.node.kubeletDir }}, mountPropagation: HostToContainer }
- { name: tmp, mountPath: /tmp }
{{- end }}

{{- define "bowline.machineVolumes" -}}
- name: kubelet
  hostPath: { path: {{ .Values.node.kubeletDir }}, type: Directory }
- name: dev
  hostPath: { path: /dev, type: Directory }
- name: tmp
  emptyDir: {}
# The leader makes it. A node plugin must start without it: it is needed to take volumes down, too.
- name: tls
  secret: { secretName: bowline-agent-tls, optional: true, defaultMode: 0400 }
{{- end }}
