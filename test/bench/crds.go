package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// measureCRDs measures what the CRDs cost kube-apiserver in memory. Two API servers, which nobody else uses,
// run one after the other: one without our CRDs, one with them. No objects of the kinds exist.
func measureCRDs(r *run) {
	r.add("crd-size", r.sizes())
	const rounds = 2
	for range rounds {
		without := heapOf(r, "")
		with := heapOf(r, filepath.Join(r.repository, "config", "crd"))
		r.say("CRDs: heap %.1f MiB without CRDs, %.1f MiB with", without, with)
		r.add("crd-heap", with-without)
	}
}

// sizes notes the size of each CRD, in thousand bytes, and returns the largest.
func (r *run) sizes() (largest float64) {
	files := must(filepath.Glob(filepath.Join(r.repository, "config", "crd", "*_*.yaml")))
	if len(files) == 0 {
		fail("find the CRDs: there are none")
	}
	for _, file := range files {
		compact, err := yaml.YAMLToJSON(must(os.ReadFile(file)))
		check(err, "read "+file)
		group, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), "_")
		size := float64(len(compact)) / 1000
		r.addPart("crd-size", plural+"."+group, size)
		largest = max(largest, size)
	}
	return largest
}

// heapOf is the live heap of an API server, in MiB, that has the CRDs of the kustomization.
func heapOf(r *run, kustomization string) (live float64) {
	r.turn(func(r *run) {
		server := must(apiserver.Run(r.output("bin"), r.folder(""), "--profiling=true")) // for collections on demand
		r.after(func() error { server.Close(); return nil })
		if kustomization != "" {
			check(server.Apply(r, must(apiserver.Read(kustomization))...))
			askForAll(server)
		}
		live = collected(r, server)
	})
	return live
}

// askForAll lists the objects of each kind. The API server makes its schemas of a kind when
// somebody first asks for the kind.
func askForAll(server *apiserver.Server) {
	names := must(server.Try("", "get", "crd", "-o", "jsonpath={.items[*].metadata.name}"))
	for name := range strings.FieldsSeq(names) {
		must(server.Try("", "get", name, "-A"))
	}
}

// collected is the API server's heap after a collection that is asked for, in MiB. It is the
// least of several, after a time in which the API server makes its OpenAPI documents.
func collected(r *run, server *apiserver.Server) float64 {
	const collections = 4
	least := math.Inf(1)
	for range collections {
		r.pause(8 * time.Second)
		profile := must(server.Try("", "get", "--raw", "/debug/pprof/heap?gc=1&debug=1"))
		least = min(least, must(figureIn(profile, "# HeapAlloc = "))) // runtime.MemStats' field
	}
	return least / (1 << 20)
}

// liveHeap returns the size of kube-apiserver's heap after a collection, in bytes: the least of several
// collections. It first waits until all is quiet. Its own requests bring about the
// collections.
func liveHeap(r *run, server *apiserver.Server) float64 {
	r.pause(20 * time.Second)
	const collections = 5
	least, last := math.Inf(1), -1.0
	for seen := 0; seen < collections; {
		metrics := must(server.Try("", "get", "--raw", "/metrics"))
		if count := must(figureIn(metrics, "go_gc_duration_seconds_count ")); count != last {
			seen, last = seen+1, count
			// test/apiserver sets GOGC to 200: the goal is three times what is live.
			least = min(least, must(figureIn(metrics, "go_memstats_next_gc_bytes "))/3)
		}
	}
	return least
}

// figureIn is the number of the line that begins with a label.
func figureIn(text, label string) (float64, error) {
	_, rest, found := strings.Cut("\n"+text, "\n"+label)
	if !found {
		return 0, fmt.Errorf("find %q in what kube-apiserver says: it is not there", label)
	}
	number, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseFloat(number, 64)
}
