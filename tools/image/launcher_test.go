package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// launcherArchive is the finished launcher image. It is checked where it has been built.
const launcherArchive = "../../_output/images/virt-launcher.tar"

// openLauncher gives the image's config and its layer's entries by absolute path.
func openLauncher(t *testing.T) (headers map[string]*tar.Header, files map[string]string, user string, entrypoint []string) {
	t.Helper()
	if _, err := os.Stat(launcherArchive); errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no %s: run make image-launcher", launcherArchive)
	}
	image, err := tarball.ImageFromPath(launcherArchive, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	list, files := contents(t, image)
	headers = map[string]*tar.Header{}
	byPath := map[string]string{}
	for _, header := range list {
		name := "/" + strings.TrimSuffix(header.Name, "/")
		headers[name] = header
		byPath[name] = files[header.Name]
	}
	return headers, byPath, config.Config.User, config.Config.Entrypoint
}

func TestLauncherHoldsWhatItNeeds(t *testing.T) {
	headers, files, user, entrypoint := openLauncher(t)
	if user != "107:107" || fmt.Sprint(entrypoint) != "[/usr/bin/virt-launcher]" {
		t.Errorf("runs %v as %q", entrypoint, user)
	}
	for _, name := range []string{
		"/usr/bin/virt-launcher", "/usr/bin/virt-importer", "/usr/bin/virt-image", "/usr/bin/qemu-system-x86_64", "/usr/bin/qemu-img", "/usr/bin/swtpm", "/usr/libexec/virtiofsd", "/usr/bin/passt",
		"/usr/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/qemu/hw-display-virtio-vga.so",
		"/usr/share/seabios/bios-256k.bin", "/usr/share/seabios/vgabios-stdvga.bin", "/usr/share/seabios/vgabios-virtio.bin",
		"/usr/share/seabios/vgabios-bochs-display.bin", "/usr/share/seabios/vgabios-ramfb.bin", "/usr/share/qemu/kvmvapic.bin",
		"/usr/share/qemu/linuxboot_dma.bin", "/usr/share/qemu/multiboot_dma.bin", "/usr/share/qemu/pvh.bin",
		"/usr/share/qemu/efi-virtio.rom", "/usr/share/qemu/efi-e1000.rom", "/usr/share/qemu/efi-e1000e.rom", "/usr/share/qemu/efi-rtl8139.rom",
		"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd", "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd",
		"/usr/share/qemu/keymaps/en-us", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/ssl/certs/ca-certificates.crt",
	} {
		if header := headers[name]; header == nil || header.Typeflag != tar.TypeReg || header.Size == 0 {
			t.Errorf("%s is missing or empty", name)
		}
	}
	// As Debian 13 has them: its programs name their loader by /lib64.
	for name, target := range map[string]string{"/lib": "usr/lib", "/lib64": "usr/lib64", "/var/run": "../run"} {
		if header := headers[name]; header == nil || header.Typeflag != tar.TypeSymlink || header.Linkname != target {
			t.Errorf("%s is no link to %s", name, target)
		}
	}
	for file, line := range map[string]string{
		"/etc/passwd":                      `(?m)^qemu:x:107:107:`,
		"/etc/group":                       `(?m)^qemu:x:107:`,
		"/usr/share/kubeqemu/packages.txt": `(?m)^qemu-system-x86 1:11\.1\.\S+ amd64$`,
		"/usr/share/kubeqemu/qemu-version": `^11\.1\.[0-9]+\n$`,
	} {
		if !regexp.MustCompile(line).MatchString(files[file]) {
			t.Errorf("%s has no line %s:\n%s", file, line, files[file])
		}
	}
	checkLibraries(t, headers, files)
}

