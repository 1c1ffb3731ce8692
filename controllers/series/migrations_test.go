package series

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestMigrations(t *testing.T) {
	var all []v1.VirtualMachineInstanceMigration
	for _, phase := range []v1.VirtualMachineInstanceMigrationPhase{"", v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled, v1.MigrationRunning, v1.MigrationSucceeded, v1.MigrationFailed} {
		m := v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "move-" + string(phase)}}
		m.Spec.VMIName, m.Status.Phase = "web", phase
		all = append(all, m)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&Migrations{Log: logr.Discard(), List: func(context.Context) ([]v1.VirtualMachineInstanceMigration, error) { return all, nil }})
	scraped(t, "migrations.golden", registry)

	registry = prometheus.NewPedanticRegistry()
	registry.MustRegister(&Migrations{Log: logr.Discard(), List: func(context.Context) ([]v1.VirtualMachineInstanceMigration, error) {
		return all, errors.New("no cache")
	}})
	if got := exposition(t, registry); got != "" {
		t.Errorf("without a list there are series:\n%s", got)
	}
}

// TestMigrationOfInstance: an instance has the series of its last migration, and a guest that cannot leave its node is not evictable.
func TestMigrationOfInstance(t *testing.T) {
	moves, moved, stays := instance(), instance(), instance()
	begun, ended := metav1.Unix(1700000000, 0), metav1.Unix(1700000042, 0)
	moves.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationName: "away", StartTimestamp: &begun,
		SourceState: &v1.MigrationSourceState{Progress: &v1.MigrationProgress{TransferredBytes: 300, RemainingBytes: 700, TotalBytes: 1000, DirtyBytesPerSecond: 5, Milliseconds: 2000}}}
	moved.Name = "moved"
	moved.Status.MigrationState = moves.Status.MigrationState.DeepCopy()
	moved.Status.MigrationState.EndTimestamp, moved.Status.MigrationState.Completed = &ended, true
	stays.Name = "stays"
	stays.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
	stays.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Bridge: &v1.InterfaceBridge{}}}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&Objects{Log: logr.Discard(), PodName: (*v1.VirtualMachineInstance).LauncherPod, List: func(context.Context) ([]v1.VirtualMachine, []v1.VirtualMachineInstance, error) {
		return nil, []v1.VirtualMachineInstance{*moves, *moved, *stays}, nil
	}})
	scraped(t, "migrating.golden", registry)
}
