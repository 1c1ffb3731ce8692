package v1

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Probe asks regularly whether the guest does its work. The kubelet of its node asks. A
// readinessProbe's result is the launcher pod's condition Ready; a livenessProbe that fails
// ends the guest.
type Probe struct {
	// What is asked: exactly one.
	Handler `json:",inline"`
	// InitialDelaySeconds is the time from the launcher pod's start to the first probe;
	// KubeVirt adds 10 for libvirt's start. Unit: seconds. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// TimeoutSeconds is how long an answer may take. Unit: seconds. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// PeriodSeconds is the time between two probes. Unit: seconds. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// SuccessThreshold is how many successes in a row make up for a failure. Must be 1 for a
	// livenessProbe. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// FailureThreshold is how many failures in a row count. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// Handler is what a probe asks.
type Handler struct {
	// GuestAgentPing asks whether the guest agent answers.
	// +optional
	GuestAgentPing *GuestAgentPing `json:"guestAgentPing,omitempty"`
	// Exec has the guest agent run a command in the guest: exit code 0 is a success.
	// +optional
	Exec *corev1.ExecAction `json:"exec,omitempty"`
	// HTTPGet asks by HTTP at the guest's address. With masquerade and a list of ports, name
	// one of these. Refused without the pod network.
	// +optional
	HTTPGet *corev1.HTTPGetAction `json:"httpGet,omitempty"`
	// TCPSocket asks whether the guest accepts a TCP connection at its address. With masquerade
	// and a list of ports, name one of these. Refused without the pod network.
	// +optional
	TCPSocket *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
}

// GuestAgentPing asks whether the guest agent answers. It has no settings.
type GuestAgentPing struct{}

// KnowsPause reports whether the prober knows that a paused guest is alive. The launcher, which
// asks the agent, knows; the kubelet, which asks by HTTP and TCP, does not.
func (p *Probe) KnowsPause() bool {
	return p == nil || p.GuestAgentPing != nil || p.Exec != nil
}

// PingsGuestAgent reports whether a probe asks whether the guest agent answers.
func (spec *VirtualMachineInstanceSpec) PingsGuestAgent() bool {
	pings := func(p *Probe) bool { return p != nil && p.GuestAgentPing != nil }
	return pings(spec.LivenessProbe) || pings(spec.ReadinessProbe)
}

// PausesGuestAgentProbes reports whether the VMI's annotation holds its guestAgentPing probes. As in
// KubeVirt, every spelling of true that Go's strconv.ParseBool knows does, and nothing else.
func (vmi *VirtualMachineInstance) PausesGuestAgentProbes() bool {
	held, err := strconv.ParseBool(vmi.Annotations[PauseGuestAgentProbesAnnotation])
	return err == nil && held
}

func defaultProbes(spec *VirtualMachineInstanceSpec) {
	for _, p := range []*Probe{spec.LivenessProbe, spec.ReadinessProbe} {
		if p == nil {
			continue
		}
		for _, n := range []struct {
			value    *int32
			fallback int32
		}{{&p.TimeoutSeconds, 1}, {&p.PeriodSeconds, 10}, {&p.SuccessThreshold, 1}, {&p.FailureThreshold, 3}} {
			if *n.value == 0 {
				*n.value = n.fallback
			}
		}
	}
}
