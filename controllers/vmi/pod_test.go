package vmi

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*/*.golden.yaml") }

// load reads the VMI of a case as the API server would have it: valid, and defaulted.
func load(t *testing.T, dir string) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	data, err := os.ReadFile(filepath.Join(dir, "vmi.yaml"))
	if err == nil {
		err = yaml.UnmarshalStrict(data, vmi)
	}
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	v1.Default(vmi)
	if errs := v1.Validate(vmi); len(errs) > 0 {
		t.Fatalf("%s: %v", dir, errs.ToAggregate())
	}
	return vmi
}

func cases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*/vmi.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in testdata: %v", err)
	}
	for i := range files {
		files[i] = filepath.Dir(files[i])
	}
	return files
}

var testConfig = PodConfig{LauncherImage: "registry.example/virt-launcher:v1"}

func TestPodGolden(t *testing.T) {
	for _, dir := range cases(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			vmi := load(t, dir)
			before := vmi.DeepCopy()
			pod := Pod(vmi, testConfig)
			if !reflect.DeepEqual(before, vmi) {
				t.Error("Pod changed the VMI that it was given")
			}
			got, err := yaml.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, filepath.Join(dir, "pod.golden.yaml"), string(got))
		})
	}
}

// TestPodIsRestricted asks Kubernetes' own checks.
func TestPodIsRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	for _, dir := range cases(t) {
		for _, emulation := range []bool{false, true} {
			config := testConfig
			config.Emulation = emulation
			pod, consumer := Pod(load(t, dir), config), Consumer(load(t, dir), config)
			for _, p := range []*corev1.Pod{pod, consumer} {
				if r := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &p.ObjectMeta, &p.Spec)); !r.Allowed {
					t.Errorf("%s, pod %s, emulation %v: %s", dir, p.Name, emulation, r.ForbiddenDetail())
				}
			}
			pod.Spec.Containers[0].SecurityContext.Capabilities = nil
			if r := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec)); r.Allowed {
				t.Error("a pod with capabilities passes: the check checks nothing")
			}
		}
	}
}

// Every volume is mounted once, and every mount has its volume.
func TestPodMounts(t *testing.T) {
	for _, dir := range cases(t) {
		spec := Pod(load(t, dir), testConfig).Spec
		volumes, paths := map[string]int{}, map[string]bool{}
		for _, v := range spec.Volumes {
			if _, ok := volumes[v.Name]; ok {
				t.Errorf("%s: two volumes %s", dir, v.Name)
			}
			volumes[v.Name] = 0
		}
		for _, m := range spec.Containers[0].VolumeMounts {
			if _, ok := volumes[m.Name]; !ok || paths[m.MountPath] {
				t.Errorf("%s: mount of %s at %s", dir, m.Name, m.MountPath)
			}
			volumes[m.Name]++
			paths[m.MountPath] = true
		}
		for _, d := range spec.Containers[0].VolumeDevices {
			if _, ok := volumes[d.Name]; !ok || paths[d.DevicePath] {
				t.Errorf("%s: device of %s at %s", dir, d.Name, d.DevicePath)
			}
			volumes[d.Name]++
			paths[d.DevicePath] = true
		}
		for name, n := range volumes {
			if n != 1 {
				t.Errorf("%s: volume %s is mounted %d times", dir, name, n)
			}
		}
	}
}

func TestPodName(t *testing.T) {
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
		{strings.Repeat("a", 226) + "-" + strings.Repeat("b", 20), uid + "3"}, {strings.Repeat("a", 227) + "." + strings.Repeat("b", 20), uid + "4"},
		{strings.Repeat("a", 228) + "-" + strings.Repeat("b", 20), uid + "5"}, {strings.Repeat("a.", 120) + "a", uid + "6"},
	} {
		got := PodName(tt.name, tt.uid, First)
		if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 {
			t.Errorf("%q: pod name %q: %v", tt.name, got, errs)
		}
		if !strings.HasPrefix(got, "virt-launcher-"+tt.name[:min(len(tt.name), 200)]) {
			t.Errorf("%q: pod name %q", tt.name, got)
		}
		if other, ok := names[got]; ok {
			t.Errorf("%q and %q have the same pod name", other, tt.name)
		}
		names[got] = tt.name
		if again := PodName(tt.name, tt.uid, First); again != got {
			t.Errorf("%q: %q, then %q", tt.name, got, again)
		}
	}
}

