package start

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// ofNode returns the facts that are the same for each guest of the node that an accelerator runs, but for HostModel and
// VhostNet, which cost a question.
func (s *Starter) ofNode(by qemuargs.Accelerator, qemuVersion string, cluster *v1.KubeVirtConfiguration) resolve.Host {
	host := resolve.Host{Accelerator: by, QEMUVersion: qemuVersion, NoHyperV: s.NoHyperV}
	handover.Configure(&host, cluster)
	return host
}

// cluster returns the cluster's configuration.
func (s *Starter) cluster(ctx context.Context) (*v1.KubeVirtConfiguration, error) {
	if s.Cluster == nil {
		return &v1.KubeVirtConfiguration{}, nil
	}
	return s.Cluster(ctx)
}

// NodeHost returns the facts of the node for a guest of the node's own architecture, as JSON. A node that can run no
// guests has no accelerator there. qemuVersion is that of the launcher's image. flags make QEMU's CPU model base the
// node's own CPU; there are none while they are not known.
func (s *Starter) NodeHost(ctx context.Context, qemuVersion string, flags []string) (string, error) {
	choice, _ := s.Chooser.Choice()
	if qemuVersion == "" {
		return "", errors.New("the version of the launcher's QEMU is not known")
	}
	cluster, err := s.cluster(ctx)
	if err != nil {
		return "", err
	}
	host := s.ofNode(choice.Accelerator, qemuVersion, cluster)
	host.HostModel, host.VhostNet = flags, s.Wiring.OffersVhostNet(choice.Accelerator)
	text, err := json.Marshal(host)
	if err == nil && len(text) > handlerlease.MaxHost {
		err = fmt.Errorf("they have %d bytes, more than %d", len(text), handlerlease.MaxHost)
	}
	if err != nil {
		return "", fmt.Errorf("encode the node's facts: %w", err)
	}
	return string(text), nil
}
