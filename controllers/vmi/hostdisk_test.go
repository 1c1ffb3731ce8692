package vmi

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestHostDiskNeedsAPermittedFolder: a disk in a file of the node is one only below a folder that
// the configuration permits now, whatever it permitted before.
func TestHostDiskNeedsAPermittedFolder(t *testing.T) {
	for _, tt := range []struct {
		config, path string
		phase        v1.VirtualMachineInstancePhase
		want         string
	}{
		{`{}`, "/vms/a.img", "", "Failed  InvalidSpec"},
		{`{}`, "/vms/a.img", v1.Pending, "Failed  InvalidSpec"}, // taken back, or a status that somebody forged
		{`{"hostDisk":{"folders":["/vms"]}}`, "/etc/shadow", "", "Failed  InvalidSpec"},
		{`{"hostDisk":{"folders":["/vms"]}}`, "/vms/team/a.img", "", "Scheduling"},
	} {
		c := configured(t, tt.config)
		vmi := c.get()
		vmi.Spec.Volumes = []v1.Volume{{Name: "root", HostDisk: &v1.HostDisk{Path: tt.path, Type: v1.HostDiskExists}}}
		if err := c.client.Update(context.Background(), vmi); err != nil {
			t.Fatal(err)
		}
		vmi.Status.Phase = tt.phase
		if err := c.client.Status().Update(context.Background(), vmi); err != nil {
			t.Fatal(err)
		}
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		permitted := tt.want == "Scheduling"
		if got := c.status(); !strings.HasPrefix(got, tt.want) || c.pods() != map[bool]int{true: 1}[permitted] {
			t.Errorf("%+v: %s, %d pods", tt, got, c.pods())
		}
		if !permitted {
			continue
		}
		var pods corev1.PodList
		if err := c.client.List(context.Background(), &pods); err != nil {
			t.Fatal(err)
		}
		spec := pods.Items[0].Spec
		volume, mount := spec.Volumes[len(spec.Volumes)-1],
			spec.Containers[0].VolumeMounts[len(spec.Containers[0].VolumeMounts)-1]
		if h := volume.HostPath; h == nil || h.Path != "/vms" || ptr.Deref(h.Type, "") != corev1.HostPathDirectory ||
			mount.Name != volume.Name || mount.SubPath != "team" {
			t.Errorf("volume %+v, mounted as %+v", volume, mount)
		}
	}
}
