package launcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// hasRequired returns an error that names the first CPU feature that the guest must have and does not have. QEMU warns of a
// feature that its host lacks, and goes on without. All CPUs of a guest are alike.
func hasRequired(ctx context.Context, client *qmp.Client, features []string) error {
	if len(features) == 0 {
		return nil
	}
	cpus, err := client.QueryCPUsFast(ctx)
	if err == nil && len(cpus) == 0 {
		err = errors.New("QEMU tells of no CPU")
	}
	if err != nil {
		return fmt.Errorf("look at the guest's CPU: %w", err)
	}
	for _, name := range features {
		has, err := client.HasCPUFeature(ctx, cpus[0].QOMPath, name)
		if err != nil {
			return fmt.Errorf("look for the CPU feature %q: %w", name, err)
		}
		if !has {
			return fmt.Errorf("this node cannot give the guest the CPU feature %q, which spec.domain.cpu.features requires; the policy optional starts the guest without", name)
		}
	}
	return nil
}
