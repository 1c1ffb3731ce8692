package cluster

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestContainerd1Config: containerd 1.x reads no configuration of version 3.
func TestContainerd1Config(t *testing.T) {
	p := testPlan(t, 1, 1)
	p.Containerd1 = true
	files, err := p.nodeConfigs(p.Nodes[0], true)
	if err != nil {
		t.Fatal(err)
	}
	toml := string(files["containerd.toml"])
	for _, want := range []string{"version = 2\n", `sandbox_image = "` + pauseImage + `"`, "restrict_oom_score_adj = true", `address = "` + criSocket + `"`} {
		if !strings.Contains(toml, want) {
			t.Errorf("containerd.toml lacks %s", want)
		}
	}
}

// TestReleases: what is built for each release is of the versions that its name and its files say.
func TestReleases(t *testing.T) {
	for name, want := range map[string]struct{ kubernetes, containerd string }{
		"": {"v1.", "v2."}, "1.33": {"v1.33.", "v2."}, "1.31": {"v1.31.", "v1.7."},
	} {
		release, err := ParseRelease(name)
		if err != nil {
			t.Fatal(err)
		}
		source, err := filepath.Abs(".")
		if err != nil {
			t.Fatal(err)
		}
		kube, containerd := release.modules(source)
		kubernetes, err := kube.version(t.Context(), "k8s.io/kubernetes")
		if err != nil || !strings.HasPrefix(kubernetes, want.kubernetes) {
			t.Errorf("release %q has Kubernetes %s (%v), want %s", name, kubernetes, err, want.kubernetes)
		}
		runtime, err := containerd.version(t.Context(), release.containerdName())
		if err != nil || !strings.HasPrefix(runtime, want.containerd) {
			t.Errorf("release %q has containerd %s (%v), want %s", name, runtime, err, want.containerd)
		}
	}
	if _, err := ParseRelease("1.9"); err == nil || !strings.Contains(err.Error(), "want one of 1.31, 1.33") {
		t.Errorf("a release that cannot be built: %v", err)
	}
}

func TestMajorMinor(t *testing.T) {
	if major, minor, err := majorMinor("v1.36.3"); major != "1" || minor != "36" || err != nil {
		t.Errorf("got %q %q %v", major, minor, err)
	}
	if _, _, err := majorMinor("latest"); err == nil {
		t.Error("a version without numbers was accepted")
	}
}
