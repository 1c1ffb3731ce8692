package node

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Bounds of what a guest's agent may put into a VMI's status: texts in bytes.
const (
	maxOSText         = 128
	maxInterfaceName  = 64
	maxGuestAddresses = 8
	maxInterfaces     = 10 // unless the VMI has more itself; KubeVirt's
)

// Bounds of the lists of a report, which are more than any launcher tells.
const (
	maxReportedInterfaces = 64
	maxReportedAddresses  = 16
)

// agentInterval is the least time between two reports of a guest's agent that
// somebody is told of: each may be a write of the VMI's status, and the guest says
// how often there is something new.
const agentInterval = 2 * time.Second

// Agent is what the guest's agent said last; nil if the launcher has told nothing
// of it.
func (s *session) Agent() *control.AgentReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agent
}

// keepAgent keeps a report in place of the one before. It is for the goroutine
// that reads, and as quick as that must be.
func (s *session) keepAgent(data json.RawMessage) {
	if len(data) > control.MaxAgentReport {
		data = nil // which is no report
	}
	s.mu.Lock()
	s.agentSaid = data
	s.mu.Unlock()
	select {
	case s.agentNews <- struct{}{}:
	default:
	}
}

// followAgent tells of what a guest's agent says, the newest of it and not too
// often, until the launcher's connection ends.
func (s *Sessions) followAgent(launcher *session, log logr.Logger) {
	for {
		select {
		case <-launcher.agentNews:
		case <-launcher.client.Done():
			return
		}
		if launcher.takeAgent() {
			s.changed(launcher.pod)
		} else {
			log.Info("launcher reports what cannot be read of the guest agent")
		}
		if !s.pause(launcher, s.agentInterval) {
			return
		}
	}
}

// takeAgent reads what was kept last, if it is a report.
func (s *session) takeAgent() bool {
	s.mu.Lock()
	data := s.agentSaid
	s.agentSaid = nil
	s.mu.Unlock()
	var agent control.AgentReport
	if s.client.Told(data, &agent) != nil || len(agent.Interfaces) > maxReportedInterfaces ||
		slices.ContainsFunc(agent.Interfaces, func(i control.GuestInterface) bool { return len(i.Addresses) > maxReportedAddresses }) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent = &agent
	return true
}

// reportAgent brings a VMI's status up to date with what the guest's agent says,
// after report. It is pure. What the agent said last of the operating system
// stays when it goes, as KubeVirt has it.
func reportAgent(object *v1.VirtualMachineInstance, agent control.AgentReport, now metav1.Time) {
	status := &object.Status
	status.FSFreezeStatus = ""
	if agent.Frozen {
		status.FSFreezeStatus = v1.FSFrozen
	}
	reportCredentials(object, agent.Credentials, now)
	if !agent.Connected || status.Phase != v1.Running {
		status.RemoveCondition(v1.ConditionAgentConnected)
		return
	}
	status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionAgentConnected, Status: metav1.ConditionTrue}, now)
	if agent.OS != (control.GuestOS{}) {
		status.GuestOSInfo = guestOS(agent.OS)
	}
	status.Interfaces = withGuest(object, status.Interfaces, agent.Interfaces)
}

// withAgent says whether a launcher's guest has the port of an agent.
func withAgent(state control.StateReport) bool {
	return state.Machine != nil && state.Machine.Agent != nil
}

// keepAgentReport leaves what the status says by the guest's agent as it was,
// after report. It is for when the launcher has not told of the agent: what it
// told an earlier virt-handler, or this one on another connection, it tells again
// right after its hello.
func keepAgentReport(object, before *v1.VirtualMachineInstance) {
	if known := before.Status.Interfaces; object.Status.Phase == v1.Running && len(known) > 0 {
		object.Status.Interfaces = known
	}
}

func guestOS(os control.GuestOS) v1.VirtualMachineInstanceGuestOSInfo {
	text := func(s string) string { return bounded(s, maxOSText) }
	return v1.VirtualMachineInstanceGuestOSInfo{Name: text(os.Name), KernelRelease: text(os.KernelRelease), Version: text(os.Version),
		PrettyName: text(os.PrettyName), VersionID: text(os.VersionID), KernelVersion: text(os.KernelVersion), Machine: text(os.Machine), ID: text(os.ID)}
}

// Sources of what is known of an interface, KubeVirt's.
const (
	fromDomain = "domain"
	fromAgent  = "guest-agent"
)

// withGuest adds to what is known of the interfaces what the guest says, which
// is believed only about itself. The address that virt-api forwards ports to
// stays the pod's: a guest, or who rules it, must not lead virt-api to others.
func withGuest(object *v1.VirtualMachineInstance, known []v1.NetworkInterfaceStatus, said []control.GuestInterface) []v1.NetworkInterfaceStatus {
	out := slices.Clone(known)
	bridged := map[string]bool{}
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		bridged[nic.Name] = nic.Bridge != nil
	}
	for _, i := range said {
		name := bounded(i.Name, maxInterfaceName)
		at := slices.IndexFunc(out, func(s v1.NetworkInterfaceStatus) bool {
			return s.MAC == i.MAC && s.InterfaceName == "" && s.InfoSource == fromDomain
		})
		switch {
		case at >= 0:
			own := &out[at]
			own.InterfaceName, own.InfoSource = name, fromDomain+", "+fromAgent
			if bridged[own.Name] {
				own.IPs = merged(own.IPs, i.Addresses)
			}
		case len(out) < maxInterfaces:
			guest := v1.NetworkInterfaceStatus{InterfaceName: name, MAC: bounded(i.MAC, maxInterfaceName), InfoSource: fromAgent, IPs: merged(nil, i.Addresses)}
			if len(guest.IPs) > 0 {
				guest.IP = guest.IPs[0]
			}
			out = append(out, guest)
		}
	}
	return out
}

// merged are addresses that are known, and of those that the guest says the ones
// that are addresses.
func merged(known, said []string) []string {
	out := slices.Clone(known)
	for _, a := range said[:min(len(said), maxGuestAddresses)] {
		if ip, err := netip.ParseAddr(a); err == nil && ip.IsGlobalUnicast() && ip.Zone() == "" && !slices.Contains(out, ip.String()) {
			out = append(out, ip.String())
		}
	}
	return out
}

// query answers with a document that the launcher makes. No part of it is read
// here.
func (s *Server) query(w http.ResponseWriter, r *http.Request) {
	command := map[string]string{handlerapi.GuestInfo: control.CommandGuestInfo, handlerapi.Users: control.CommandUsers,
		handlerapi.FileSystems: control.CommandFileSystems}[r.PathValue("operation")]
	launcher, err := s.find(r)
	switch {
	case err != nil:
		fail(w, err)
		return
	case command == "":
		http.NotFound(w, r)
		return
	}
	var document json.RawMessage
	if err := launcher.call(r.Context(), command, nil, &document); err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// Who asked may have gone, which is all that can go wrong.
	_, _ = w.Write(document)
}
