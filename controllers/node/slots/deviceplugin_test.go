package slots

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

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
	return testkit.Receive(t, l.sent, "a list for the kubelet")
}

func TestSlotsFollowTheAccelerator(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	stream := &lists{ctx: ctx, sent: make(chan int)}
	chooser := accelerator.New(kvmcheck.Result{Verdict: kvmcheck.Broken, Reason: "it crawls"})
	p := &Plugin{Slots: &Slots{resource: Launchers(chooser, "")}, Log: logr.Discard()}
	ended := make(chan error, 1)
	go func() { ended <- p.ListAndWatch(nil, stream) }()
	for i, want := range []int{0, accelerator.MaxSlots, 0, accelerator.MaxSlots} {
		if i > 0 {
			chooser.PermitEmulation(want > 0)
		}
		if got := stream.next(t); got != want {
			t.Errorf("list %d has %d slots, want %d", i, got, want)
		}
	}
	for _, most := range []int{5, 1 << 20} {
		chooser.LimitSlots(most)
		if got, want := stream.next(t), min(most, accelerator.MaxSlots); got != want {
			t.Errorf("with a limit of %d there are %d slots, want %d", most, got, want)
		}
	}
	chooser.PermitEmulation(false)
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
