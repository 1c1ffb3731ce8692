package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containernetworking/plugins/pkg/ns"
)

// diskRows: what a guest's disk carries. The guest is the tiny one.
func diskRows(ctx context.Context, b *bench) (rows []row, err error) {
	beside := func() []series { return []series{{Name: "the plainest QEMU line with a raw virtio disk"}} }
	rows = []row{
		{ID: "disk-write", What: fmt.Sprintf("guest's disk, %d MiB written and synced", written>>20), Unit: megabytesPerSecond, Ours: series{Name: "overlay"}, Beside: beside()},
		{ID: "disk-read", What: fmt.Sprintf("guest's disk, the same %d MiB read", written>>20), Unit: megabytesPerSecond, Ours: series{Name: "overlay"}, Beside: beside()},
	}
	// QEMU ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	folder, err := os.MkdirTemp("", "kubeqemu-bench-")
	if err != nil {
		return rows, err
	}
	defer os.RemoveAll(folder)
	m, err := carrierMachine(ctx, b, folder)
	if err != nil {
		return rows, err
	}
	netns, err := newNetNS()
	if err != nil {
		return rows, err
	}
	defer func() { err = errors.Join(err, netns.Close()) }()
	link, err := plainLink([]ns.NetNS{netns}, m)
	if err != nil {
		return rows, err
	}
	ours, err := startMachine(ctx, b, m, filepath.Join(folder, "overlay"), link)
	if err != nil {
		return rows, err
	}
	defer func() { err = errors.Join(err, ours.end()) }()
	raw, err := startRaw(ctx, b, m, filepath.Join(folder, "raw"))
	if err != nil {
		return rows, err
	}
	defer func() { err = errors.Join(err, raw.end()) }()
	measures := []func(*carrier) (float64, error){(*carrier).write, (*carrier).read}
	return rows, rounds(b, func(round int) error {
		for i, measure := range measures {
			if err := turns(b, round, &rows[i], measure, ours, raw); err != nil {
				return err
			}
		}
		return nil
	})
}
