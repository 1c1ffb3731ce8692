package series

import (
	"context"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Migrations makes series of VirtualMachineInstanceMigrations. It is a prometheus.Collector.
type Migrations struct {
	// List returns all of them, which the caller does not change.
	List func(context.Context) ([]v1.VirtualMachineInstanceMigration, error)
	Log  logr.Logger
}

// Describe describes nothing: see Objects.
func (*Migrations) Describe(chan<- *prometheus.Desc) {}

// Collect sends how many migrations are in each phase, and how each has ended.
func (m *Migrations) Collect(to chan<- prometheus.Metric) {
	all, err := m.List(context.Background())
	if err != nil {
		m.Log.Error(err, "list VirtualMachineInstanceMigrations for metrics")
		return
	}
	counts := map[string]float64{}
	for i := range all {
		who := labels{"namespace", all[i].Namespace, "vmi", all[i].Spec.VMIName, "vmim", all[i].Name}
		switch phase := all[i].Status.Phase; phase {
		case v1.MigrationSucceeded:
			gauge("kubevirt_vmi_migration_succeeded", "A migration that has succeeded; always 1.").send(to, 1, who)
		case v1.MigrationFailed:
			gauge("kubevirt_vmi_migration_failed", "A migration that has failed; always 1.").send(to, 1, who)
		default:
			counts[stage(phase)]++
		}
	}
	for _, s := range []string{"unset", "pending", "scheduling", "running"} {
		gauge("kubevirt_vmi_migrations_in_"+s+"_phase", "Migrations in the phase "+s+".").send(to, counts[s])
	}
}

// stage is what KubeVirt counts a phase as.
func stage(phase v1.VirtualMachineInstanceMigrationPhase) string {
	switch phase {
	case "":
		return "unset"
	case v1.MigrationPending:
		return "pending"
	case v1.MigrationScheduling:
		return "scheduling"
	}
	return "running"
}

// migration sends the series of an instance's last migration: when it was, and how far it is. The launcher
// measures how far it is.
func migration(to chan<- prometheus.Metric, vmi *v1.VirtualMachineInstance) {
	m := vmi.Status.MigrationState
	if m == nil {
		return
	}
	who := labels{"node", vmi.Status.NodeName, "namespace", vmi.Namespace, "name", vmi.Name}
	when := func(name, help string, at *metav1.Time) {
		if at != nil {
			gauge(name, help).send(to, float64(at.Unix()), who, labels{"migration_name", m.MigrationName})
		}
	}
	when("kubevirt_vmi_migration_start_time_seconds", "When the copying of the last migration began, in seconds since 1970.", m.StartTimestamp)
	when("kubevirt_vmi_migration_end_time_seconds", "When the last migration ended, in seconds since 1970.", m.EndTimestamp)
	if m.Ended() || m.SourceState == nil || m.SourceState.Progress == nil {
		return
	}
	p := m.SourceState.Progress
	gauge("kubevirt_vmi_migration_data_processed_bytes", "How much a migration has sent.").send(to, float64(p.TransferredBytes), who)
	gauge("kubevirt_vmi_migration_data_remaining_bytes", "How much of a migration is still to be sent.").send(to, float64(p.RemainingBytes), who)
	counter("kubevirt_vmi_migration_data_bytes_total", "The size of what a migration copies.").send(to, float64(p.TotalBytes), who)
	gauge("kubevirt_vmi_migration_data_total_bytes", "The size of what a migration copies; KubeVirt deprecates it.").send(to, float64(p.TotalBytes), who)
	gauge("kubevirt_vmi_migration_dirty_memory_rate_bytes", "How much memory a guest changes in a second while it migrates.").send(to, float64(p.DirtyBytesPerSecond), who)
	if p.Milliseconds > 0 {
		gauge("kubevirt_vmi_migration_memory_transfer_rate_bytes", "How much a migration has sent in a second, on average.").
			send(to, float64(p.TransferredBytes)*1000/float64(p.Milliseconds), who)
	}
}