// checkLibraries looks for every library that a program or a library of the image names.
func checkLibraries(t *testing.T, headers map[string]*tar.Header, files map[string]string) {
	t.Helper()
	checked := 0
	for name, content := range files {
		if !strings.HasPrefix(content, elf.ELFMAG) {
			continue
		}
		file, err := elf.NewFile(strings.NewReader(content))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		needed, err := file.ImportedLibraries()
		if err != nil && !strings.Contains(name, "/virt-") {
			t.Errorf("%s: %v", name, err)
		}
		for _, library := range needed {
			if library == "libcrypto.so.3" && !strings.Contains(name, "tpms.so.") {
				t.Errorf("%s needs OpenSSL, which is there for swtpm alone", name)
			}
			if headers["/usr/lib/x86_64-linux-gnu/"+library] == nil && headers["/usr/lib/x86_64-linux-gnu/swtpm/"+library] == nil && headers["/usr/lib64/"+library] == nil {
				t.Errorf("%s needs %s, which is not in the image", name, library)
			}
		}
		checked++
	}
	if checked < 15 {
		t.Errorf("found only %d ELF files", checked)
	}
}

// outside of these is nothing but the folders that lead there and those that are mounted upon.
var launcherFolders = regexp.MustCompile(`^/(usr/bin|usr/libexec|usr/lib64|usr/lib/x86_64-linux-gnu(/qemu|/swtpm)?|usr/share/(seabios|OVMF|qemu|qemu/keymaps|kubeqemu)|etc|etc/ssl/certs)/[^/]+$` +
	`|^/(lib|lib64|var/run)$`)

// absentLibraries are what the stubs keep away: a program that calls nothing of
// GnuTLS has none of its faults either.
var absentLibraries = regexp.MustCompile(`/lib(ssl|gnutls|p11-kit|capstone|gio-2.0|slirp|kmod|ndctl|daxctl|nl-3|nl-route-3|elf)\.so`)

const stubs = "libkubeqemu-stubs.so"

func TestLauncherHoldsNothingElse(t *testing.T) {
	headers, files, _, _ := openLauncher(t)
	stubbed := 0
	for name, header := range headers {
		if header.Typeflag != tar.TypeDir && !launcherFolders.MatchString(name) {
			t.Errorf("%s is nothing that the launcher needs", name)
		}
		if header.Typeflag == tar.TypeSymlink && header.Linkname == stubs {
			stubbed++
		} else if absentLibraries.MatchString(name) {
			t.Errorf("%s is there, which no VM of ours calls", name)
		}
	}
	if stubbed < 10 || headers["/usr/lib/x86_64-linux-gnu/"+stubs] == nil {
		t.Errorf("%d links to %s; there should be 10 or more, and the library", stubbed, stubs)
	}
	programs := map[string]bool{"qemu-system-x86_64": true, "qemu-img": true, "swtpm": true, "virtiofsd": true, "passt": true, "virt-launcher": true, "virt-importer": true, "virt-image": true}
	for name, header := range headers {
		if header.Mode&0o6000 != 0 {
			t.Errorf("%s has mode %o", name, header.Mode)
		}
		if header.Mode&0o002 != 0 && header.Typeflag != tar.TypeSymlink && name != "/tmp" {
			t.Errorf("%s is writable by all: mode %o", name, header.Mode)
		}
		if header.Uid != 0 || header.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", name, header.Uid, header.Gid)
		}
		for pax := range header.PAXRecords {
			if strings.Contains(pax, "xattr") {
				t.Errorf("%s has the extended attribute %s", name, pax)
			}
		}
		switch header.Typeflag {
		case tar.TypeDir, tar.TypeSymlink:
			continue
		case tar.TypeReg:
		default:
			t.Errorf("%s is a special file (%c)", name, header.Typeflag)
			continue
		}
		// By place and by kind: every program is one of these, everything else executable is a library.
		inBin := regexp.MustCompile(`/(s?bin|libexec)/`).MatchString(name)
		library := strings.Contains(path.Base(name), ".so")
		if inBin && !programs[path.Base(name)] || header.Mode&0o111 != 0 && !inBin && !library {
			t.Errorf("%s is a program that does not belong here", name)
		}
		if strings.HasPrefix(files[name], "#!") {
			t.Errorf("%s is a script", name)
		}
	}
}

