package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// admitHotpluggable makes the CRD of VMIs admit hotpluggable claims until the test's end: today it refuses them.
func (s *testServer) admitHotpluggable(t *testing.T, probe *v1.VirtualMachineInstance) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
		Kind: "CustomResourceDefinition"})
	crd.SetName("virtualmachineinstances." + v1.GroupVersion.Group)
	patch := func(operation string) {
		var operations []string
		for _, source := range []string{"persistentVolumeClaim", "dataVolume"} {
			path := "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/volumes/items/properties/" +
				source + "/properties/hotpluggable/x-kubernetes-validations"
			operations = append(operations, fmt.Sprintf(operation, path))
		}
		body := client.RawPatch(types.JSONPatchType, []byte("["+strings.Join(operations, ",")+"]"))
		if err := s.admin.Patch(context.Background(), crd.DeepCopy(), body); err != nil {
			t.Fatal(err)
		}
	}
	create := func() error {
		return s.as(controllerAccount).Create(context.Background(), probe.DeepCopy(), client.DryRunAll)
	}
	patch(`{"op":"remove","path":%q}`)
	s.poll("the API server admits hotpluggable claims", create)
	t.Cleanup(func() {
		patch(`{"op":"add","path":%q,"value":[{"rule":"!self","message":"not supported yet: there is no hotplug yet"}]}`)
		s.poll("the API server refuses hotpluggable claims", func() error {
			if create() == nil {
				return fmt.Errorf("a VMI with a hotpluggable claim is admitted")
			}
			return nil
		})
	})
}

func claimed(name string, hotpluggable v1.UnsupportedBool) v1.Volume {
	return v1.Volume{Name: name,
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, Hotpluggable: hotpluggable}}
}

// diskChange is a change of the volumes and disks below.
type diskChange struct {
	what string
	made func(spec *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk)
}

// The places of volumes and disks in the list.
const (
	root = iota
	fixed
	hot
	iso
	empty // a drive without a volume
)

func withDisks(name string) *v1.VirtualMachineInstance {
	vmi := tiny(name)
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, claimed("fixed", false), claimed("hot", true), claimed("iso", false))
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "settings", ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}})
	vmi.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "settings", Virtiofs: &v1.FilesystemVirtiofs{}}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}, {Name: "fixed"}, {Name: "hot"},
		{Name: "iso", CDRom: &v1.CDRomTarget{}}, {Name: "empty", CDRom: &v1.CDRomTarget{}}}
	v1.Default(vmi)
	return vmi
}

// plugs are the changes that virt-api may make.
var plugs = []diskChange{
	{"another order", func(spec *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		slices.Reverse(spec.Volumes)
		slices.Reverse(*disks)
	}},
	{"hotpluggable disks more", func(spec *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		most := v1.Volume{Name: "most", DataVolume: &v1.DataVolumeSource{Name: "c", Hotpluggable: true}}
		spec.Volumes = append(spec.Volumes, claimed("more", true), most)
		*disks = append(*disks, v1.Disk{Name: "more"}, v1.Disk{Name: "most"})
	}},
	{"the hotpluggable disk goes", func(spec *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		spec.Volumes, *disks = slices.Delete(spec.Volumes, hot, hot+1), slices.Delete(*disks, hot, hot+1)
	}},
	{"another claim for it", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes[hot].PersistentVolumeClaim.ClaimName = "x"
	}},
	{"a serial for it", func(_ *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) { (*disks)[hot].Serial = "x" }},
	{"a CD is inserted", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes = append(spec.Volumes, claimed("empty", false))
	}},
	{"a CD is ejected", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes = slices.Delete(spec.Volumes, iso, iso+1)
	}},
	{"another CD", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes[iso].PersistentVolumeClaim.ClaimName = "x"
	}},
}

