// Package virtcontroller is the command line of virt-controller. virt-controller makes
// VirtualMachineInstances of VirtualMachines, and launcher pods of these, and follows the
// pods.
package virtcontroller

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	cdiv1beta1 "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	instancetypev1beta1 "github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	migrationsv1alpha1 "github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	poolv1beta1 "github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/component"
)

type options struct {
	launcherImage string
	// annotations and labels are lists of keys, which follow reads.
	annotations, labels string
	arm64Image          string
	follow              follow.Keys
	leaderElect         bool
	instancetypes       bool
	dataVolumes         bool
	forbidden           addresses
	permitted           addresses
	probes              string
	metrics             string
	node                string
	verbosity           *component.Verbosity
}

// Main runs virt-controller with the arguments after its name until a signal ends it,
// and returns the exit status.
func Main(args []string) int {
	var o options
	flags := flag.NewFlagSet("virt-controller", flag.ContinueOnError)
	config.RegisterFlags(flags)
	flags.StringVar(&o.launcherImage, "launcher-image", "", "container `image` of virt-launcher (required)")
	flags.StringVar(&o.arm64Image, "arm64-launcher-image", "", "container `image` of the virt-launcher that emulates guests of arm64 on nodes of amd64; default the launcher's image, with -arm64-emulator after its name")
	flags.StringVar(&o.annotations, "additional-launcher-annotations-sync", "", "`keys` of annotations, with commas between them, in which a running VMI follows its VM's template, and its pod the VMI; example.com/* stands for a domain's keys")
	flags.StringVar(&o.labels, "additional-launcher-labels-sync", "", "`keys` of labels that follow in the same way")
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "of several virt-controllers, only one works; needed for more than one replica")
	flags.BoolVar(&o.instancetypes, "common-instancetypes", false, "create the well-known instancetypes and preferences if the KubeVirt object does not say whether to")
	flags.BoolVar(&o.dataVolumes, "data-volumes", false, "fill DataVolumes while their kind is Kubeqemu's and CDI is not installed")
	flags.Var(&o.forbidden, "import-forbidden-addresses", "`blocks` of addresses, as CIDRs with commas between them, that no source of a DataVolume may have; a node's own, loopback and link-local addresses are refused anyway")
	flags.Var(&o.permitted, "import-permitted-addresses", "`blocks` of addresses that a source may have although they are refused")
	flags.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node, for the KubeVirt object's nodeVerbosity; default $NODE_NAME")
	flags.StringVar(&o.probes, "health-probe-bind-address", ":8081", "`address` that serves /healthz and /readyz")
	flags.StringVar(&o.metrics, "metrics-bind-address", ":8443", "`address` that serves /metrics, with TLS, to whom RBAC lets get it; 0 for none")
	return component.Main(flags, args, os.Stderr, func(log logr.Logger, verbosity *component.Verbosity) error {
		ctrl.SetLogger(log)
		o.verbosity = verbosity
		return run(o)
	})
}

// arm64Image is the image beside the launcher's that emulates arm64. It is empty for an image with a digest.
func arm64Image(launcher string) string {
	name, tag := launcher, ""
	if i := strings.LastIndexByte(launcher, ':'); i > strings.LastIndexByte(launcher, '/') {
		name, tag = launcher[:i], launcher[i:]
	}
	if strings.Contains(launcher, "@") {
		return ""
	}
	return name + "-arm64-emulator" + tag
}

// alonePeriod is the time between two looks for KubeVirt, while it is there.
const alonePeriod = 30 * time.Second

func run(o options) error {
	if o.launcherImage == "" {
		return fmt.Errorf("--launcher-image is required")
	}
	if o.arm64Image == "" {
		o.arm64Image = arm64Image(o.launcherImage)
	}
	var err error
	if o.follow, err = follow.Parse(o.annotations, o.labels); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	kit.Reconnect(config)
	ctx := ctrl.SetupSignalHandler()
	if err := AwaitAlone(ctx, config, o.probes, alonePeriod); err != nil || ctx.Err() != nil {
		return err
	}
	mgr, err := newManager(config, o)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		return nil, err
	}
	return s, errors.Join(v1.AddToScheme(s), cdiv1beta1.AddToScheme(s), instancetypev1beta1.AddToScheme(s), migrationsv1alpha1.AddToScheme(s), poolv1beta1.AddToScheme(s))
}
