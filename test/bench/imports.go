package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// importRows: the Debian guest's disk comes over HTTP. virt-importer fills a disk with it; beside it the image is
// downloaded, and then converted by qemu-img.
func importRows(ctx context.Context, b *bench) ([]row, error) {
	const what = "the Debian guest's qcow2 over HTTP"
	rows := []row{
		{ID: "import-memory", What: "importer's peak memory, " + what, Unit: mebibytes, Ours: series{Name: "importer pod"}, Limit: 64,
			Parts: []series{{Name: "virt-importer"}, {Name: "qemu-img"}}},
		{ID: "import-bytes", What: "bytes that the importer reads, " + what, Unit: megabytes, Ours: series{Name: "importer"},
			Beside: []series{{Name: "the image"}}, Limit: 1.05, OfRatio: true},
		{ID: "import-bytes-checksum", What: "the same, with a checksum", Unit: megabytes, Ours: series{Name: "importer"},
			Beside: []series{{Name: "the image"}}, Limit: 2.1, OfRatio: true},
		{ID: "import-time", What: "time of an import, " + what, Unit: seconds, Ours: series{Name: "importer"},
			Beside: []series{{Name: "download, then qemu-img convert"}}, Limit: 1.2, OfRatio: true},
	}
	folder, err := os.MkdirTemp(b.work, "import-")
	if err != nil {
		return rows, err
	}
	defer os.RemoveAll(folder)
	image := filepath.Join(folder, "debian.qcow2")
	if err := extractDisk(b.output("images", "debian-container-disk.tar"), image); err != nil {
		return rows, fmt.Errorf("extract the Debian guest's disk (config/images/build.sh debian): %w", err)
	}
	server, err := newImageServer(image)
	if err != nil {
		return rows, err
	}
	defer server.Close()
	const rounds = 3
	for round := range rounds {
		if err := importRound(ctx, b, server, folder, rows); err != nil {
			return rows, err
		}
		b.say("import, round %d: %.1f s, %.1f s one after the other, %.1f MiB", round, last(rows[3].Ours), last(rows[3].Beside[0]), last(rows[0].Ours))
	}
	return rows, nil
}

func last(s series) float64 { return s.Samples[len(s.Samples)-1] }

func importRound(ctx context.Context, b *bench, server *imageServer, folder string, rows []row) error {
	memory, read, checked, took := &rows[0], &rows[1], &rows[2], &rows[3]
	beside, err := oneAfterTheOther(ctx, server, folder)
	if err != nil {
		return err
	}
	add(&took.Beside[0], beside.Seconds())
	// The time is that of a run at which nobody looks: to look for the most memory takes CPU time.
	run, err := runImporter(ctx, b, server, folder, "", false)
	if err != nil {
		return err
	}
	add(&took.Ours, run.took.Seconds())
	for _, checksum := range []string{"", "sha256:" + server.sum} {
		server.sent.Store(0)
		run, err := runImporter(ctx, b, server, folder, checksum, true)
		if err != nil {
			return err
		}
		sent, size := float64(server.sent.Load())/1e6, float64(server.size)/1e6
		if checksum != "" {
			add(&checked.Ours, sent)
			add(&checked.Beside[0], size)
			break
		}
		add(&read.Ours, sent)
		add(&read.Beside[0], size)
		add(&memory.Ours, mib(run.own+run.child))
		add(&memory.Parts[0], mib(run.own))
		add(&memory.Parts[1], mib(run.child))
	}
	return nil
}

// imageServer serves one file, and counts the bytes.
type imageServer struct {
	url, sum string
	size     int64
	sent     atomic.Int64
	server   *http.Server
}

func newImageServer(path string) (*imageServer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &imageServer{url: "http://" + listener.Addr().String() + "/debian.qcow2", sum: hex.EncodeToString(sum.Sum(nil)), size: size}
	s.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		http.ServeFile(&counted{w, &s.sent}, r, path)
	})}
	go s.server.Serve(listener) // until Close
	return s, nil
}

