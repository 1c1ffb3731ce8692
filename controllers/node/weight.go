package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
)

// Weight holds the CPU weight of Kubeqemu's pods on this node where a hundred busy
// guests do not starve them. The kubelet makes a pod's weight of the CPU that the
// pod books, and these book little. A weight is no limit, and reserves nothing:
// CPU time that they do not use is the guests'.
type Weight struct {
	// Cgroups is the host's /sys/fs/cgroup, and Self the process's /proc/self/cgroup.
	Cgroups, Self string
	// PodUID is that of virt-handler's pod, whose cgroup has it in its name.
	PodUID string
	// Pods is the host's /var/log/pods, where the kubelet makes a folder of each pod,
	// with namespace, name and UID in its name. Nothing in the folders is looked at.
	Pods string
	Log  logr.Logger

	said string
}

// weightInterval is between looks: pods come and go, and systemd may write a
// weight anew.
const weightInterval = 15 * time.Second

// weight is one for cgroup v2 and v1.
type weight struct{ weight, shares int }

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

// Hold raises the weights that are lower. That they cannot be raised is said once,
// and borne. It is for one goroutine at a time.
func (w *Weight) Hold() {
	said, err := w.raise()
	if err != nil {
		said += "another stays what the kubelet made it: " + err.Error()
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
	// As much as a hundred guests of one vCPU, and as twenty: users reach virt-api.
	handler, others := weight{weight: 1000, shares: 10240}, weight{weight: 200, shares: 2048}
	said, failed := raiseTo(own, handler)
	pods, err := w.components()
	failed = errors.Join(failed, err)
	for _, uid := range pods {
		sibling := own
		for _, form := range []func(string) string{func(uid string) string { return uid }, underscored} {
			sibling = strings.ReplaceAll(sibling, form(w.PodUID), form(uid))
		}
		if _, err := os.Stat(sibling); err != nil {
			continue // the pod has ended, or is of another class
		}
		more, err := raiseTo(sibling, others)
		said, failed = said+more, errors.Join(failed, err)
	}
	return said, failed
}

func raiseTo(cgroup string, to weight) (said string, err error) {
	file, wanted := filepath.Join(cgroup, "cpu.weight"), to.weight
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		file, wanted = filepath.Join(cgroup, "cpu.shares"), to.shares
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
	return fmt.Sprintf("%s is %d; ", file, wanted), nil
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

// componentFolder is the name of the kubelet's folder of a pod of virt-api's or
// virt-controller's. Nobody else has pods in that namespace.
var componentFolder = regexp.MustCompile(`^` + kubevirt.Namespace + `_virt-(?:api|controller)-[0-9a-z-]+_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// components are the UIDs of the other components' pods that this node has, or had.
func (w *Weight) components() ([]string, error) {
	entries, err := os.ReadDir(w.Pods)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var uids []string
	for _, e := range entries {
		if found := componentFolder.FindStringSubmatch(e.Name()); found != nil {
			uids = append(uids, found[1])
		}
	}
	return uids, nil
}
