package virtcontroller

import (
	"context"
	"fmt"
	"math/rand/v2"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/controllers/filler"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/controllers/instancetypes"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
	"github.com/kubeqemu/kubeqemu/controllers/migration"
	"github.com/kubeqemu/kubeqemu/controllers/nodelabel"
	"github.com/kubeqemu/kubeqemu/controllers/pool"
	"github.com/kubeqemu/kubeqemu/controllers/replicaset"
	"github.com/kubeqemu/kubeqemu/controllers/vm"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/internal/listing"
	"github.com/kubeqemu/kubeqemu/internal/portforward"
)

// newManager makes the manager with all reconcilers. Leader election is an option: pod names
// are deterministic, and every write carries the resource version that it was computed from,
// so that two virt-controllers would do double work and no harm.
func newManager(config *rest.Config, o options) (ctrl.Manager, error) {
	s, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 s,
		HealthProbeBindAddress: "0",                              // addProbes serves probes
		Metrics:                server.Options{BindAddress: "0"}, // package monitoring serves them
		Cache:                  cacheOptions(o.follow),

		LeaderElection:          o.leaderElect,
		LeaderElectionID:        "virt-controller",
		LeaderElectionNamespace: v1.KubeVirtNamespace,
		// The process exits as soon as it gives up the lease, so the next leader need not
		// wait.
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	if err := setUp(mgr, o); err != nil {
		return nil, err
	}
	return mgr, addProbes(mgr, o.probes)
}

// cacheOptions keep few fields of few objects in the cache, so that memory does not grow with
// the cluster.
func cacheOptions(keys follow.Keys) cache.Options {
	components := cache.ByObject{Namespaces: map[string]cache.Config{v1.KubeVirtNamespace: {}}}
	leases := components
	leases.Transform = nodelabel.TrimLease
	leases.Label = labels.SelectorFromSet(labels.Set{nodelabel.LeaseLabel: nodelabel.LeaseLabelValue})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Label: labels.SelectorFromSet(labels.Set{v1.AppLabel: "virt-launcher"}), Transform: vmi.TrimPod(keys)},
			&corev1.Node{}:                  {Transform: nodelabel.Trim},
			&corev1.PersistentVolumeClaim{}: {Transform: vmi.TrimClaim},
			&v1.VirtualMachine{}:            {Transform: vm.Trim},
			&coordinationv1.Lease{}:         leases,
			&v1.KubeVirt{}:                  {},
			&appsv1.Deployment{}:            components,
			&appsv1.DaemonSet{}:             components,
			// Only the requests of virt-handlers.
			&certificatesv1.CertificateSigningRequest{}: {Field: fields.OneTermEqualSelector("spec.signerName", certificates.SignerName)},
		},
	}
}

func setUp(mgr ctrl.Manager, o options) error {
	c := clock.RealClock{}
	events := kit.BoundedEvents(mgr.GetEventRecorder("virt-controller"))
	cluster := func(ctx context.Context) (*v1.KubeVirtConfiguration, error) {
		return kubevirt.Configuration(ctx, mgr.GetClient())
	}
	presets, err := listing.New[v1.VirtualMachineInstancePreset](mgr.GetConfig(), v1.VirtualMachineInstancePresetResource, v1.MaxPresets, v1.MaxPresetBytes, c)
	if err != nil {
		return err
	}
	policies := &migration.Policies{Live: mgr.GetAPIReader(), Clock: c}
	imageWay := (&images.Finder{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cluster: cluster, Clock: c}).Way
	vmis := &vmi.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c,
		Events:  events,
		Config:  vmi.PodConfig{LauncherImage: o.launcherImage, ARM64Image: o.arm64Image},
		Images:  imageWay,
		Cluster: cluster,
		Follow:  o.follow,
		Presets: presets.In,
		Policy:  policies.Recent,
	}
	if err := vmis.Setup(mgr); err != nil {
		return fmt.Errorf("set up VMI controller: %w", err)
	}
	moves := &migration.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c, Events: events, Cluster: cluster, TargetPod: vmis.TargetPod, RuledOut: vmis.RuledOut, Policies: policies}
	if err := moves.Setup(mgr); err != nil {
		return fmt.Errorf("set up migration controller: %w", err)
	}
	if err := (&migration.Mover{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: events, Clock: c, LauncherImage: o.launcherImage, ARM64Image: o.arm64Image,
		KubeVirt:  func(ctx context.Context) (*v1.KubeVirtSpec, error) { return kubevirt.Spec(ctx, mgr.GetClient()) },
		RolledOut: func(ctx context.Context) (bool, error) { return kubevirt.RolledOut(ctx, mgr.GetClient()) }}).Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller that makes migrations: %w", err)
	}
	vms := &vm.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c, Jitter: rand.Float64,
		Events:  events,
		Cluster: cluster,
		Follow:  o.follow,
		Presets: presets.In,
	}
	if err := vms.Setup(mgr); err != nil {
		return fmt.Errorf("set up VM controller: %w", err)
	}
	sets := &replicaset.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c, Events: events, Presets: presets.In}
	if err := sets.Setup(mgr); err != nil {
		return fmt.Errorf("set up ReplicaSet controller: %w", err)
	}
	pools := &pool.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c, Events: events}
	if err := pools.Setup(mgr); err != nil {
		return fmt.Errorf("set up pool controller: %w", err)
	}
	if err := (&kubevirt.Reconciler{Client: mgr.GetClient(), Clock: c}).Setup(mgr); err != nil {
		return fmt.Errorf("set up KubeVirt controller: %w", err)
	}
	wellKnown := &instancetypes.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c, ByDefault: o.instancetypes}
	if err := wellKnown.Setup(mgr); err != nil {
		return fmt.Errorf("set up instancetypes controller: %w", err)
	}
	volumes, err := addFiller(mgr, o, events, imageWay)
	if err != nil {
		return err
	}
	verbosity := &kubevirt.Verbosity{Client: mgr.GetClient(), Component: v1.VirtController, Node: o.node, Set: o.verbosity.Set}
	if err := verbosity.Setup(mgr); err != nil {
		return fmt.Errorf("set up the log's verbosity: %w", err)
	}
	nodes := &nodelabel.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c, Cluster: cluster}
	if err := nodes.Setup(mgr); err != nil {
		return fmt.Errorf("set up node label controller: %w", err)
	}
	signer := &certificates.Signer{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c, Log: mgr.GetLogger().WithName("certificates")}
	if err := signer.Setup(mgr); err != nil {
		return fmt.Errorf("set up certificate signer: %w", err)
	}
	return addMetrics(mgr, o, signer, volumes.List)
}

// addFiller has virt-controller fill DataVolumes, if it was told to.
func addFiller(mgr ctrl.Manager, o options, recorder events.EventRecorder,
	way func(context.Context) (images.Way, error)) (*filler.Filler, error) {
	dialer, err := portforward.New(mgr.GetConfig())
	if err != nil {
		return nil, err
	}
	f := &filler.Filler{
		Enabled: o.dataVolumes,
		Client:  mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Events: recorder,
		Config: filler.Config{Image: o.launcherImage, Forbidden: o.forbidden, Permitted: o.permitted},
		Images: way,
		Dial:   filler.Forward(dialer),
	}
	if err := f.Setup(mgr); err != nil {
		return nil, fmt.Errorf("set up DataVolume controller: %w", err)
	}
	return f, nil
}
