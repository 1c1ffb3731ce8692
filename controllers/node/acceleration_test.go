package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
	"github.com/kubeqemu/kubeqemu/controllers/node/kvmcheck"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

var (
	works   = kvmcheck.Result{Verdict: kvmcheck.Works, Reason: "fast"}
	broken  = kvmcheck.Result{Verdict: kvmcheck.Broken, Reason: "it crawls"}
	unknown = kvmcheck.Result{Reason: "no time"}
)

func TestChoose(t *testing.T) {
	tests := []struct {
		name      string
		kvm       kvmcheck.Result
		emulation bool
		want      qemuargs.Accelerator
		words     []string
	}{
		{"KVM", works, false, qemuargs.KVM, []string{"fast"}},
		{"KVM before emulation", works, true, qemuargs.KVM, []string{"fast"}},
		{"emulation", broken, true, qemuargs.TCG, []string{"KVM is not used", "it crawls"}},
		{"neither", broken, false, "", []string{"KVM is not used", "it crawls", "useEmulation"}},
		{"not known yet", unknown, true, "", []string{"not known yet", "no time"}},
	}
	for _, tt := range tests {
		got := choose(tt.kvm, tt.emulation)
		if got.Accelerator != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got.Accelerator, tt.want)
		}
		for _, word := range tt.words {
			if !strings.Contains(got.Reason, word) {
				t.Errorf("%s: the reason %q does not say %q", tt.name, got.Reason, word)
			}
		}
	}
	if none := choose(broken, false).String(); none != "none" {
		t.Errorf("no accelerator is called %q", none)
	}
}

func TestPermitEmulation(t *testing.T) {
	a := NewAcceleration(broken)
	_, changed := a.Choice()
	if a.PermitEmulation(false) {
		t.Error("no permission is not the start")
	}
	if !a.PermitEmulation(true) || a.PermitEmulation(true) {
		t.Error("a change is one change")
	}
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	if kvm := NewAcceleration(works); kvm.PermitEmulation(true) {
		t.Error("with KVM, the permission to emulate changes nothing")
	}
}

// lists is the kubelet's end of ListAndWatch.
type lists struct {
	grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]
	ctx  context.Context
	sent chan int
}

func (l *lists) Context() context.Context { return l.ctx }
func (l *lists) Send(r *deviceplugin.ListAndWatchResponse) error {
	l.sent <- len(r.Devices)
	return nil
}

func (l *lists) next(t *testing.T) int {
	t.Helper()
	select {
	case n := <-l.sent:
		return n
	case <-time.After(10 * time.Second):
		t.Fatal("the kubelet is told nothing")
		return 0
	}
}

func TestSlotsFollow(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	stream := &lists{ctx: ctx, sent: make(chan int)}
	p := &DevicePlugin{Acceleration: NewAcceleration(broken), Log: logr.Discard()}
	ended := make(chan error, 1)
	go func() { ended <- p.ListAndWatch(nil, stream) }()
	for i, want := range []int{0, slotsPerNode, 0, slotsPerNode} {
		if i > 0 {
			p.Acceleration.PermitEmulation(want > 0)
		}
		if got := stream.next(t); got != want {
			t.Errorf("list %d has %d slots, want %d", i, got, want)
		}
	}
	p.Acceleration.PermitEmulation(false)
	stream.next(t)
	request := &deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{"vm1"}}}}
	if _, err := p.Allocate(ctx, request); err == nil || !strings.Contains(err.Error(), "useEmulation") {
		t.Errorf("a slot is allocated where nothing runs guests: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func newTestScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFollow(t *testing.T) {
	ctx := context.Background()
	c := fake.NewClientBuilder().WithScheme(newTestScheme(t)).Build()
	recorder := events.NewFakeRecorder(10)
	changes := 0
	f := &ConfigurationFollower{Client: c, Events: recorder, Log: logr.Discard(), NodeName: "node-1",
		Acceleration: NewAcceleration(broken), Changed: func(context.Context) { changes++ }}
	follow := func(want qemuargs.Accelerator, wantChanges int) {
		t.Helper()
		if err := f.Follow(ctx); err != nil {
			t.Fatal(err)
		}
		if got, _ := f.Acceleration.Choice(); got.Accelerator != want || changes != wantChanges {
			t.Errorf("accelerator %q after %d changes, want %q after %d", got.Accelerator, changes, want, wantChanges)
		}
	}
	follow("", 1)
	follow("", 1)
	select {
	case said := <-recorder.Events:
		if !strings.Contains(said, "Warning NoAccelerator") || !strings.Contains(said, "it crawls") {
			t.Errorf("event %q", said)
		}
	default:
		t.Error("no event")
	}
	kv := &v1.KubeVirt{}
	kv.Name, kv.Namespace = "kubevirt", kubevirt.Namespace
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true}
	elsewhere := kv.DeepCopy()
	elsewhere.Namespace = "default"
	if err := c.Create(ctx, elsewhere); err != nil {
		t.Fatal(err)
	}
	follow("", 1) // whoever may make one there does not configure the cluster
	if err := c.Create(ctx, kv); err != nil {
		t.Fatal(err)
	}
	follow(qemuargs.TCG, 2)
	if err := c.Delete(ctx, kv, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	follow("", 3)
}