func (s *imageServer) Close() { s.server.Close() }

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
func oneAfterTheOther(ctx context.Context, server *imageServer, folder string) (time.Duration, error) {
	image, disk := filepath.Join(folder, "download"), filepath.Join(folder, "converted")
	defer os.Remove(image)
	defer os.Remove(disk)
	began := time.Now()
	for _, args := range [][]string{{"curl", "-sSfo", image, server.url}, {"qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, disk}, {"sync", disk}} {
		if _, err := command(ctx, nil, args[0], args[1:]...); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// importRun is what an import took: the time, and the most memory of virt-importer and of qemu-img, in bytes.
type importRun struct {
	took       time.Duration
	own, child int64
}

// runImporter fills a disk. With look it looks all the time how much memory that takes.
func runImporter(ctx context.Context, b *bench, server *imageServer, folder, checksum string, look bool) (importRun, error) {
	var run importRun
	const disk = 4 << 30
	task, err := json.Marshal(importer.Task{Source: importer.Source{HTTP: &importer.HTTP{URL: server.url, Checksum: checksum}},
		Target: importer.Target{Bytes: disk}, Permitted: []string{"127.0.0.0/8"}})
	if err != nil {
		return run, err
	}
	pod, err := os.MkdirTemp(folder, "pod-")
	if err != nil {
		return run, err
	}
	defer os.RemoveAll(pod)
	cmd := exec.CommandContext(ctx, b.output("bin", "virt-importer"), "-disk", filepath.Join(pod, "disk.img"), "-work", pod,
		"-termination-log", filepath.Join(pod, "none"), "-progress", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), importer.TaskVariable+"="+string(task))
	var log bytes.Buffer
	cmd.Stderr = &log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return run, err
	}
	ended := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if look {
			run.watch(cmd.Process.Pid, ended)
		}
	}()
	err = cmd.Wait()
	close(ended)
	<-watched
	run.took = time.Since(began)
	if err != nil {
		return run, fmt.Errorf("run virt-importer: %w: %s", err, log.Bytes())
	}
	return run, nil
}

// watch looks for the most memory until the process has ended.
func (r *importRun) watch(pid int, ended <-chan struct{}) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		r.own = max(r.own, peakOf(pid, "virt-importer"))
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, list := range lists {
			text, _ := os.ReadFile(list) // a thread that has ended has no children
			for child := range strings.FieldsSeq(string(text)) {
				var pid int
				if _, err := fmt.Sscan(child, &pid); err == nil {
					r.child = max(r.child, peakOf(pid, "qemu-img"))
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
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	var peak int64
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "Name:"); ok && strings.TrimSpace(name) != program {
			return 0
		}
		if name, bytes, ok := kilobytes(line); ok && name == "VmHWM" {
			peak = bytes
		}
	}
	return peak
}

// extractDisk writes the only disk of a container disk's archive into a file.
func extractDisk(archive, to string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for files := tar.NewReader(f); ; {
		header, err := files.Next()
		if err != nil {
			return fmt.Errorf("find a disk in %s: %w", archive, err)
		}
		if !strings.HasSuffix(header.Name, ".tar.gz") {
			continue
		}
		layer, err := gzip.NewReader(files)
		if err != nil {
			return err
		}
		if found, err := extractFrom(layer, to); found || err != nil {
			return err
		}
	}
}

func extractFrom(layer io.Reader, to string) (found bool, err error) {
	for files := tar.NewReader(layer); ; {
		header, err := files.Next()
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if header.Typeflag != tar.TypeReg || filepath.Base(filepath.Dir(header.Name)) != "disk" {
			continue
		}
		out, err := os.Create(to)
		if err != nil {
			return false, err
		}
		_, err = io.Copy(out, files)
		return true, errors.Join(err, out.Close())
	}
}
