package launcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// settle returns an error that names the first CPU feature that the guest must have and does not have: QEMU warns of
// a feature that its host lacks, and goes on without. Of a guest that starts here, settle also returns what its CPU
// has become. The features that the guest has because this node has them are required from now on. Those that the
// guest lacks are off. Otherwise a guest that moves would lose a feature that it uses, and QEMU would not notice.
// Hyper-V's interfaces are no features of the node's CPU. All CPUs of a guest are alike.
func settle(ctx context.Context, client *qmp.Client, cpu qemuargs.CPU, incoming bool) (qemuargs.CPU, error) {
	wanted := map[int]string{} // by the flag's index
	for i, flag := range cpu.Flags {
		name, on := strings.CutSuffix(flag, "="+string(qemuargs.On))
		if on && !incoming && !strings.HasPrefix(name, "hv-") && !slices.Contains(cpu.Required, name) {
			wanted[i] = name
		}
	}
	if len(cpu.Required)+len(wanted) == 0 {
		return cpu, nil
	}
	cpus, err := client.QueryCPUsFast(ctx)
	if err == nil && len(cpus) == 0 {
		err = errors.New("QEMU tells of no CPU")
	}
	if err != nil {
		return cpu, fmt.Errorf("look at the guest's CPU: %w", err)
	}
	has := func(name string) (has bool, err error) {
		if has, err = client.HasCPUFeature(ctx, cpus[0].QOMPath, name); err != nil {
			err = fmt.Errorf("look for the CPU feature %q: %w", name, err)
		}
		return has, err
	}
	for _, name := range cpu.Required {
		switch has, err := has(name); {
		case err != nil:
			return cpu, err
		case !has && incoming:
			return cpu, fmt.Errorf("this node cannot give the guest the CPU feature %q, which the guest has", name)
		case !has:
			return cpu, fmt.Errorf("this node cannot give the guest the CPU feature %q, "+
				"which spec.domain.cpu.features requires; the policy optional starts the guest without", name)
		}
	}
	cpu.Flags, cpu.Required = slices.Clone(cpu.Flags), slices.Clone(cpu.Required)
	all, err := givesAll(ctx, client, cpus[0].QOMPath, cpu)
	if err != nil {
		return cpu, err
	}
	for i := range cpu.Flags {
		name, ok := wanted[i]
		if !ok {
			continue
		}
		if all {
			cpu.Required = append(cpu.Required, name)
			continue
		}
		switch has, err := has(name); {
		case err != nil:
			return cpu, err
		case has:
			cpu.Required = append(cpu.Required, name)
		default:
			cpu.Flags[i] = name + "=" + string(qemuargs.Off)
		}
	}
	return cpu, nil
}

// givesAll reports whether QEMU says at once that the guest has all features of its flags. The flags of the node's
// own CPU are a hundred, and as many questions would take a tenth of a second. With kvm=off QEMU leaves features out
// and does not say so.
func givesAll(ctx context.Context, client *qmp.Client, path string, cpu qemuargs.CPU) (bool, error) {
	if cpu.Model != "base" || slices.Contains(cpu.Flags, "kvm=off") {
		return false, nil
	}
	lacks, err := client.LacksCPUFeatures(ctx, path)
	if err != nil {
		return false, fmt.Errorf("look for CPU features that the guest lacks: %w", err)
	}
	return !lacks, nil
}

// changeMachine changes the guest's Machine. Reports that are being sent hold the Machine as it was before.
func (l *launcher) changeMachine(how func(*qemuargs.Machine)) {
	start := *l.start
	how(&start.Machine)
	l.start = &start
}

// change makes the loop change the guest's Machine, and waits until it has. From then on each report holds the
// changed Machine.
func (l *launcher) change(ctx context.Context, how func(*qemuargs.Machine)) error {
	done := make(chan struct{})
	select {
	case l.results <- func() { l.changeMachine(how); close(done) }:
	case <-ctx.Done():
		return fmt.Errorf("change the machine: %w", ctx.Err())
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("change the machine: %w", ctx.Err())
	}
}