// forbiddenPlugs are changes that virt-api may not make.
var forbiddenPlugs = []diskChange{
	{"a disk more that is not hotpluggable", func(spec *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		spec.Volumes, *disks = append(spec.Volumes, claimed("more", false)), append(*disks, v1.Disk{Name: "more"})
	}},
	{"a volume more that no disk shows", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes = append(spec.Volumes, claimed("more", false))
	}},
	{"the fixed disk goes", func(spec *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		spec.Volumes, *disks = slices.Delete(spec.Volumes, fixed, fixed+1), slices.Delete(*disks, fixed, fixed+1)
	}},
	{"the fixed volume goes", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes = slices.Delete(spec.Volumes, fixed, fixed+1)
	}},
	{"another claim for the fixed disk", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes[fixed].PersistentVolumeClaim.ClaimName = "x"
	}},
	{"another image", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes[root].ContainerDisk.Image = "x"
	}},
	{"a disk becomes hotpluggable", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes[fixed].PersistentVolumeClaim.Hotpluggable = true
	}},
	{"a disk is hotpluggable no more", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes[hot].PersistentVolumeClaim.Hotpluggable = false
	}},
	{"a disk becomes a CD-ROM", func(_ *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		(*disks)[fixed] = v1.Disk{Name: "fixed", CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}
	}},
	{"the CD-ROM becomes a disk", func(_ *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		(*disks)[iso] = v1.Disk{Name: "iso"}
	}},
	{"a secret as a CD", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		secret := v1.Volume{Name: "empty", Secret: &v1.SecretVolumeSource{SecretName: "s"}}
		spec.Volumes = append(spec.Volumes, secret)
	}},
	{"a file of the node as a CD", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes[iso] = v1.Volume{Name: "iso", HostDisk: &v1.HostDisk{Path: "/disks/a.img", Type: "Disk"}}
	}},
	{"a file system's ConfigMap as a CD", func(_ *v1.VirtualMachineInstanceSpec, disks *[]v1.Disk) {
		*disks = append(*disks, v1.Disk{Name: "settings", CDRom: &v1.CDRomTarget{}})
	}},
	{"a CD and a field of the devices", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes = append(spec.Volumes, claimed("empty", false))
		spec.Domain.Devices.Rng = &v1.Rng{}
	}},
	{"a CD and a field of the domain", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes = append(spec.Volumes, claimed("empty", false))
		spec.Domain.CPU.Sockets = 2
	}},
	{"a CD and a field of the spec", func(spec *v1.VirtualMachineInstanceSpec, _ *[]v1.Disk) {
		spec.Volumes = append(spec.Volumes, claimed("empty", false))
		spec.NodeSelector = map[string]string{"a": "b"}
	}},
}

// pluggedDisks: virt-api changes the hotpluggable volumes and the CD-ROMs of a VMI that has no VM, and their disks.
func (s *testServer) pluggedDisks(t *testing.T) {
	vmi, owned := withDisks("plugged"), withDisks("owned")
	s.admitHotpluggable(t, vmi)
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "VirtualMachine",
		Name: "owned", UID: "1", Controller: ptr.To(true)}}
	vmi, owned = s.started(t, vmi), s.started(t, owned)
	for _, changes := range [][]diskChange{plugs, forbiddenPlugs} {
		for _, c := range changes {
			write := func(as string, of *v1.VirtualMachineInstance) error {
				changed := of.DeepCopy()
				c.made(&changed.Spec, &changed.Spec.Domain.Devices.Disks)
				return s.as(as).Update(t.Context(), changed, client.DryRunAll)
			}
			permitted := &changes[0] == &plugs[0]
			if err := write(apiAccount, vmi); permitted && err != nil || !permitted && !restricted(err) {
				t.Errorf("virt-api: %s: %v", c.what, err)
			}
			if err := write(apiAccount, owned); !restricted(err) {
				t.Errorf("virt-api, of a VM's guest: %s: %v", c.what, err)
			}
			if err := write("somebody", vmi); !apierrors.IsInvalid(err) {
				t.Errorf("a user: %s: %v", c.what, err)
			}
		}
	}
}
