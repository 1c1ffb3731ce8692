package vmi

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// execSlack is how much longer the kubelet waits than the guest's command, in seconds. So the
// launcher's own report, which says why, comes first.
const execSlack = 1

// probe renders a probe of the guest as a probe of the launcher's container. HTTP and TCP
// probes go to the pod's address: with bridge that is the guest's address, and with masquerade
// it leads to the guest. For a probe by the guest agent, the container runs the launcher's
// binary with flags.
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
		out.Exec = &corev1.ExecAction{Command: slices.Concat([]string{launcherBinary, "guest-exec"}, flags, []string{"--"},
			p.Exec.Command)}
		out.TimeoutSeconds += execSlack
	case p.GuestAgentPing != nil:
		out.Exec = &corev1.ExecAction{Command: append([]string{launcherBinary, "guest-ping"}, flags...)}
		out.TimeoutSeconds += execSlack
	}
	return out
}
