package validation

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateProbes(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	liveness := path.Child("livenessProbe")
	errs := append(validateProbe(spec.LivenessProbe, spec, liveness),
		validateProbe(spec.ReadinessProbe, spec, path.Child("readinessProbe"))...)
	if p := spec.LivenessProbe; p != nil && p.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(liveness.Child("successThreshold"), p.SuccessThreshold, "must be 1"))
	}
	if spec.StartStrategy == v1.StartStrategyPaused && !spec.LivenessProbe.KnowsPause() {
		errs = append(errs, field.Invalid(path.Child("startStrategy"), spec.StartStrategy,
			fmt.Sprintf("either %s or %s should be provided. Pausing VMIs with LivenessProbe is currently not supported",
				path.Child("startStrategy"), liveness)))
	}
	return errs
}

// maxProbeSeconds is the schema's limit of a probe's times: a year.
const maxProbeSeconds = maxGraceSeconds

func validateProbe(p *v1.Probe, spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
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

func validateHandler(h *v1.Handler, spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
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

func validateHTTPGet(g *corev1.HTTPGetAction, spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	errs := validateProbePort(g.Port, spec, path)
	if s := g.Scheme; s != "" && s != corev1.URISchemeHTTP && s != corev1.URISchemeHTTPS {
		errs = append(errs, field.NotSupported(path.Child("scheme"), s,
			[]corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS}))
	}
	for i, h := range g.HTTPHeaders {
		for _, msg := range utilvalidation.IsHTTPHeaderName(h.Name) {
			errs = append(errs, field.Invalid(path.Child("httpHeaders").Index(i).Child("name"), h.Name, msg))
		}
	}
	return errs
}

// validateProbePort checks the port of a probe by HTTP or TCP. A name must be that of a port in
// an interface's list: those become ports of the pod's container.
func validateProbePort(port intstr.IntOrString, spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !slices.ContainsFunc(spec.Networks, func(n v1.Network) bool { return n.IsPods() }) {
		errs = append(errs, field.Invalid(path, "", path.String()+" is only allowed if the Pod Network is attached"))
	}
	if port.Type == intstr.String {
		if !slices.ContainsFunc(spec.Domain.Devices.Interfaces, func(i v1.Interface) bool {
			return spec.OnPods(i.Name) &&
				slices.ContainsFunc(i.Ports, func(p v1.Port) bool { return p.Name == port.StrVal && p.Name != "" })
		}) {
			errs = append(errs, field.Invalid(path.Child("port"), port.StrVal,
				"no interface on the pod network has a port of this name"))
		}
		return errs
	}
	for _, msg := range utilvalidation.IsValidPortNum(port.IntValue()) {
		errs = append(errs, field.Invalid(path.Child("port"), port.IntVal, msg))
	}
	return errs
}
