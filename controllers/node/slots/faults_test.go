package slots

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
)

// TestEachNodeAdvertisesUserfaultfd: every node advertises the right to userfaultfd, and gives the device where it
// has one.
func TestEachNodeAdvertisesUserfaultfd(t *testing.T) {
	for device, want := range map[string]int{"": 0, "/run/kubeqemu/dev/userfaultfd": 1} {
		ctx, cancel := context.WithCancel(t.Context())
		stream := &lists{ctx: ctx, sent: make(chan int, 1)}
		p := Faults("", device, logr.Discard())
		ended := make(chan error, 1)
		go func() { ended <- p.ListAndWatch(nil, stream) }()
		if got := stream.next(t); got != accelerator.MaxSlots {
			t.Errorf("%d devices are advertised", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		got, err := p.Allocate(t.Context(), &deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{"userfaultfd1"}}}})
		if err != nil || len(got.ContainerResponses) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		devices := got.ContainerResponses[0].Devices
		if len(devices) != want || want > 0 && (devices[0].ContainerPath != "/dev/userfaultfd" || devices[0].HostPath != device || devices[0].Permissions != "rw") {
			t.Errorf("with device %q a container gets %v", device, devices)
		}
	}
}
