package virthandler

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
	"github.com/kubeqemu/kubeqemu/controllers/node"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/cpus"
	"github.com/kubeqemu/kubeqemu/controllers/node/elevate"
	"github.com/kubeqemu/kubeqemu/controllers/node/lookup"
	"github.com/kubeqemu/kubeqemu/controllers/node/migration"
	"github.com/kubeqemu/kubeqemu/controllers/node/seccomp"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/slots"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// collectInterval is the time between two looks for the slots of ended pods.
const collectInterval = 3 * time.Second

// leasePatience is how long the Lease waits for the verdict on KVM. It is well below
// nodelabel.Lifetime, so that virt-handler does not count as gone meanwhile.
const leasePatience = time.Minute

func newHandler(config *rest.Config, o options, acceleration *accelerator.Chooser) (ctrl.Manager, error) {
	mgr, err := newManager(config, o)
	if err != nil {
		return nil, err
	}
	// The weight comes before anything that takes CPU time, which a busy node may not give.
	weight := &node.Weight{Cgroups: "/sys/fs/cgroup", Self: "/proc/self/cgroup", PodUID: os.Getenv("POD_UID"), Log: mgr.GetLogger().WithName("weight")}
	weight.Hold()
	changed := make(chan event.GenericEvent, 1024)
	own := types.NamespacedName{Namespace: v1.KubeVirtNamespace, Name: os.Getenv("POD_NAME")}
	kubelet, err := slots.DialKubelet(filepath.Join(o.kubelet, "pod-resources", "kubelet.sock"), own)
	if err != nil {
		return nil, err
	}
	l := &launchers{manager: mgr, options: o, acceleration: acceleration, changed: changed, kubelet: kubelet}
	l.sessions = sessions.NewSet(mgr.GetLogger().WithName("sessions"), l.notify)
	l.cpus = &cpus.Finder{Chooser: acceleration, Ask: cpus.Ask(o.launcherRoot), Clock: clock.RealClock{}, Log: mgr.GetLogger().WithName("cpus")}
	hyperV, err := kvmcheck.HasHyperV()
	kernel, recorder := &elevate.Kernel{CPUs: kubelet.CPUs}, kit.BoundedEvents(mgr.GetEventRecorder("virt-handler"))
	reconciler := &node.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: recorder, Clock: clock.RealClock{},
		NodeName: o.node, Sessions: l.sessions, Changed: changed, Kernel: kernel,
		Starter: &start.Starter{
			NoHyperV: err == nil && !hyperV, // a node without KVM emulates
			Clock:    clock.RealClock{}, Chooser: acceleration, Memory: kernel, HostModel: l.cpus.HostModel,
			Wiring: wiring.Wirer{OpenVhostNet: netsetup.OpenVhostNet, Events: recorder},
			Cluster: func(ctx context.Context) (*v1.KubeVirtConfiguration, error) {
				return kubevirt.Configuration(ctx, mgr.GetClient())
			},
		},
	}
	l.starter = reconciler.Starter
	if err := reconciler.Setup(mgr); err != nil {
		return nil, fmt.Errorf("set up node controller: %w", err)
	}
	l.configuration = &accelerator.Follower{
		Client: mgr.GetClient(), Events: kit.BoundedEvents(mgr.GetEventRecorder("virt-handler")), Log: mgr.GetLogger().WithName("accelerator"),
		NodeName: o.node, Chooser: acceleration, Changed: l.notifyAll,
	}
	if err := l.configuration.Setup(mgr); err != nil {
		return nil, fmt.Errorf("set up configuration controller: %w", err)
	}
	verbosity := &kubevirt.Verbosity{Client: mgr.GetClient(), Component: v1.VirtHandler, Node: o.node, Set: o.verbosity.Set}
	if err := verbosity.Setup(mgr); err != nil {
		return nil, fmt.Errorf("set up the log's verbosity: %w", err)
	}
	if l.arrivals, err = addServers(mgr, o, reconciler); err != nil {
		return nil, fmt.Errorf("set up servers: %w", err)
	}
	// The manager starts these once its caches are filled. Before that, no VMI would be found
	// for a launcher that connects.
	err = errors.Join(mgr.Add(weight), mgr.Add(l.cpus))
	for _, runs := range []manager.RunnableFunc{l.judge, l.serve, l.handOutFaults, l.handOutProgram, l.renewLease} {
		err = errors.Join(err, mgr.Add(runs))
	}
	return mgr, err
}

