package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// crdRows: what the CRDs cost kube-apiserver in memory. Two API servers, which nobody else uses,
// run one after the other: one without our CRDs, one with them. No objects of the kinds exist.
func crdRows(ctx context.Context, b *bench) ([]row, error) {
	rows := []row{
		{ID: "crd-size", What: "the largest CRD, as compact JSON", Unit: thousandBytes, Ours: series{Name: "largest"}, Limit: 100},
		{ID: "crd-heap", What: "kube-apiserver's heap, for all CRDs", Unit: mebibytes, Ours: series{Name: "CRDs"}},
	}
	size, heap := &rows[0], &rows[1]
	largest, err := b.sizes(size)
	if err != nil {
		return rows, err
	}
	add(&size.Ours, largest)
	const rounds = 2
	for range rounds {
		without, err := b.heapOf(ctx, "")
		if err != nil {
			return rows, err
		}
		with, err := b.heapOf(ctx, filepath.Join(b.repository, "config", "crd"))
		if err != nil {
			return rows, err
		}
		b.say("CRDs: heap %.1f MiB without CRDs, %.1f MiB with", without, with)
		add(&heap.Ours, with-without)
	}
	return rows, nil
}

// sizes notes the size of each CRD, in thousand bytes, and returns the largest.
func (b *bench) sizes(r *row) (largest float64, err error) {
	files, err := filepath.Glob(filepath.Join(b.repository, "config", "crd", "*_*.yaml"))
	if err != nil || len(files) == 0 {
		return 0, errors.Join(err, fmt.Errorf("find the CRDs: %d files", len(files)))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		compact, err := yaml.YAMLToJSON(text)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", file, err)
		}
		group, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), "_")
		bytes := float64(len(compact)) / 1000
		part(r, plural+"."+group, bytes)
		largest = max(largest, bytes)
	}
	return largest, nil
}

// heapOf is the live heap of an API server, in MiB, that has the CRDs of the kustomization.
func (b *bench) heapOf(ctx context.Context, kustomization string) (live float64, err error) {
	folder, err := os.MkdirTemp("", "crds-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	server, err := apiserver.Run(b.output("bin"), folder, "--profiling=true") // for collections on demand
	if err != nil {
		return 0, err
	}
	defer server.Close()
	if kustomization != "" {
		crds, err := apiserver.Read(kustomization)
		if err == nil {
			err = server.Apply(ctx, crds...)
		}
		if err != nil {
			return 0, err
		}
		if err := askForAll(server); err != nil {
			return 0, err
		}
	}
	return collected(ctx, server)
}

// askForAll lists the objects of each kind. The API server makes its schemas of a kind when
// somebody first asks for the kind.
func askForAll(server *apiserver.Server) error {
	names, err := server.Try("", "get", "crd", "-o", "jsonpath={.items[*].metadata.name}")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(names) {
		if _, err := server.Try("", "get", name, "-A"); err != nil {
			return fmt.Errorf("list the objects of %s: %w", name, err)
		}
	}
	return nil
}

// collected is the API server's heap after a collection that is asked for, in MiB. It is the
// least of several, after a time in which the API server makes its OpenAPI documents.
func collected(ctx context.Context, server *apiserver.Server) (float64, error) {
	const collections = 4
	least := math.Inf(1)
	for range collections {
		if err := pause(ctx, 8*time.Second); err != nil {
			return 0, err
		}
		profile, err := server.Try("", "get", "--raw", "/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			return 0, fmt.Errorf("ask kube-apiserver for its heap: %w", err)
		}
		bytes, err := heapAlloc(profile)
		if err != nil {
			return 0, err
		}
		least = min(least, mib(bytes))
	}
	return least, nil
}

// heapAlloc reads runtime.MemStats' HeapAlloc, in bytes, from a heap profile in text form.
func heapAlloc(profile string) (int64, error) {
	_, rest, found := strings.Cut(profile, "\n# HeapAlloc = ")
	if !found {
		return 0, errors.New("find HeapAlloc in kube-apiserver's heap profile: there is none")
	}
	number, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseInt(number, 10, 64)
}

// liveHeap is kube-apiserver's heap after a collection, in MiB: the least of several
// collections. It first waits until all is quiet. Its own requests bring about the
// collections.
func liveHeap(ctx context.Context, metrics func() (string, error)) (float64, error) {
	if err := pause(ctx, 20*time.Second); err != nil {
		return 0, err
	}
	const collections = 5
	var lives []float64
	last := -1.0
	for len(lives) < collections {
		text, err := metrics()
		if err != nil {
			return 0, fmt.Errorf("ask kube-apiserver for its metrics: %w", err)
		}
		count, goal, err := heapNumbers([]byte(text))
		if err != nil {
			return 0, err
		}
		if count != last {
			lives, last = append(lives, goal/3), count // test/apiserver sets GOGC to 200: the goal is three times what is live
		}
	}
	return mib(int64(slices.Min(lives))), nil
}

// heapNumbers are the number of collections, and the heap's size at which the next begins.
func heapNumbers(metrics []byte) (collections, goal float64, err error) {
	found := 0
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		var to *float64
		switch name {
		case "go_gc_duration_seconds_count":
			to = &collections
		case "go_memstats_next_gc_bytes":
			to = &goal
		default:
			continue
		}
		if *to, err = strconv.ParseFloat(value, 64); err != nil {
			return 0, 0, fmt.Errorf("read metric %s: %w", name, err)
		}
		found++
	}
	if found != 2 {
		return 0, 0, errors.Join(lines.Err(), fmt.Errorf("find the heap among kube-apiserver's metrics: %d of 2 numbers", found))
	}
	return collections, goal, nil
}
