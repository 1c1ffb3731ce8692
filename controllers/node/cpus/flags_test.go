package cpus

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// TestFlagsDoNotWait: there are no flags while QEMU has not answered, and none of another QEMU or accelerator.
func TestFlagsDoNotWait(t *testing.T) {
	f := start(t, kvmcheck.Works)
	testkit.Receive(t, f.asked, "the question")
	if got := f.Flags(qemuargs.KVM, "11.1.0"); got != nil {
		t.Errorf("before the answer: %q", got)
	}
	f.answers <- nil
	testkit.Until(t, "the answer", func() bool { return f.told(t) != "" })
	if got := f.Flags(qemuargs.KVM, "11.1.0"); !slices.Equal(got, []string{"kvm=on"}) {
		t.Errorf("flags %q", got)
	}
	if a, b := f.Flags(qemuargs.KVM, "11.1.3"), f.Flags(qemuargs.TCG, "11.1.0"); a != nil || b != nil {
		t.Errorf("of another QEMU %q, of another accelerator %q", a, b)
	}
}

// TestVersionIsThatOfTheLaunchersImage: the version stands in the image's file.
func TestVersionIsThatOfTheLaunchersImage(t *testing.T) {
	root := t.TempDir()
	if got, err := QEMUVersion(root); err == nil || !strings.HasPrefix(err.Error(), "read the version") {
		t.Errorf("without the file: %q, %v", got, err)
	}
	file := filepath.Join(root, layout.QEMUVersion)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("11.1.3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := QEMUVersion(root); err != nil || got != "11.1.3" {
		t.Errorf("%q, %v", got, err)
	}
}
