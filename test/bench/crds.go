package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// crdRows: what the CRDs cost kube-apiserver in memory. Copies of the CRDs, in groups of
// another name, are created and deleted in turns; the live heap with and without them is
// compared. Nobody watches objects of the copies, and no such objects exist.
func crdRows(ctx context.Context, b *bench) ([]row, error) {
	rows := []row{
		{ID: "crd-size", What: "the largest CRD, as compact JSON", Unit: thousandBytes, Ours: series{Name: "largest"}, Limit: 100},
		{ID: "crd-heap", What: "kube-apiserver's heap, for all CRDs", Unit: mebibytes, Ours: series{Name: "CRDs"}},
	}
	size, heap := &rows[0], &rows[1]
	kube, err := b.kube()
	if err != nil {
		return rows, err
	}
	copies, err := b.copiedCRDs()
	if err != nil {
		return rows, err
	}
	largest := 0.0
	for _, c := range copies {
		bytes := float64(len(c.compact)) / 1000
		largest = max(largest, bytes)
		part(size, strings.Replace(c.GetName(), ".bench.", ".", 1), bytes)
	}
	add(&size.Ours, largest)
	const rounds = 3
	for range rounds {
		without, err := liveHeap(ctx, clusterMetrics(ctx))
		if err != nil {
			return rows, err
		}
		with, err := heapWith(ctx, kube, copies)
		if err != nil {
			return rows, err
		}
		b.say("CRDs: heap %.1f MiB without copies, %.1f MiB with", without, with)
		add(&heap.Ours, with-without)
	}
	return rows, nil
}

// copiedCRD is a CRD of a group that only the bench uses.
type copiedCRD struct {
	*unstructured.Unstructured
	compact []byte // the original
}

func (b *bench) copiedCRDs() ([]copiedCRD, error) {
	files, err := filepath.Glob(filepath.Join(b.repository, "config", "crd", "*_*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, fmt.Errorf("find the CRDs: %d files", len(files)))
	}
	var all []copiedCRD
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c := copiedCRD{Unstructured: &unstructured.Unstructured{}}
		if c.compact, err = yaml.YAMLToJSON(text); err == nil {
			err = json.Unmarshal(c.compact, &c.Object)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		group, _, _ := unstructured.NestedString(c.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(c.Object, "spec", "names", "plural")
		if err := unstructured.SetNestedField(c.Object, "bench."+group, "spec", "group"); err != nil {
			return nil, err
		}
		unstructured.RemoveNestedField(c.Object, "spec", "names", "shortNames")
		unstructured.RemoveNestedField(c.Object, "spec", "names", "categories")
		c.SetName(plural + ".bench." + group)
		all = append(all, c)
	}
	return all, nil
}

// heapWith creates the copies, measures, and deletes them again.
func heapWith(ctx context.Context, kube client.Client, copies []copiedCRD) (live float64, err error) {
	defer func() {
		for _, c := range copies {
			err = errors.Join(err, client.IgnoreNotFound(kube.Delete(context.WithoutCancel(ctx), c.Unstructured)))
		}
	}()
	for _, c := range copies {
		c.SetResourceVersion("")
		if err := kube.Create(ctx, c.Unstructured.DeepCopy()); err != nil {
			return 0, fmt.Errorf("create a copy of a CRD: %w", err)
		}
	}
	for _, c := range copies {
		group, _, _ := unstructured.NestedString(c.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(c.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(c.Object, "spec", "versions")
		version := versions[0].(map[string]any)["name"].(string)
		// The API server makes its schemas of a kind when somebody first asks for the kind.
		if err := served(ctx, "/apis/"+group+"/"+version+"/"+plural); err != nil {
			return 0, fmt.Errorf("list objects of a copy of a CRD: %w", err)
		}
	}
	return liveHeap(ctx, clusterMetrics(ctx))
}

// served asks for a path each half second, for a minute, until there is an answer.
func served(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := command(ctx, nil, "kubectl", "get", "--raw", path)
		if err == nil {
			return nil
		}
		if waited := pause(ctx, 500*time.Millisecond); waited != nil {
			return err
		}
	}
}

// clusterMetrics asks the cluster's kube-apiserver for its metrics.
func clusterMetrics(ctx context.Context) func() (string, error) {
	return func() (string, error) { return command(ctx, nil, "kubectl", "get", "--raw", "/metrics") }
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
			lives, last = append(lives, goal/2), count // GOGC is 100: the goal is twice what is live
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