// TestPodRoles: a VMI has one first pod, whoever makes it, and another for each
// migration. A pod that virt-controller did not write down is none of the VMI's.
func TestPodRoles(t *testing.T) {
	const uid, other = types.UID("0a1b2c3d-0000-4000-8000-000000000001"), types.UID("0a1b2c3d-0000-4000-8000-000000000002")
	seen := map[string]string{}
	for _, c := range []struct {
		what      string
		uid, role types.UID
	}{
		{"first", uid, First}, {"another VMI's first", other, First}, {"a migration's", uid, other}, {"another migration's", uid, uid},
		{"of another VMI, by a migration", other, uid}, {"joined", uid + "/" + other + "x", First},
	} {
		name := PodName("vm", c.uid, c.role)
		if before, there := seen[name]; there {
			t.Errorf("%s and %s have the same name", before, c.what)
		}
		seen[name] = c.what
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: uid}}
	first, target := PodName("vm", uid, First), PodName("vm", uid, other)
	if names := PodNames(vmi); !slices.Equal(names, []string{first}) {
		t.Errorf("a new VMI has the pods %q", names)
	}
	vmi.Status.LauncherPods = []v1.LauncherPod{{Name: first}, {Name: target}}
	if names := PodNames(vmi); !slices.Equal(names, []string{first, target}) {
		t.Errorf("a VMI that migrates has the pods %q", names)
	}
}

func FuzzPodName(f *testing.F) {
	f.Add("vm", "uid")
	f.Add(strings.Repeat("a.-", 90), "uid")
	f.Fuzz(func(t *testing.T, name, uid string) {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Skip("no name of an object")
		}
		if errs := validation.IsDNS1123Subdomain(PodName(name, types.UID(uid), First)); len(errs) > 0 {
			t.Errorf("%q, %q: %q: %v", name, uid, PodName(name, types.UID(uid), First), errs)
		}
	})
}

// The hash was made with sha1sum.
func TestIDLabel(t *testing.T) {
	limit := strings.Repeat("a", 63)
	for name, want := range map[string]string{
		"vm":         "vm",
		limit:        limit,
		limit + "bc": strings.Repeat("a", 54) + "-" + "ef41972a",
	} {
		if got := idLabel(name); got != want || len(validation.IsValidLabelValue(got)) > 0 {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestOverhead(t *testing.T) {
	const mib = 1 << 20
	tests := []struct {
		name      string
		memory    string
		cpu       v1.CPU
		graphics  *bool
		seeds     int
		emulation bool
		want      int64 // MiB
	}{
		{"smallest", "64Mi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, false, 64 + 2 + 3},
		{"one GiB", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, false, 64 + 2 + 3},
		{"a byte more", "1073741825", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, false, 64 + 4 + 3},
		{"64 GiB", "64Gi", v1.CPU{Cores: 4, Sockets: 2, Threads: 2}, ptr.To(false), 0, false, 64 + 128 + 48},
		{"graphics by default", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, nil, 0, false, 64 + 2 + 3 + 16},
		{"graphics", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(true), 0, false, 64 + 2 + 3 + 16},
		{"emulated", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, true, 64 + 2 + 3 + 160},
		{"two seeds", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 2, false, 64 + 2 + 3 + 2},
	}
	for _, tt := range tests {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse(tt.memory))}
		vmi.Spec.Domain.CPU = &tt.cpu
		vmi.Spec.Domain.Devices.AutoattachGraphicsDevice = tt.graphics
		vmi.Spec.Volumes = []v1.Volume{{ContainerDisk: &v1.ContainerDiskSource{}}}
		for range tt.seeds {
			vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{CloudInitNoCloud: &v1.CloudInitNoCloudSource{}})
		}
		if got := Overhead(vmi, tt.emulation); got != tt.want*mib {
			t.Errorf("%s: %d MiB and %d bytes, want %d MiB", tt.name, got/mib, got%mib, tt.want)
		}
	}
}
