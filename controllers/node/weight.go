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

// Weight holds the CPU weight of virt-handler's pod where a hundred busy guests do
// not starve it. The kubelet makes a pod's weight of the CPU that the pod books, and
// virt-handler books little. A weight is no limit, and reserves nothing: CPU time
// that virt-handler does not use is the guests'.
//
// The pods of virt-api and virt-controller keep the weight that they book: their
// cgroups have no name but a UID, and virt-handler knows no other pod's.
type Weight struct {
	// Cgroups is the host's /sys/fs/cgroup, and Self the process's /proc/self/cgroup.
	Cgroups, Self string
	// PodUID is that of virt-handler's pod, whose cgroup has it in its name.
	PodUID string
	Log    logr.Logger

	said string
}

// weightInterval is between looks: systemd may write a weight anew.
const weightInterval = 15 * time.Second

// As much as a hundred guests of one vCPU, for cgroup v2 and v1.
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

// Hold raises the weight if it is lower. That it cannot be raised is said once, and
// borne. It is for one goroutine at a time.
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

// cgroup is the folder of this pod's own.
func (w *Weight) cgroup() (string, error) {
	text, err := os.ReadFile(w.Self)
	if err != nil {
		return "", fmt.Errorf("read own cgroup: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		// Number, controllers, path; cgroup v2 has no controllers there.
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

// podOf cuts a cgroup's path after the part that is the pod's: the kubelet names
// it pod<UID>, with underscores where systemd takes a dash for a level.
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
