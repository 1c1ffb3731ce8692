package validation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateProbes(t *testing.T) {
	// live gives a spec a liveness probe with defaults, and then does the rest.
	live := func(h v1.Handler, then ...func(*spec)) func(*spec) {
		return func(s *spec) {
			s.LivenessProbe = &v1.Probe{Handler: h}
			setDefaults(s)
			for _, edit := range then {
				edit(s)
			}
		}
	}
	tcp := func(port intstr.IntOrString) v1.Handler {
		return v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
	}
	ping := v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}
	seven := tcp(intstr.FromInt32(7))
	noNetwork := func(s *spec) { s.Domain.Devices.Interfaces, s.Networks = nil, nil }
	paused := func(s *spec) { s.StartStrategy = v1.StartStrategyPaused }
	edits{
		"no probe's handler": {live(v1.Handler{}), "spec.livenessProbe"},
		"two handlers of a probe": {live(v1.Handler{GuestAgentPing: ping.GuestAgentPing,
			TCPSocket: seven.TCPSocket}), "spec.livenessProbe"},
		"probe of port 0":          {live(tcp(intstr.FromInt32(0))), ".tcpSocket.port"},
		"probe of a port by name":  {live(tcp(intstr.FromString("http"))), ""},
		"probe of an unknown port": {live(tcp(intstr.FromString("www"))), ".tcpSocket.port"},
		"probe without network":    {live(seven, noNetwork), ".tcpSocket"},
		"probe of the agent without network": {live(v1.Handler{Exec: &corev1.ExecAction{Command: []string{"true"}}},
			noNetwork), ""},
		"probe of no command": {live(v1.Handler{Exec: &corev1.ExecAction{}}), ".exec.command"},
		"probe by no HTTP": {live(v1.Handler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80), Scheme: "FTP",
			HTTPHeaders: []corev1.HTTPHeader{{Name: "a b"}}}}),
			".httpGet.httpHeaders[0].name .httpGet.scheme"},
		"negative times": {live(seven, func(s *spec) { s.LivenessProbe.PeriodSeconds = -1 }),
			".periodSeconds"},
		"alive at the second good answer": {live(seven, func(s *spec) { s.LivenessProbe.SuccessThreshold = 2 }),
			".successThreshold"},
		"ready at the second good answer": {live(seven, func(s *spec) {
			s.LivenessProbe.SuccessThreshold = 2
			s.LivenessProbe, s.ReadinessProbe = nil, s.LivenessProbe
		}), ""},
		"started paused, and alive":              {live(seven, paused), "spec.startStrategy"},
		"started paused, and alive by the agent": {live(ping, paused), ""},
	}.try(t, "spec.livenessProbe")
}
