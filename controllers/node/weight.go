package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

// Weight keeps the CPU weight of virt-handler's pod so high that a hundred busy guests do not
// starve it. The kubelet computes a pod's weight from the pod's CPU request, and virt-handler
// requests little. A weight is no limit, and reserves nothing: guests use the CPU time that
// virt-handler leaves.
//
// The pods of virt-api and virt-controller keep the kubelet's weight: a pod's cgroup is named
// by its UID, and virt-handler knows only its own.
type Weight struct {
	// Cgroups is the host's /sys/fs/cgroup; Self is the process's /proc/self/cgroup.
	Cgroups, Self string
	// PodUID is the UID of virt-handler's pod. The name of the pod's cgroup contains it.
	PodUID string
	Log    logr.Logger

	said string
}

// weightInterval is the time between two looks: systemd may write the kubelet's weight again.
const weightInterval = 15 * time.Second

// About the weight of a hundred guests of one vCPU, for cgroup v2 and for v1.
const (
	handlerWeight = 1000
	handlerShares = 10240
)

var errNoPodCgroup = errors.New("no cgroup of this pod is in sight")

// Start implements manager.Runnable.
func (w *Weight) Start(ctx context.Context) error {
	ticker := time.NewTicker(weightInterval)
	defer ticker.Stop()
	for {
		w.Hold()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Hold raises the weight if it is lower. A failure is logged once, and changes nothing else.
// Only one goroutine may call Hold at a time.
func (w *Weight) Hold() {
	said, err := w.raise()
	if err != nil {
		said = "it stays what the kubelet made it: " + err.Error()
	}
	if said != w.said && said != "" {
		w.said = said
		w.Log.Info("CPU weight", "state", said)
	}
}

// raise returns what it wrote, if anything.
func (w *Weight) raise() (string, error) {
	own, err := w.cgroup()
	if err != nil {
		return "", err
	}
	file, wanted := filepath.Join(own, "cpu.weight"), handlerWeight
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		file, wanted = filepath.Join(own, "cpu.shares"), handlerShares
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("read CPU weight: %w", err)
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && now >= wanted {
		return "", nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(wanted)), 0); err != nil {
		return "", fmt.Errorf("write CPU weight: %w", err)
	}
	return fmt.Sprintf("%s is %d", file, wanted), nil
}

// cgroup returns the folder of this pod's cgroup.
func (w *Weight) cgroup() (string, error) {
	text, err := os.ReadFile(w.Self)
	if err != nil {
		return "", fmt.Errorf("read own cgroup: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		// Each line is number:controllers:path; for cgroup v2 the controllers are empty.
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] != "" && !slices.Contains(strings.Split(fields[1], ","), "cpu") {
			continue
		}
		pod := w.podOf(fields[2])
		if pod == "" {
			continue
		}
		folder := filepath.Join(w.Cgroups, fields[1], pod)
		if _, err := os.Stat(folder); err == nil {
			return folder, nil
		}
	}
	return "", errNoPodCgroup
}

// podOf cuts a cgroup's path after the pod's part, or returns "" without one. The kubelet
// names that part pod<UID>, with underscores under systemd, for which a dash separates levels.
func (w *Weight) podOf(path string) string {
	if w.PodUID == "" {
		return ""
	}
	parts := strings.Split(filepath.Clean(path), "/")
	at := slices.IndexFunc(parts, func(part string) bool {
		return strings.Contains(part, "pod"+w.PodUID) || strings.Contains(part, "pod"+underscored(w.PodUID))
	})
	if at < 0 {
		return ""
	}
	return strings.Join(parts[:at+1], "/")
}

func underscored(uid string) string { return strings.ReplaceAll(uid, "-", "_") }