// The packed QEMU must start in its own root as the user of the image, with the devices a machine gets, reach the
// state before the first instruction, and answer; under TCG always, under KVM where the machine has it.
func TestLauncherRunsQEMU(t *testing.T) {
	headers, files, _, _ := openLauncher(t)
	if os.Geteuid() != 0 {
		t.Fatal("chroot needs root: run the tests as root")
	}
	root := unpack(t, headers, files)
	accelerators := []string{"tcg"}
	if addDevice(t, root, "kvm", 10, 232) {
		accelerators = append(accelerators, "kvm")
	} else {
		t.Log("NOT RUN UNDER KVM: this machine has no /dev/kvm")
	}
	addDevice(t, root, "null", 1, 3)
	for _, accelerator := range accelerators {
		t.Run(accelerator, func(t *testing.T) { startQEMU(t, root, accelerator) })
	}
}

// TestLauncherRunsQEMUImg: it makes and checks an overlay, by the libraries that are left to it.
func TestLauncherRunsQEMUImg(t *testing.T) {
	headers, files, _, _ := openLauncher(t)
	root := unpack(t, headers, files)
	addDevice(t, root, "null", 1, 3)
	for _, args := range [][]string{{"create", "-q", "-f", "qcow2", "/tmp/overlay.qcow2", "1G"}, {"check", "-q", "/tmp/overlay.qcow2"}} {
		img := exec.Command("/usr/bin/qemu-img", args...)
		img.Dir = "/"
		img.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 107, Gid: 107}}
		if out, err := img.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("qemu-img %v: %v: %s", args, err, out)
		}
	}
}

// TestLauncherRunsSWTPM: the TPM's emulator starts by the image's own libraries, and finds its own in a folder beside these.
func TestLauncherRunsSWTPM(t *testing.T) {
	headers, files, _, _ := openLauncher(t)
	root := unpack(t, headers, files)
	addDevice(t, root, "null", 1, 3)
	swtpm := exec.Command("/usr/bin/swtpm", "socket", "--tpm2", "--print-capabilities")
	swtpm.Dir = "/"
	swtpm.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 107, Gid: 107}}
	if out, err := swtpm.CombinedOutput(); err != nil || !strings.Contains(string(out), "cmdarg-seccomp") {
		t.Errorf("swtpm: %v: %s", err, out)
	}
}

// TestLauncherRunsImporter: virt-importer fills a disk by the image's own qemu-img.
func TestLauncherRunsImporter(t *testing.T) {
	headers, files, _, _ := openLauncher(t)
	root := unpack(t, headers, files)
	addDevice(t, root, "null", 1, 3)
	image := filepath.Join(t.TempDir(), "image.qcow2")
	content := bytes.Repeat([]byte("content "), 1<<17)
	if out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", image, "64M").CombinedOutput(); err != nil {
		t.Fatalf("qemu-img create: %v: %s", err, out)
	}
	pattern := filepath.Join(t.TempDir(), "pattern")
	if err := os.WriteFile(pattern, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-io", "-f", "qcow2", "-c", "write -s "+pattern+" 32M 1M", image).CombinedOutput(); err != nil {
		t.Fatalf("qemu-io: %v: %s", err, out)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(image))))
	defer server.Close()
	// A pod has /proc: no source may be at a gateway of its routes.
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "proc/net"), 0o755), os.WriteFile(filepath.Join(root, "proc/net/route"), []byte("Iface\tDestination\tGateway\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	importer := exec.Command("/usr/bin/virt-importer", "-disk", "/tmp/disk.img", "-progress", "127.0.0.1:0", "-termination-log", "/tmp/none")
	importer.Dir = "/"
	importer.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 107, Gid: 107}}
	importer.Env = []string{`IMPORT_TASK={"source":{"http":{"url":"` + server.URL + `/image.qcow2"}},"target":{"bytes":67108864},"permitted":["127.0.0.0/8"]}`}
	if out, err := importer.CombinedOutput(); err != nil {
		t.Fatalf("virt-importer: %v: %s", err, out)
	}
	disk, err := os.ReadFile(filepath.Join(root, "tmp/disk.img"))
	if err != nil || len(disk) != 64<<20 || !bytes.Equal(disk[32<<20:33<<20], content) || len(bytes.Trim(disk[33<<20:], "\x00")) > 0 {
		t.Errorf("the disk has %d other bytes: %v", len(disk), err)
	}
}

