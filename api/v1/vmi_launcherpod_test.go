package v1

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestLauncherPodName(t *testing.T) {
	const uid = types.UID("0a1b2c3d-0000-4000-8000-000000000001")
	long := strings.Repeat("a", 253)
	names := map[string]string{}
	for _, tt := range []struct {
		name string
		uid  types.UID
	}{
		{"vm", uid}, {"vm", uid + "2"}, {"vm2", uid}, {"dotted.name", uid},
		{long, uid}, {long, uid + "2"},
		// The cut falls on, before and after characters that may not end a part.
		{strings.Repeat("a", 127) + "-" + strings.Repeat("b", 20), uid + "3"},
		{strings.Repeat("a", 128) + "." + strings.Repeat("b", 20), uid + "4"},
		{"a" + strings.Repeat("-", 240) + "b", uid + "7"},
		{strings.Repeat("a", 129) + "-" + strings.Repeat("b", 20), uid + "5"}, {strings.Repeat("a.", 120) + "a", uid + "6"},
	} {
		got := LauncherPodName(tt.name, tt.uid, FirstPod)
		if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 {
			t.Errorf("%q: pod name %q: %v", tt.name, got, errs)
		}
		if !strings.HasPrefix(got, "virt-launcher-"+strings.TrimRight(tt.name[:min(len(tt.name), 120)], "-")) {
			t.Errorf("%q: pod name %q", tt.name, got)
		}
		want := tt.name
		if len(want) > MaxWholeName {
			want = ""
		}
		if of := VMIOfLauncherPod(got); of != want {
			t.Errorf("%q: the pod %q is of the VMI %q, want %q", tt.name, got, of, want)
		}
		if other, ok := names[got]; ok {
			t.Errorf("%q and %q have the same pod name", other, tt.name)
		}
		names[got] = tt.name
		if again := LauncherPodName(tt.name, tt.uid, FirstPod); again != got {
			t.Errorf("%q: %q, then %q", tt.name, got, again)
		}
	}
}

// TestDerivedNamesFit: what a VMI's pods and claims are called fits into the folders that kubelet and storage name
// after them, for every name that the API server accepts.
func TestDerivedNamesFit(t *testing.T) {
	const uid, role = types.UID("0a1b2c3d-0000-4000-8000-000000000001"), types.UID("0a1b2c3d-0000-4000-8000-000000000002")
	namespace := strings.Repeat("n", 63)
	for length := 1; length <= 253; length++ {
		name := strings.Repeat("a", length)
		folders := map[string]string{}
		for _, pod := range []string{LauncherPodName(name, uid, FirstPod), LauncherPodName(name, uid, role),
			ConsumerPodName(name, uid)} {
			folders[pod] = namespace + "_" + pod + "_" + string(uid)
		}
		for _, claim := range []string{StateClaimName(name, uid), StateCopyName(name, uid, role), CopyName(name, role)} {
			folders[claim] = "pvc-" + string(uid) + "_" + namespace + "_" + claim
		}
		if len(folders) != 6 {
			t.Errorf("%d characters: the names are not distinct: %v", length, folders)
		}
		for object, folder := range folders {
			if errs := validation.IsDNS1123Subdomain(object); len(folder) > 255 || len(errs) > 0 {
				t.Errorf("%d characters: %q (%d): %v", length, folder, len(folder), errs)
			}
		}
		if label := LabelOfName(name); len(validation.IsValidLabelValue(label)) > 0 {
			t.Errorf("%d characters: label %q", length, label)
		}
		vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
		if host := vmi.GuestHostname(); len(validation.IsDNS1123Label(host)) > 0 {
			t.Errorf("%d characters: host name %q", length, host)
		}
	}
}

// TestLauncherPodRoles: a VMI has one first pod, whoever makes it, and another for each
// migration. A pod that virt-controller did not write down is none of the VMI's.
func TestLauncherPodRoles(t *testing.T) {
	const uid, other = types.UID("0a1b2c3d-0000-4000-8000-000000000001"), types.UID("0a1b2c3d-0000-4000-8000-000000000002")
	seen := map[string]string{}
	for _, c := range []struct {
		what      string
		uid, role types.UID
	}{
		{"first", uid, FirstPod}, {"another VMI's first", other, FirstPod}, {"a migration's", uid, other},
		{"another migration's", uid, uid},
		{"of another VMI, by a migration", other, uid}, {"joined", uid + "/" + other + "x", FirstPod},
	} {
		name := LauncherPodName("vm", c.uid, c.role)
		if before, there := seen[name]; there {
			t.Errorf("%s and %s have the same name", before, c.what)
		}
		seen[name] = c.what
	}
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: uid}}
	first, target := LauncherPodName("vm", uid, FirstPod), LauncherPodName("vm", uid, other)
	if names := vmi.LauncherPodNames(); !slices.Equal(names, []string{first}) {
		t.Errorf("a new VMI has the pods %q", names)
	}
	vmi.Status.LauncherPods = []LauncherPod{{Name: first}, {Name: target}}
	if names := vmi.LauncherPodNames(); !slices.Equal(names, []string{first, target}) {
		t.Errorf("a VMI that migrates has the pods %q", names)
	}
}

func FuzzLauncherPodName(f *testing.F) {
	f.Add("vm", "uid")
	f.Add(strings.Repeat("a.-", 90), "uid")
	f.Fuzz(func(t *testing.T, name, uid string) {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Skip("no name of an object")
		}
		if errs := validation.IsDNS1123Subdomain(LauncherPodName(name, types.UID(uid), FirstPod)); len(errs) > 0 {
			t.Errorf("%q, %q: %q: %v", name, uid, LauncherPodName(name, types.UID(uid), FirstPod), errs)
		}
	})
}

func TestVMIOfLauncherPod(t *testing.T) {
	for pod, want := range map[string]string{
		"virt-launcher-vm-0123456789": "vm", "virt-launcher-a-b.c-0123456789": "a-b.c",
		"virt-launcher-virt-launcher-x-0123456789-abcdef0123": "virt-launcher-x-0123456789",
		"": "", "virt-launcher-": "", "virt-launcher--0123456789": "", "virt-launcher-vm": "",
		"virt-launcher-vm-012345678": "", "virt-launcher-vm-012345678g": "",
		"virt-consumer-vm-0123456789": "", "x-virt-launcher-vm-0123456789": "", "virt-launcher-vm-0123456789\n": "",
	} {
		if got := VMIOfLauncherPod(pod); got != want {
			t.Errorf("%q is of the VMI %q, want %q", pod, got, want)
		}
	}
}
