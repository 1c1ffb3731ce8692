//go:build long

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer/webtest"
)

// TestMemory: an image of the size of Debian's takes 64 MiB of memory at most, is read once, and takes
// hardly longer than downloading and converting it one after the other. With verbose output it says how
// much of each.
func TestMemory(t *testing.T) {
	folder := t.TempDir()
	raw, small := filepath.Join(folder, "raw"), filepath.Join(folder, "small")
	makeDisk(t, raw, 150)
	makeDisk(t, small, 20) // compressing takes long
	for _, c := range []struct {
		name     string
		args     []string
		pack     string
		checksum bool
	}{
		{"qcow2", []string{"-O", "qcow2"}, "", false},
		{"qcow2, checksum", []string{"-O", "qcow2"}, "", true},
		{"qcow2, compressed", []string{"-O", "qcow2", "-c"}, "", false},
		{"vmdk", []string{"-O", "vmdk"}, "", false},
		{"vhdx", []string{"-O", "vhdx"}, "", false},
		{"raw", nil, "", false},
		{"gzip", nil, "gzip -1", false},
		{"zstd", nil, "zstd -3", false},
		{"zstd, the largest window", nil, "zstd -3 --long=25", false},
		{"xz", nil, "xz -6", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := raw
			if c.pack != "" {
				disk = small
			}
			measure(t, disk, c.args, c.pack, c.checksum)
		})
	}
}

// makeDisk makes a disk of so many parts of 20 MiB, each with 4 MiB of content.
func makeDisk(t *testing.T, path string, parts int64) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{9})
	part := make([]byte, 4*mib)
	for i := range parts {
		_, _ = random.Read(part[:2*mib])
		copy(part[2*mib:], bytes.Repeat([]byte(fmt.Sprintf("text %d ", i)), 100<<10))
		if _, err := f.WriteAt(part, i*20*mib); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(parts * 20 * mib); err != nil {
		t.Fatal(err)
	}
}

func measure(t *testing.T, raw string, args []string, pack string, checksum bool) {
	folder := t.TempDir()
	image := raw
	if args != nil {
		image = filepath.Join(folder, "image")
		must(t, exec.Command("qemu-img", append(append([]string{"convert", "-f", "raw"}, args...), raw, image)...))
	}
	if pack != "" {
		image = filepath.Join(folder, "image")
		must(t, exec.Command("sh", "-c", pack+" -c '"+raw+"' >'"+image+"'"))
	}
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	server := webtest.Start(t, f, info.Size(), webtest.Behaviour{ETag: `"1"`})
	var plain time.Duration
	if args != nil && !checksum {
		must(t, exec.Command("sync"))
		began := time.Now()
		must(t, exec.Command("curl", "-sSo", filepath.Join(folder, "download"), server.URL))
		must(t, exec.Command("qemu-img", "convert", "-f", args[1], "-O", "raw", filepath.Join(folder, "download"), filepath.Join(folder, "converted")))
		must(t, exec.Command("sync", filepath.Join(folder, "converted")))
		plain = time.Since(began)
	}
	server.Sent.Store(0)
	pod := newPod(t, server.URL)
	pod.task.Target.Bytes = diskSize(t, raw)
	times := 1.05
	if checksum {
		out, err := exec.Command("sha256sum", image).Output()
		if err != nil {
			t.Fatal(err)
		}
		pod.task.Source.HTTP.Checksum, times = "sha256:"+string(out[:64]), 2.1
	}
	_, _ = buildOnce() // which is not measured
	must(t, exec.Command("sync"))
	began := time.Now()
	cmd := pod.start()
	memory := watchMemory(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, cmd.Stderr)
	}
	took := time.Since(began)
	ours, qemu := memory()
	t.Logf("%d MiB in %s: %.1f s (curl and qemu-img: %.1f s), %.3f times the bytes, virt-importer %d KiB and qemu-img %d KiB",
		info.Size()>>20, filepath.Base(image), took.Seconds(), plain.Seconds(), float64(server.Sent.Load())/float64(info.Size()), ours, qemu)
	if ours+qemu > 64<<10 || ours == 0 {
		t.Errorf("virt-importer took %d KiB and qemu-img %d KiB", ours, qemu)
	}
	if sent := float64(server.Sent.Load()) / float64(info.Size()); sent > times {
		t.Errorf("the server sent the file %.3f times", sent)
	}
	must(t, exec.Command("cmp", raw, pod.path("disk/disk.img")))
}

func diskSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func must(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
}

// watchMemory looks for the most memory of a process and of its children until the process ends, in KiB.
func watchMemory(pid int) (peaks func() (own, child int)) {
	own, child, ended := 0, 0, make(chan struct{})
	go func() {
		defer close(ended)
		for {
			now := peak(strconv.Itoa(pid), "virt-importer")
			if now == 0 {
				return
			}
			own = max(own, now)
			children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
			for _, path := range children {
				text, _ := os.ReadFile(path)
				for _, c := range strings.Fields(string(text)) {
					child = max(child, peak(c, "qemu-img"))
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return func() (int, int) { <-ended; return own, child }
}

// peak is VmHWM of a process, or 0 if it has ended, or is not yet the program: between fork and exec, a child
// has its parent's memory.
func peak(pid, program string) int {
	text, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "Name:"); ok && strings.TrimSpace(name) != program {
			return 0
		}
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib
		}
	}
	return 0
}
