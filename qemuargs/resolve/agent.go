package resolve

import "github.com/kubeqemu/kubeqemu/qemuargs"

// agent adds the port of the guest's agent, which every machine has.
func agent(b *build) {
	b.m.Agent = &qemuargs.Agent{PCI: integrated(agentSlot), Transitional: b.devices().Transitional()}
}
