package virtcontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/controllers/series"
	"github.com/kubeqemu/kubeqemu/internal/monitoring"
)

// addMetrics has virt-controller serve its own metrics, and the series of VMs' objects.
func addMetrics(mgr ctrl.Manager, o options, signer *certificates.Signer, volumes func(context.Context) ([]cdi.DataVolume, error)) error {
	if o.metrics == "0" {
		return nil
	}
	log := mgr.GetLogger().WithName("metrics")
	access, err := monitoring.NewAccess(mgr.GetConfig(), time.Now, log)
	if err != nil {
		return fmt.Errorf("set up access to metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	objects := &series.Objects{Log: log, PodName: podName, LauncherImage: o.launcherImage, ARM64Image: o.arm64Image, List: func(ctx context.Context) ([]v1.VirtualMachine, []v1.VirtualMachineInstance, error) {
		return list(ctx, mgr.GetClient())
	}}
	moves := &series.Migrations{Log: log, List: func(ctx context.Context) ([]v1.VirtualMachineInstanceMigration, error) {
		var all v1.VirtualMachineInstanceMigrationList
		err := mgr.GetClient().List(ctx, &all, client.UnsafeDisableDeepCopy)
		return all.Items, err
	}}
	registry.MustRegister(monitoring.Up("virt_controller"), monitoring.Leading(mgr.Elected()), objects, moves, &series.DataVolumes{Log: log, List: volumes})
	phases := series.NewPhases(registry)
	instances, err := mgr.GetCache().GetInformer(context.Background(), &v1.VirtualMachineInstance{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("follow VMIs' phases: %w", err)
	}
	if _, err := instances.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		phases.Observe(before.(*v1.VirtualMachineInstance), after.(*v1.VirtualMachineInstance))
	}}); err != nil {
		return fmt.Errorf("follow VMIs' phases: %w", err)
	}
	return mgr.Add(&monitoring.Server{Address: o.metrics, Certificate: signer.GetCertificate, Log: log,
		Handler: access.Guard(monitoring.Handler(prometheus.Gatherers{metrics.Registry, registry}))})
}

func podName(i *v1.VirtualMachineInstance) string { return i.LauncherPod() }

// list returns the cache's own objects, which the caller must not change.
func list(ctx context.Context, from client.Reader) ([]v1.VirtualMachine, []v1.VirtualMachineInstance, error) {
	var machines v1.VirtualMachineList
	var instances v1.VirtualMachineInstanceList
	err := errors.Join(from.List(ctx, &machines, client.UnsafeDisableDeepCopy), from.List(ctx, &instances, client.UnsafeDisableDeepCopy))
	return machines.Items, instances.Items, err
}
