package start

import (
	"errors"
	"runtime"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestGuestOfOtherArchitectureIsEmulated: a guest of another architecture is emulated, whatever the node's own guests
// have, and only where the cluster permits it.
func TestGuestOfOtherArchitectureIsEmulated(t *testing.T) {
	permits := &v1.KubeVirtConfiguration{ArchitectureConfiguration: &v1.ArchitectureConfiguration{Arm64: &v1.ARM64Configuration{UseEmulation: true}}}
	other := map[string]string{v1.AMD64: v1.ARM64, v1.ARM64: v1.AMD64}[runtime.GOARCH]
	onAMD64, onARM64 := qemuargs.KVM, qemuargs.TCG
	if runtime.GOARCH != v1.AMD64 {
		onAMD64, onARM64 = "", qemuargs.KVM
	}
	for name, c := range map[string]struct {
		guest   string
		cluster *v1.KubeVirtConfiguration
		want    qemuargs.Accelerator
	}{
		"own":                      {runtime.GOARCH, &v1.KubeVirtConfiguration{}, qemuargs.KVM},
		"not said":                 {"", &v1.KubeVirtConfiguration{}, qemuargs.KVM},
		"another":                  {other, &v1.KubeVirtConfiguration{}, ""},
		"own, with emulation":      {v1.AMD64, permits, onAMD64},
		"arm64 here, by emulation": {v1.ARM64, permits, onARM64},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Architecture = c.guest
		got, err := acceleratorOf(vmi, qemuargs.KVM, c.cluster)
		if got != c.want || errors.Is(err, errForeign) != (c.want == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
