package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestPausesGuestAgentProbes(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "True": true, "1": true, "false": false, "0": false, "": false, "yes": false, " true": false} {
		vmi := &VirtualMachineInstance{}
		if vmi.PausesGuestAgentProbes() {
			t.Error("a VMI without annotations")
		}
		vmi.Annotations = map[string]string{PauseGuestAgentProbesAnnotation: value}
		if got := vmi.PausesGuestAgentProbes(); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func TestValidateProbes(t *testing.T) {
	// live gives a spec a liveness probe with defaults, and then does the rest.
	live := func(h Handler, then ...func(*spec)) func(*spec) {
		return func(s *spec) {
			s.LivenessProbe = &Probe{Handler: h}
			defaultProbes(s)
			for _, edit := range then {
				edit(s)
			}
		}
	}
	tcp := func(port intstr.IntOrString) Handler { return Handler{TCPSocket: &corev1.TCPSocketAction{Port: port}} }
	ping := Handler{GuestAgentPing: &GuestAgentPing{}}
	seven := tcp(intstr.FromInt32(7))
	noNetwork := func(s *spec) { s.Domain.Devices.Interfaces, s.Networks = nil, nil }
	paused := func(s *spec) { s.StartStrategy = StartStrategyPaused }
	edits{
		"no probe's handler":                 {live(Handler{}), "spec.livenessProbe"},
		"two handlers of a probe":            {live(Handler{GuestAgentPing: ping.GuestAgentPing, TCPSocket: seven.TCPSocket}), "spec.livenessProbe"},
		"probe of port 0":                    {live(tcp(intstr.FromInt32(0))), ".tcpSocket.port"},
		"probe of a port by name":            {live(tcp(intstr.FromString("http"))), ""},
		"probe of an unknown port":           {live(tcp(intstr.FromString("www"))), ".tcpSocket.port"},
		"probe without network":              {live(seven, noNetwork), ".tcpSocket"},
		"probe of the agent without network": {live(Handler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, noNetwork), ""},
		"probe of no command":                {live(Handler{Exec: &corev1.ExecAction{}}), ".exec.command"},
		"probe by no HTTP": {live(Handler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80), Scheme: "FTP", HTTPHeaders: []corev1.HTTPHeader{{Name: "a b"}}}}),
			".httpGet.httpHeaders[0].name .httpGet.scheme"},
		"negative times":                  {live(seven, func(s *spec) { s.LivenessProbe.PeriodSeconds = -1 }), ".periodSeconds"},
		"alive at the second good answer": {live(seven, func(s *spec) { s.LivenessProbe.SuccessThreshold = 2 }), ".successThreshold"},
		"ready at the second good answer": {live(seven, func(s *spec) {
			s.LivenessProbe.SuccessThreshold = 2
			s.LivenessProbe, s.ReadinessProbe = nil, s.LivenessProbe
		}), ""},
		"started paused, and alive":              {live(seven, paused), "spec.startStrategy"},
		"started paused, and alive by the agent": {live(ping, paused), ""},
	}.try(t, "spec.livenessProbe")
}
