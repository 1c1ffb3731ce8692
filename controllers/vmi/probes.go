package vmi

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// execSlack is how much later than the guest's command the kubelet gives up, in
// seconds: the launcher's word, which says why, comes first.
const execSlack = 1

// probe renders a probe of the guest as one of the launcher's container. HTTP
// and TCP go to the pod's address, which is the guest's with bridge and leads to
// it with masquerade; what the guest agent is asked, the launcher asks, with flags.
func probe(p *v1.Probe, flags ...string) *corev1.Probe {
	if p == nil {
		return nil
	}
	out := &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{HTTPGet: p.HTTPGet.DeepCopy(), TCPSocket: p.TCPSocket.DeepCopy()},
		InitialDelaySeconds: p.InitialDelaySeconds,
		TimeoutSeconds:      p.TimeoutSeconds,
		PeriodSeconds:       p.PeriodSeconds,
		SuccessThreshold:    p.SuccessThreshold,
		FailureThreshold:    p.FailureThreshold,
	}
	flags = append(flags, "--timeout", strconv.Itoa(int(p.TimeoutSeconds)))
	switch {
	case p.Exec != nil:
		out.Exec = &corev1.ExecAction{Command: slices.Concat([]string{launcherBinary, "guest-exec"}, flags, []string{"--"}, p.Exec.Command)}
		out.TimeoutSeconds += execSlack
	case p.GuestAgentPing != nil:
		out.Exec = &corev1.ExecAction{Command: append([]string{launcherBinary, "guest-ping"}, flags...)}
		out.TimeoutSeconds += execSlack
	}
	return out
}
