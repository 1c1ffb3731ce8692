package disks

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// TestInspectKernel: the kernel's files are found as disks are: no link is
// followed, and only regular files are taken.
func TestInspectKernel(t *testing.T) {
	root := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "boot"), 0o755),
		os.WriteFile(filepath.Join(root, "boot", "vmlinuz"), []byte("kernel"), 0o644),
		os.WriteFile(filepath.Join(root, "boot", "initrd"), []byte("initrd"), 0o644),
		os.Symlink("/etc/passwd", filepath.Join(root, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	good := findKernel(root, control.KernelFiles{Kernel: "/boot/vmlinuz", Initrd: "/boot/../boot/initrd"})
	if good.Error != "" || good.Path != filepath.Join(root, "boot/vmlinuz") || good.Initrd != filepath.Join(root, "boot/initrd") {
		t.Errorf("a good image: %+v", good)
	}
	for _, files := range []control.KernelFiles{{Kernel: "/none"}, {Kernel: "/link"}, {Kernel: "/boot"}, {Kernel: "/boot/vmlinuz", Initrd: "/link"}, {Kernel: "../../etc/passwd"}} {
		if got := findKernel(root, files); got.Error == "" || got.Path != "" {
			t.Errorf("%+v: %+v, want an error alone", files, got)
		}
	}
}

// TestReadSSHKeys: every line of every entry of the Secrets, as the kubelet mounts them.
func TestReadSSHKeys(t *testing.T) {
	dir := t.TempDir()
	for number, entries := range map[int]map[string]string{
		0: {"a": "ssh-ed25519 A a@b\n", "b": "# of the team\n\nssh-rsa B\r\nssh-rsa C"},
		7: {"key": "ssh-rsa D", "empty": ""},
	} {
		folder := layout.AccessCredential(dir, number)
		if err := os.MkdirAll(filepath.Join(folder, "..data"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range entries {
			if err := errors.Join(os.WriteFile(filepath.Join(folder, "..data", name), []byte(text), 0o600),
				os.Symlink("..data/"+name, filepath.Join(folder, name))); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys, err := readKeys(dir, []int{0, 7})
	if want := []string{"ssh-ed25519 A a@b", "ssh-rsa B", "ssh-rsa C", "ssh-rsa D"}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("%q (%v), want %q", keys, err, want)
	}
	if _, err := readKeys(dir, []int{1}); err == nil {
		t.Error("a Secret that is not there was read")
	}
}

// TestReadSecrets: of a Secret volume, whose keys are links of the kubelet's.
func TestReadSecrets(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "seed", "user", "..data")
	for _, err := range []error{
		os.MkdirAll(data, 0o755),
		os.WriteFile(filepath.Join(data, "userdata"), []byte("#cloud-config"), 0o600),
		os.Symlink("..data/userdata", filepath.Join(dir, "seed", "user", "userdata")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	seed := control.CloudInitSeed{Volume: "seed", UserDataSecret: true, NetworkData: []byte("version: 2")}
	if err := readSecrets(dir, &seed); err != nil || string(seed.UserData) != "#cloud-config" || string(seed.NetworkData) != "version: 2" {
		t.Errorf("%v, %+v", err, seed)
	}
	seed.NetworkDataSecret = true
	if err := readSecrets(dir, &seed); err == nil {
		t.Error("a Secret that is not there was read")
	}
}

// TestOtherArchitecturesMachineIsNotTried: QEMU is not tried with another architecture's machine.
func TestOtherArchitecturesMachineIsNotTried(t *testing.T) {
	for _, arch := range []qemuargs.Arch{"", "s390x"} {
		request := &control.StartRequest{Machine: qemuargs.Machine{Arch: arch}}
		err := Folders{}.Prepare(t.Context(), request, nil, 0, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "architecture") {
			t.Errorf("%q: %v, want it refused", arch, err)
		}
	}
}