// launchers is the side of virt-handler that faces launchers and the kubelet.
type launchers struct {
	manager  ctrl.Manager
	options  options
	sessions *sessions.Set
	changed  chan<- event.GenericEvent

	kubelet       *slots.Kubelet // whose connection lives as long as this process
	acceleration  *accelerator.Chooser
	configuration *accelerator.Follower
	cpus          *cpus.Finder
	starter       *start.Starter
	arrivals      *migration.Arrivals

	ctx context.Context
}

// serve opens the slots and runs the device plugin until ctx ends.
func (l *launchers) serve(ctx context.Context) error {
	l.ctx = ctx
	defer l.sessions.Close()
	kubelet := l.kubelet
	log := l.manager.GetLogger().WithName("slots")
	resource := slots.Launchers(l.acceleration, l.kvmDevice())
	devices, err := slots.Open(filepath.Join(l.options.run, "slots"), resource, kubelet, log, l.sessions)
	if err != nil {
		return err
	}
	defer devices.Close()
	collecting := make(chan struct{})
	go func() {
		defer close(collecting)
		devices.CollectRepeatedly(ctx, collectInterval, func(err error) { log.Error(err, "collect slots") })
	}()
	// The kubelet hears of slots only after the verdict on KVM. If it first heard of none, and
	// then of some, it would reject pods.
	select {
	case <-l.acceleration.Judged():
	case <-ctx.Done():
		<-collecting
		return nil
	}
	if err := l.configuration.Follow(ctx); err != nil {
		return err
	}
	plugin := &slots.Plugin{Slots: devices}
	plugin.Dir, plugin.Log = l.plugins()
	err = plugin.Start(ctx)
	if err == nil {
		<-collecting
	}
	return err
}

// handOutDelay is the time between two attempts to hand out what is not a slot.
const handOutDelay = time.Minute

// handOut runs a device plugin until ctx ends. A fault here ends no virt-handler: all else goes on.
func (l *launchers) handOut(ctx context.Context, plugin *slots.Shared) error {
	for {
		if err := plugin.Start(ctx); err != nil {
			plugin.Log.Error(err, "hand out a resource", "resource", plugin.Resource)
		}
		if !timer.Wait(handOutDelay, ctx.Done()) {
			return nil
		}
	}
}

// plugins returns where the kubelet has the sockets of its device plugins, and the log of ours.
func (l *launchers) plugins() (dir string, log logr.Logger) {
	return filepath.Join(l.options.kubelet, "device-plugins"), l.manager.GetLogger().WithName("device-plugin")
}

// handOutFaults hands out the node's /dev/userfaultfd until ctx ends. Kernels before 6.1 have none: guests then go on
// without post-copy.
func (l *launchers) handOutFaults(ctx context.Context) error {
	const device = "/dev/userfaultfd"
	dir, log := l.plugins()
	copied := filepath.Join(l.options.run, "dev", "userfaultfd")
	_, err := os.Stat(device)
	if err == nil {
		err = makeDevice(device, copied)
	}
	if err != nil {
		log.Info("guests cannot come to this node by post-copy", "reason", err.Error())
		copied = ""
	}
	return l.handOut(ctx, slots.Faults(dir, copied, log))
}

// handOutProgram hands out, until ctx ends, the program that runs in containers with other images. Without it, pods
// with such containers wait.
func (l *launchers) handOutProgram(ctx context.Context) error {
	dir, log := l.plugins()
	from := filepath.Join(l.options.launcherRoot, images.Binary)
	return l.handOut(ctx, slots.Program(dir, from, l.options.programs, log))
}

// judge finds out whether KVM works. Nothing else waits in it: launchers that run need no
// verdict.
func (l *launchers) judge(ctx context.Context) error {
	ready := func() error { return makeDevice("/dev/kvm", l.kvmDevice()) }
	if choice, _ := l.acceleration.Choice(); choice.Accelerator == qemuargs.KVM {
		return ready() // --accelerator=kvm needs no check
	}
	select {
	case <-l.acceleration.Judged(): // --accelerator=tcg needs no check
		return nil
	default:
	}
	judge := &accelerator.Judge{Check: kvmcheck.Checker{}.Run, Kept: kvmcheck.Kept{Path: filepath.Join(l.options.run, "kvm.json")}, Clock: clock.RealClock{},
		Log: l.manager.GetLogger().WithName("accelerator"), Chooser: l.acceleration, Ready: ready, Changed: l.configuration.Follow}
	return judge.Start(ctx)
}

// kvmDevice is the path of the device node that pods get.
func (l *launchers) kvmDevice() string { return filepath.Join(l.options.run, "dev", "kvm") }

