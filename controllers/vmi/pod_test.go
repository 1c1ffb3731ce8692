package vmi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
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
	if errs := validation.ValidateVirtualMachineInstance(vmi); len(errs) > 0 {
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

// TestPodWithImageContainersGolden: where there are no image volumes, each container disk is a container of its own,
// and a kernel is copied by one.
func TestPodWithImageContainersGolden(t *testing.T) {
	for _, name := range []string{"debian", "placement", "dedicated-cpus"} {
		config := testConfig
		config.Images = images.Containers
		dir := filepath.Join("testdata", name)
		got, err := yaml.Marshal(Pod(load(t, dir), config))
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, filepath.Join(dir, "pod-containers.golden.yaml"), string(got))
	}
}

// TestPodIsRestricted: Kubernetes' own checks admit the pod and the consumer to a namespace that enforces the
// restricted standard.
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
			if emulation {
				config.Images = images.Containers
			}
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

// TestEveryVolumeIsMountedOnce: every volume is mounted once, and every mount has its volume.
func TestEveryVolumeIsMountedOnce(t *testing.T) {
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
		for _, c := range spec.InitContainers {
			for _, m := range c.VolumeMounts {
				if m.MountPath != layout.FileSystemSocketDir &&
					m.MountPath != layout.PasstSocketDir { // the launcher's container has it too
					volumes[m.Name]++
				}
			}
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

// TestNamesInThePodDoNotDependOnPlaces: a volume, file system or interface that comes before another changes no name in
// the pod: things may come and go while the guest runs.
func TestNamesInThePodDoNotDependOnPlaces(t *testing.T) {
	for _, dir := range cases(t) {
		vmi := load(t, dir)
		devices := &vmi.Spec.Domain.Devices
		names := func() []string {
			var out []string
			pod := Pod(vmi, testConfig)
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				out = append(out, c.Name)
			}
			for _, v := range pod.Spec.Volumes {
				source, err := json.Marshal(v.VolumeSource)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, v.Name+" "+string(source))
			}
			slices.Sort(out)
			return out
		}
		before := names()
		slices.Reverse(vmi.Spec.Volumes)
		slices.Reverse(devices.Filesystems)
		slices.Reverse(devices.Interfaces)
		if diff := cmp.Diff(before, names()); diff != "" {
			t.Errorf("%s: in another order: %s", dir, diff)
		}
	}
}

// TestLabelOfALongName: a name that is too long for a label ends in a hash. The hash was made with sha1sum.
func TestLabelOfALongName(t *testing.T) {
	limit := strings.Repeat("a", 63)
	for name, want := range map[string]string{
		"vm":         "vm",
		limit:        limit,
		limit + "bc": strings.Repeat("a", 54) + "-" + "ef41972a",
	} {
		if got := v1.LabelOfName(name); got != want || len(utilvalidation.IsValidLabelValue(got)) > 0 {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestMemoryOverhead(t *testing.T) {
	const mib = 1 << 20
	tests := []struct {
		name      string
		memory    string
		cpu       v1.CPU
		graphics  *bool
		seeds     int
		emulation bool
		uefi      bool
		want      int64 // MiB
	}{
		{"smallest", "64Mi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, false, false, 64 + 2 + 3},
		{"UEFI", "64Mi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, false, true, 64 + 2 + 3 + 6},
		{"one GiB", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, false, false, 64 + 2 + 3},
		{"a byte more", "1073741825", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, false, false, 64 + 4 + 3},
		{"64 GiB", "64Gi", v1.CPU{Cores: 4, Sockets: 2, Threads: 2}, ptr.To(false), 0, false, false, 64 + 128 + 48},
		{"graphics by default", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, nil, 0, false, false, 64 + 2 + 3 + 16},
		{"graphics", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(true), 0, false, false, 64 + 2 + 3 + 16},
		{"emulated", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 0, true, false, 64 + 2 + 3 + 160},
		{"two seeds", "1Gi", v1.CPU{Cores: 1, Sockets: 1, Threads: 1}, ptr.To(false), 2, false, false, 64 + 2 + 3 + 2},
	}
	withTPM := &v1.VirtualMachineInstance{}
	withTPM.Spec.Domain.Memory, withTPM.Spec.Domain.CPU = &v1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))},
		&v1.CPU{Cores: 1, Sockets: 1, Threads: 1}
	bare := Overhead(withTPM, false)
	withTPM.Spec.Domain.Devices.TPM = &v1.TPMDevice{}
	if got := Overhead(withTPM, false) - bare; got != 8*mib {
		t.Errorf("a TPM books %d bytes", got)
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
		if tt.uefi {
			vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}}
		}
		if got := Overhead(vmi, tt.emulation); got != tt.want*mib {
			t.Errorf("%s: %d MiB and %d bytes, want %d MiB", tt.name, got/mib, got%mib, tt.want)
		}
	}
}

// TestThreadOverhead: a MiB is booked for each thread that serves disks.
func TestThreadOverhead(t *testing.T) {
	for name, tt := range map[string]struct {
		policy v1.IOThreadsPolicy
		pool   uint32
		own    int // disks with a thread of their own
		others int
		want   int64
	}{
		"none": {"", 0, 0, 3, 0}, "shared": {v1.IOThreadsPolicyShared, 0, 0, 3, 1}, "dedicated": {"", 0, 2, 3, 3},
		"all dedicated": {"", 0, 2, 0, 2},
		"auto":          {v1.IOThreadsPolicyAuto, 0, 1, 3, 4}, "pool": {v1.IOThreadsPolicySupplementalPool, 7, 0, 3, 7},
	} {
		domain := &v1.DomainSpec{}
		if tt.policy != "" {
			domain.IOThreadsPolicy = &tt.policy
		}
		if tt.pool > 0 {
			domain.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: &tt.pool}
		}
		for i := range tt.own + tt.others {
			domain.Devices.Disks = append(domain.Devices.Disks, v1.Disk{DedicatedIOThread: ptr.To(i < tt.own)})
		}
		if got := ioThreads(domain); got != tt.want {
			t.Errorf("%s: %d threads, want %d", name, got, tt.want)
		}
	}
}