func startQEMU(t *testing.T, root, accelerator string) {
	t.Helper()
	qemu := exec.Command("/usr/bin/qemu-system-x86_64", "-M", "q35", "-accel", accelerator, "-cpu", "qemu64", "-m", "64", "-S",
		"-nodefaults", "-no-user-config", "-chardev", "stdio,id=qmp", "-object", "monitor-qmp,id=qmp,chardev=qmp", "-vnc", "unix:/tmp/vnc-"+accelerator, "-device", "VGA",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-blockdev", `{"driver":"null-co","node-name":"disk","read-zeroes":true}`, "-device", "virtio-blk-pci,drive=disk,bootindex=1",
		"-netdev", "hubport,hubid=0,id=net", "-device", "virtio-net-pci,netdev=net,bootindex=2", "-device", "virtio-rng-pci",
		"-device", "ich9-ahci,id=ahci", "-device", "ide-cd,bus=ahci.0", "-device", "virtio-gpu-pci", "-device", "e1000e")
	qemu.Dir = "/"
	qemu.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 107, Gid: 107}}
	qemu.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}{"execute":"query-status"}{"execute":"query-kvm"}{"execute":"quit"}`)
	var stderr bytes.Buffer
	qemu.Stderr = &stderr
	out, err := qemu.Output()
	if err != nil {
		t.Fatalf("run QEMU: %v\n%s%s", err, out, &stderr)
	}
	if strings.Contains(stderr.String(), "deprecated") {
		t.Errorf("QEMU complains: %s", &stderr)
	}
	var replies []map[string]json.RawMessage
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var reply map[string]json.RawMessage
		if err := json.Unmarshal(lines.Bytes(), &reply); err != nil {
			t.Fatalf("read %q: %v", lines.Text(), err)
		}
		if reply["return"] != nil {
			replies = append(replies, reply)
		}
	}
	if len(replies) < 3 || !strings.Contains(string(replies[1]["return"]), `"prelaunch"`) ||
		!strings.Contains(string(replies[2]["return"]), fmt.Sprintf(`"enabled": %t`, accelerator == "kvm")) {
		t.Errorf("answered %s\n%s", out, &stderr)
	}
}

// unpack writes the entries into a new folder.
func unpack(t *testing.T, headers map[string]*tar.Header, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	// the user of the image has to pass the folders above
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, header := range headers {
		target := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch header.Typeflag {
		case tar.TypeDir:
			if err = os.MkdirAll(target, 0o755); err == nil && header.Mode&0o002 != 0 {
				err = os.Chmod(target, 0o777)
			}
		case tar.TypeSymlink:
			err = os.Symlink(header.Linkname, target)
		case tar.TypeReg:
			if err = os.WriteFile(target, []byte(files[name]), 0o600); err == nil {
				err = os.Chmod(target, fs.FileMode(header.Mode))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// addDevice makes a device node in root's /dev like the machine's own; false if the machine has none.
func addDevice(t *testing.T, root, name string, major, minor int) bool {
	t.Helper()
	device, err := os.Open("/dev/" + name)
	if err != nil {
		return false
	}
	device.Close()
	node := filepath.Join(root, "dev", name)
	if err := syscall.Mknod(node, syscall.S_IFCHR|0o666, major<<8|minor); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(node, 0o666); err != nil {
		t.Fatal(err)
	}
	return true
}
