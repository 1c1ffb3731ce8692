package cpuprobe

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/hostcpu"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Argument {
		os.Exit(Main(os.Args[2:], os.Stderr))
	}
	os.Exit(m.Run())
}

// imageRoot returns the folder in which config/images/build.sh makes the root of the launcher's image.
func imageRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../../_output/cache/launcher-root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, qemu)); err != nil {
		t.Fatalf("%v: run config/images/build.sh launcher", err)
	}
	return root
}

// TestProbe asks the image's own QEMU.
func TestProbe(t *testing.T) {
	root := imageRoot(t)
	answers, err := Probe{Root: root}.Run(context.Background(), qemuargs.TCG)
	if err != nil {
		t.Fatal(err)
	}
	cpu, err := hostcpu.Read(answers)
	if err != nil {
		t.Fatal(err)
	}
	version, err := os.ReadFile(filepath.Join(root, "usr/share/kubeqemu/qemu-version"))
	if err != nil || strings.TrimSpace(string(version)) != cpu.QEMUVersion {
		t.Errorf("QEMU %s, and the image says %q, %v", cpu.QEMUVersion, version, err)
	}
	for _, model := range []string{"Nehalem", "Nehalem-v1", "Westmere", "max", "qemu64"} {
		if !slices.Contains(cpu.Models, model) {
			t.Errorf("QEMU emulates no %s, but %q", model, cpu.Models)
		}
	}
	// TCG knows neither AVX-512 nor the host's own CPU.
	for _, model := range []string{"Skylake-Server", "host"} {
		if slices.Contains(cpu.Models, model) {
			t.Errorf("QEMU emulates %s", model)
		}
	}
	if !slices.Contains(cpu.Features, "aes") || slices.Contains(cpu.Features, "avx512f") || cpu.HostModel != "Opteron_G2" || len(cpu.Flags) < 50 {
		t.Errorf("%+v", cpu)
	}
	if !slices.Contains(cpu.Flags, "family=6") || !slices.Contains(cpu.Flags, "stepping=3") {
		t.Errorf("flags %q", cpu.Flags)
	}
	if left, _ := os.ReadDir(filepath.Join(root, "dev")); len(left) > 0 {
		t.Errorf("%d files are left in the image's dev", len(left))
	}
}

// TestRootWithoutQEMUIsAnError: a root without QEMU is an error that says so.
func TestRootWithoutQEMUIsAnError(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := (Probe{Root: root}).Run(context.Background(), qemuargs.TCG); err == nil || !strings.Contains(err.Error(), "run QEMU: no such file") {
		t.Errorf("error %v", err)
	}
}

// TestSilentQEMUIsEnded: a QEMU that says nothing is ended.
func TestSilentQEMUIsEnded(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := (Probe{Path: "/bin/sleep", Args: []string{"60"}, Root: "0"}).Run(ctx, "0"); err == nil {
		t.Error("no error")
	}
}

func TestReadPhysBits(t *testing.T) {
	for text, want := range map[string]int{
		"model\t\t: 17\naddress sizes\t: 48 bits physical, 48 bits virtual\n": 48,
		"address sizes : 39 bits physical, 48 bits virtual\n":                 39,
		"model : 1\n": 0,
		"address sizes : 300 bits physical, 48 bits virtual": 0,
		"address sizes : many":                               0,
	} {
		if got, err := ReadPhysBits(text); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}