// renewLease renews virt-handler's Lease until ctx ends.
func (l *launchers) renewLease(ctx context.Context) error {
	// The first Lease waits for the verdict on KVM, but not for long.
	patience := time.NewTimer(leasePatience)
	defer patience.Stop()
	select {
	case <-l.acceleration.Judged():
	case <-patience.C:
	case <-ctx.Done():
		return nil
	}
	if err := l.configuration.Follow(ctx); err != nil {
		return err
	}
	writer := &node.LeaseWriter{Client: l.manager.GetClient(), Clock: clock.RealClock{}, Log: l.manager.GetLogger().WithName("lease"),
		NodeName: l.options.node, Chooser: l.acceleration, Sessions: l.sessions, OwnCPUs: l.kubelet.OwnCPUs, Realtime: elevate.Offers, Passt: l.offersPasst,
		CPUs: l.cpus.Told, Host: l.host}
	return writer.Start(ctx)
}

// host returns the node's facts, as the Lease has them.
func (l *launchers) host(ctx context.Context) (string, error) {
	version, err := cpus.QEMUVersion(l.options.launcherRoot)
	if err != nil {
		return "", err
	}
	choice, _ := l.acceleration.Choice()
	return l.starter.NodeHost(ctx, version, l.cpus.Flags(choice.Accelerator, version))
}

// offersPasst says whether passt can run on this node.
func (l *launchers) offersPasst() (bool, error) {
	return seccomp.OffersPasst(seccomp.Folder(filepath.Join(l.options.kubelet, "seccomp")), "/")
}

// notify queues the VMI of a pod. A VMI that is not in the cache is queued by the name that the pod's
// name has: the VMI may be gone, and the pod with it, but not its guest. A VMI that is not in the cache
// yet is queued once more when it arrives there.
func (l *launchers) notify(pod types.NamespacedName) {
	defer l.arrivals.Notify(l.ctx, pod)
	if l.queue(l.ctx, client.InNamespace(pod.Namespace), client.MatchingFields{lookup.PodIndex: pod.Name}) > 0 {
		return
	}
	if name := v1.VMIOfLauncherPod(pod.Name); name != "" {
		l.send(l.ctx, &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}})
	}
}

// notifyAll queues the node's VMIs.
func (l *launchers) notifyAll(ctx context.Context) { l.queue(ctx) }

// queue queues VMIs in the cache, and returns how many.
func (l *launchers) queue(ctx context.Context, which ...client.ListOption) int {
	var vmis v1.VirtualMachineInstanceList
	if err := l.manager.GetClient().List(ctx, &vmis, which...); err != nil {
		ctrl.Log.Error(err, "find VMIs of launchers")
		return 0
	}
	for i := range vmis.Items {
		l.send(ctx, &vmis.Items[i])
	}
	return len(vmis.Items)
}

func (l *launchers) send(ctx context.Context, vmi *v1.VirtualMachineInstance) {
	select {
	case l.changed <- event.GenericEvent{Object: vmi}:
	case <-ctx.Done():
	}
}

// newManager makes a manager whose cache holds only this node's VMIs, the cluster's
// configuration and virt-api's CA. The API server selects the VMIs, by the selectable field
// status.nodeName.
func newManager(config *rest.Config, o options) (ctrl.Manager, error) {
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 s,
		HealthProbeBindAddress: o.probes,
		Metrics:                server.Options{BindAddress: "0"}, // package monitoring serves them
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&v1.VirtualMachineInstance{}: {Field: fields.OneTermEqualSelector("status.nodeName", o.node)},
				&v1.KubeVirt{}:               {},
				&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{v1.KubeVirtNamespace: {
					FieldSelector: fields.OneTermEqualSelector("metadata.name", authority.APICA)}}},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	return mgr, errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping))
}

// makeDevice makes a copy of a device node that every user may open, so that the host's own
// node keeps its mode. The copy's folder is closed to the host's other users. containerd makes
// the pod's device node from the copy.
func makeDevice(device, path string) error {
	var host unix.Stat_t
	if err := unix.Stat(device, &host); err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make device folder: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("close device folder: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace device node %s: %w", path, err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(host.Rdev)); err != nil {
		return fmt.Errorf("make device node %s: %w", path, err)
	}
	// The umask cut Mknod's mode.
	if err := os.Chmod(path, 0o666); err != nil {
		return fmt.Errorf("open device node %s to all users: %w", path, err)
	}
	return nil
}
