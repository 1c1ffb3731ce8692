package v1

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// KnowsPause says whether the prober knows that a paused guest is alive. The launcher, which
// asks the agent, knows; the kubelet, which asks by HTTP and TCP, does not.
func (p *Probe) KnowsPause() bool {
	return p == nil || p.GuestAgentPing != nil || p.Exec != nil
}

// PingsGuestAgent says whether a probe asks whether the guest agent answers.
func (spec *VirtualMachineInstanceSpec) PingsGuestAgent() bool {
	pings := func(p *Probe) bool { return p != nil && p.GuestAgentPing != nil }
	return pings(spec.LivenessProbe) || pings(spec.ReadinessProbe)
}

// PausesGuestAgentProbes says whether the VMI's annotation holds its guestAgentPing probes. As in
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

func validateProbes(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	liveness := path.Child("livenessProbe")
	errs := append(validateProbe(spec.LivenessProbe, spec, liveness), validateProbe(spec.ReadinessProbe, spec, path.Child("readinessProbe"))...)
	if p := spec.LivenessProbe; p != nil && p.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(liveness.Child("successThreshold"), p.SuccessThreshold, "must be 1"))
	}
	if spec.StartStrategy == StartStrategyPaused && !spec.LivenessProbe.KnowsPause() {
		errs = append(errs, field.Invalid(path.Child("startStrategy"), spec.StartStrategy,
			fmt.Sprintf("either %s or %s should be provided. Pausing VMIs with LivenessProbe is currently not supported", path.Child("startStrategy"), liveness)))
	}
	return errs
}

// maxProbeSeconds is the schema's limit of a probe's times: a year.
const maxProbeSeconds = maxGraceSeconds

func validateProbe(p *Probe, spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	for name, n := range map[string]int32{"initialDelaySeconds": p.InitialDelaySeconds, "timeoutSeconds": p.TimeoutSeconds,
		"periodSeconds": p.PeriodSeconds, "successThreshold": p.SuccessThreshold, "failureThreshold": p.FailureThreshold} {
		if n < 0 || n > maxProbeSeconds {
			errs = append(errs, field.Invalid(path.Child(name), n, fmt.Sprintf("must be between 0 and %d", maxProbeSeconds)))
		}
	}
	return append(errs, validateHandler(&p.Handler, spec, path)...)
}

func validateHandler(h *Handler, spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	handlers := 0
	if h.GuestAgentPing != nil {
		handlers++
	}
	if e := h.Exec; e != nil {
		handlers++
		if len(e.Command) == 0 {
			errs = append(errs, field.Required(path.Child("exec", "command"), "name the command"))
		}
	}
	if g := h.HTTPGet; g != nil {
		handlers++
		errs = append(errs, validateHTTPGet(g, spec, path.Child("httpGet"))...)
	}
	if s := h.TCPSocket; s != nil {
		handlers++
		errs = append(errs, validateProbePort(s.Port, spec, path.Child("tcpSocket"))...)
	}
	switch {
	case handlers == 0:
		errs = append(errs, field.Required(path, "one of tcpSocket, exec, httpGet and guestAgentPing must be set"))
	case handlers > 1:
		errs = append(errs, field.Invalid(path, "", path.String()+" must have exactly one probe type set"))
	}
	return errs
}

func validateHTTPGet(g *corev1.HTTPGetAction, spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	errs := validateProbePort(g.Port, spec, path)
	if s := g.Scheme; s != "" && s != corev1.URISchemeHTTP && s != corev1.URISchemeHTTPS {
		errs = append(errs, field.NotSupported(path.Child("scheme"), s, []corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS}))
	}
	for i, h := range g.HTTPHeaders {
		for _, msg := range validation.IsHTTPHeaderName(h.Name) {
			errs = append(errs, field.Invalid(path.Child("httpHeaders").Index(i).Child("name"), h.Name, msg))
		}
	}
	return errs
}

// validateProbePort checks the port of a probe by HTTP or TCP. A name must be that of a port in
// an interface's list: those become ports of the pod's container.
func validateProbePort(port intstr.IntOrString, spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !slices.ContainsFunc(spec.Networks, func(n Network) bool { return n.IsPods() }) {
		errs = append(errs, field.Invalid(path, "", path.String()+" is only allowed if the Pod Network is attached"))
	}
	if port.Type == intstr.String {
		if !slices.ContainsFunc(spec.Domain.Devices.Interfaces, func(i Interface) bool {
			return spec.OnPods(i.Name) && slices.ContainsFunc(i.Ports, func(p Port) bool { return p.Name == port.StrVal && p.Name != "" })
		}) {
			errs = append(errs, field.Invalid(path.Child("port"), port.StrVal, "no interface on the pod network has a port of this name"))
		}
		return errs
	}
	for _, msg := range validation.IsValidPortNum(port.IntValue()) {
		errs = append(errs, field.Invalid(path.Child("port"), port.IntVal, msg))
	}
	return errs
}
