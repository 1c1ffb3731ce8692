// Package goldentest holds manifests against the QEMU arguments that were recorded of them, in
// the tests of any Go project that keeps KubeVirt manifests.
package goldentest

import (
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// T is the part of *testing.T that Check uses.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// Check fails the test where the manifests below dir make other QEMU arguments than their
// goldens say, on a node with KVM and the QEMU of Kubeqemu's launcher (manifest.DefaultHost).
// "qemuargs golden --update dir" writes the goldens.
func Check(t T, dir string) {
	t.Helper()
	CheckOn(t, dir, manifest.DefaultHost)
}

// CheckOn does what Check does, on another host: a preset or a file, as "qemuargs golden --host" takes it.
func CheckOn(t T, dir, host string) {
	t.Helper()
	h, err := manifest.ParseHost(host)
	if err != nil {
		t.Errorf("goldentest: %v", err)
		return
	}
	side, err := golden.Open(dir, h, nil)
	if err != nil {
		t.Errorf("goldentest: %v", err)
		return
	}
	for _, text := range side.Warnings() {
		t.Logf("warning: %s", text)
	}
	results, err := golden.Check(side)
	if err != nil {
		t.Errorf("goldentest: %v", err)
	}
	for _, r := range results {
		t.Errorf("%v(qemuargs golden --update %s accepts the difference)", r, dir)
	}
}
