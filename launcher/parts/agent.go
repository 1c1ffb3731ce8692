package parts

import (
	"log/slog"

	"github.com/kubeqemu/kubeqemu/launcher/agent"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// Agent is the guest's agent, and the socket in the pod on which the kubelet's probes ask the agent.
type Agent struct {
	None
	// Agent is nil where QEMU has no port for the agent, or was not started.
	*agent.Agent
	// Socket is where probes ask.
	Socket string
	// Secrets is the folder of the Secrets that are meant for the agent.
	Secrets string
	// Tell gets each report of the agent that differs from the last.
	Tell func(control.AgentReport)
	Log  *slog.Logger

	probes *agent.Probes // nil if the socket could not be made, or nobody is to ask
}

// Listen lets probes ask from now on. Before the guest is started there is an answer, too.
func (a *Agent) Listen() (err error) {
	a.probes, err = agent.ListenForProbes(a.Socket, a.Log)
	return err
}

// Attach lets probes ask the agent from now on. A machine without the agent's port has no agent to ask.
func (a *Agent) Attach(request *control.StartRequest, qemu *process.QEMU) error {
	if qemu.Agent == nil {
		a.closeProbes()
		return nil
	}
	if a.probes == nil { // the socket could not be made before, and is needed now
		if err := a.Listen(); err != nil {
			return err
		}
	}
	a.Agent = agent.New(qemu.Agent, &request.Machine,
		agent.Credentials{Folder: a.Secrets, Wanted: request.AgentCredentials}, a.Tell, a.Log)
	a.probes.Follow(a.Agent)
	return nil
}

// Close ends the answers to probes, and the agent's port.
func (a *Agent) Close() error {
	a.closeProbes()
	if a.Agent != nil {
		a.Agent.Close()
	}
	return nil
}

func (a *Agent) closeProbes() {
	if a.probes != nil {
		a.probes.Close()
		a.probes = nil
	}
}
