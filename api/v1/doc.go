// Package v1 holds the supported part of KubeVirt's API group kubevirt.io/v1.
//
// Names, enum values and JSON paths are KubeVirt's, so that its manifests and
// clients work unchanged. A field stands here only if it has an effect, and
// its comment says what that effect is on QEMU or on the pod; kubectl and
// server-side apply refuse every other field by its path. A few KubeVirt
// fields that would change what the guest sees are declared only to be refused
// ("not supported yet"), because clients without strict field validation would
// otherwise have them dropped in silence.
//
// Defaults are pure functions over these types. Package validation has the rules.
//
// A file is named by the kind that it belongs to: vm_, vmi_, kubevirt_, migration_, preset_ or replicaset_.
//
// +kubebuilder:object:generate=true
// +groupName=kubevirt.io
package v1
