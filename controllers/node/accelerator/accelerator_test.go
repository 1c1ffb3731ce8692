package accelerator

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

var (
	works   = kvmcheck.Result{Verdict: kvmcheck.Works, Reason: "fast"}
	broken  = kvmcheck.Result{Verdict: kvmcheck.Broken, Reason: "it crawls"}
	unknown = kvmcheck.Result{Reason: "no time"}
)

func TestChooseKVMOrEmulation(t *testing.T) {
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
	a := New(broken)
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
	if kvm := New(works); kvm.PermitEmulation(true) {
		t.Error("with KVM, the permission to emulate changes nothing")
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

func TestConfigurationIsFollowed(t *testing.T) {
	ctx := context.Background()
	c := fake.NewClientBuilder().WithScheme(newTestScheme(t)).Build()
	recorder := events.NewFakeRecorder(10)
	changes := 0
	f := &Follower{Client: c, Events: recorder, Log: logr.Discard(), NodeName: "node-1",
		Chooser: New(broken), Changed: func(context.Context) { changes++ }}
	follow := func(want qemuargs.Accelerator, wantChanges int) {
		t.Helper()
		if err := f.Follow(ctx); err != nil {
			t.Fatal(err)
		}
		if got, _ := f.Chooser.Choice(); got.Accelerator != want || changes != wantChanges {
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
	kv.Name, kv.Namespace = "kubevirt", v1.KubeVirtNamespace
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true}
	if err := c.Create(ctx, kv); err != nil {
		t.Fatal(err)
	}
	follow(qemuargs.TCG, 2)
	slots := func(most *int, want, wantChanges int) {
		t.Helper()
		kv.Spec.Configuration.VirtualMachineInstancesPerNode = most
		if err := c.Update(ctx, kv); err != nil {
			t.Fatal(err)
		}
		follow(qemuargs.TCG, wantChanges)
		if got, _ := f.Chooser.Choice(); got.Slots != want {
			t.Errorf("%d slots, want %d", got.Slots, want)
		}
	}
	slots(ptr.To(7), 7, 3)
	slots(ptr.To(250), MaxSlots, 4)
	slots(nil, MaxSlots, 4)
	if err := c.Delete(ctx, kv, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	follow("", 5)
}
