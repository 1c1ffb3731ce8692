package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// measureImports measures how the Debian guest's disk comes over HTTP. virt-importer fills a disk with it; beside it
// the image is downloaded, and then converted by qemu-img.
func measureImports(r *run) {
	folder := r.folder(r.work)
	server := serveImage(r, folder)
	size := float64(server.size) / 1e6
	const rounds = 3
	for range rounds {
		beside := oneAfterTheOther(r, server, folder)
		// The time is that of a run at which nobody looks: to look for the most memory takes CPU time.
		r.add("import-time", server.fill(r, folder, "", nil).Seconds(), beside.Seconds())
		var plain, checked importPeaks
		server.sent.Store(0)
		server.fill(r, folder, "", &plain)
		r.add("import-bytes", float64(server.sent.Swap(0))/1e6, size)
		r.add("import-memory", mib(plain.importer+plain.qemuImg))
		r.addParts("import-memory", mibs(plain.importer, plain.qemuImg)...)
		server.fill(r, folder, "sha256:"+server.sum, &checked)
		r.add("import-bytes-checksum", float64(server.sent.Load())/1e6, size)
	}
}

// imageServer serves one file, and counts the bytes.
type imageServer struct {
	url, sum string
	size     int64
	sent     atomic.Int64
}

// serveImage serves the Debian guest's disk, which it puts into the folder.
func serveImage(r *run, folder string) *imageServer {
	path := filepath.Join(folder, "debian.qcow2")
	found := unpack(r.output("images", "debian-container-disk.tar"), func(name string) string {
		if filepath.Base(filepath.Dir(name)) == "disk" {
			return path
		}
		return ""
	})
	if found != 1 {
		fail("extract the Debian guest's disk (config/images/build.sh debian): there are %d", found)
	}
	f := must(os.Open(path))
	defer f.Close()
	sum, s := sha256.New(), &imageServer{}
	s.size = must(io.Copy(sum, f))
	s.sum = hex.EncodeToString(sum.Sum(nil))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		http.ServeFile(&counted{w, &s.sent}, r, path)
	}))
	r.after(func() error { server.Close(); return nil })
	s.url = server.URL + "/debian.qcow2"
	return s
}

type counted struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// oneAfterTheOther downloads the image, converts it, and waits until the disk has it.
func oneAfterTheOther(r *run, server *imageServer, folder string) time.Duration {
	image, disk := filepath.Join(folder, "download"), filepath.Join(folder, "converted")
	defer os.Remove(image)
	defer os.Remove(disk)
	began := time.Now()
	for _, args := range [][]string{{"curl", "-sSfo", image, server.url},
		{"qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, disk}, {"sync", disk}} {
		must(command(r, nil, args[0], args[1:]...))
	}
	return time.Since(began)
}

// importPeaks are the most memory of virt-importer and of qemu-img, in bytes.
type importPeaks struct{ importer, qemuImg int64 }

// fill has virt-importer fill a disk, and returns how long that takes. With peaks it looks all the time how much memory
// that takes.
func (s *imageServer) fill(r *run, folder, checksum string, peaks *importPeaks) (took time.Duration) {
	const disk = 4 << 30
	task := must(json.Marshal(importer.Task{
		Source: importer.Source{HTTP: &importer.HTTP{URL: s.url, Checksum: checksum}},
		Target: importer.Target{Bytes: disk}, Permitted: []string{"127.0.0.0/8"}}))
	r.turn(func(r *run) {
		pod := r.folder(folder)
		cmd := exec.CommandContext(r, r.output("bin", "virt-importer"), "-disk", filepath.Join(pod, "disk.img"), "-work", pod,
			"-termination-log", filepath.Join(pod, "none"), "-progress", "127.0.0.1:0")
		cmd.Env = append(os.Environ(), importer.TaskVariable+"="+string(task))
		var log bytes.Buffer
		cmd.Stderr = &log
		began := time.Now()
		check(cmd.Start())
		ended, watched := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(watched)
			if peaks != nil {
				peaks.watch(cmd.Process.Pid, ended)
			}
		}()
		err := cmd.Wait()
		close(ended)
		<-watched
		took = time.Since(began)
		check(err, fmt.Sprintf("run virt-importer, which says %q", log.Bytes()))
	})
	return took
}

// watch looks for the most memory until the process has ended.
func (p *importPeaks) watch(pid int, ended <-chan struct{}) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		p.importer = max(p.importer, peakOf(pid, "virt-importer"))
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, list := range lists {
			text, _ := os.ReadFile(list) // a thread that has ended has no children
			for child := range strings.FieldsSeq(string(text)) {
				var pid int
				if _, err := fmt.Sscan(child, &pid); err == nil {
					p.qemuImg = max(p.qemuImg, peakOf(pid, "qemu-img"))
				}
			}
		}
		select {
		case <-ended:
			return
		case <-tick.C:
		}
	}
}

// peakOf is the most memory that a process had, in bytes. It is 0 if the process has ended, or is not yet the
// program: between fork and exec, a child has its parent's memory.
func peakOf(pid int, program string) int64 {
	process, err := procfs.NewProc(pid)
	status, err2 := process.NewStatus()
	if errors.Join(err, err2) != nil || status.Name != program {
		return 0
	}
	return int64(status.VmHWM)
}
