//go:build long

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// kustomized is what a kustomization of the repository makes.
func kustomized(t *testing.T, folder string) []byte {
	t.Helper()
	cmd := exec.Command("../../_output/bin/kubectl", "kustomize", "../../config/"+folder)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl kustomize %s (run `make cluster` first): %v %s", folder, err, &stderr)
	}
	return out
}

// helm runs Helm's own program, which `make helm` builds.
func helm(args ...string) (string, error) {
	cmd := exec.Command("../../_output/bin/helm", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}

// chart makes the chart.
func chart(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "kubeqemu")
	if err := run(bytes.NewReader(kustomized(t, "datavolumes")), "../../config/chart", folder); err != nil {
		t.Fatal(err)
	}
	return folder
}

// rendered is what helm would install, by kind and name.
func rendered(t *testing.T, chart string, args ...string) map[string]object {
	t.Helper()
	out, err := helm(append([]string{"template", "kubeqemu", chart}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return index(t, []byte(out))
}

func index(t *testing.T, text []byte) map[string]object {
	t.Helper()
	objects, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]object{}
	for _, o := range objects {
		key := strings.Join([]string{o.text("apiVersion"), o.kind(), o.at("metadata").text("namespace"), o.name()}, " ")
		if all[key] != nil {
			t.Fatalf("%s is there twice", key)
		}
		all[key] = o
	}
	return all
}

// same compares object by object. What Helm is to leave alone is marked so in
// the chart only.
func same(t *testing.T, want, got map[string]object) {
	t.Helper()
	for _, o := range got {
		annotations := o.at("metadata", "annotations")
		kept := annotations[keep] == "keep"
		if wanted := o.kind() == "CustomResourceDefinition" || o.kind() == "Namespace"; kept != wanted {
			t.Errorf("%s %s is kept: %v, want %v", o.kind(), o.name(), kept, wanted)
		}
		delete(annotations, keep)
		if len(annotations) == 0 {
			delete(o.at("metadata"), "annotations")
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("objects differ (-kustomize +helm):\n%s", diff)
	}
	for key, o := range want {
		if diff := cmp.Diff(o, got[key]); diff != "" && got[key] != nil {
			t.Errorf("%s differs (-kustomize +helm):\n%s", key, diff)
		}
	}
}

// TestChartIsTheKustomization: the chart and the kustomizations are the same installation.
func TestChartIsTheKustomization(t *testing.T) {
	folder := chart(t)
	want := index(t, kustomized(t, "default"))
	if len(want) < 30 {
		t.Fatalf("%d objects: the test checks little", len(want))
	}
	same(t, want, rendered(t, folder))
	// Nothing is in crds/, which helm upgrade passes over.
	if _, err := os.Stat(filepath.Join(folder, "crds")); err == nil {
		t.Error("the chart has a folder crds")
	}
	if out, err := helm("lint", "--strict", "--with-subcharts", folder); err != nil {
		t.Error(out, err)
	}
}

// TestChartWithTwoIsHA: with two of each Deployment it is config/ha.
func TestChartWithTwoIsHA(t *testing.T) {
	want := index(t, kustomized(t, "ha"))
	var twice []string
	for _, o := range want {
		if o.kind() == "Deployment" {
			twice = append(twice, "--set", camel(o.name())+".replicas=2")
		}
	}
	same(t, want, rendered(t, chart(t), twice...))
}

// TestChartWithInstancetypes: with them it is config/instancetypes.
func TestChartWithInstancetypes(t *testing.T) {
	same(t, index(t, kustomized(t, "instancetypes")), rendered(t, chart(t), "--set", "instancetypes=true"))
}

// TestChartWithDataVolumes: with them it is config/datavolumes.
func TestChartWithDataVolumes(t *testing.T) {
	same(t, index(t, kustomized(t, "datavolumes")), rendered(t, chart(t), "--set", "datavolumes=true"))
}

// TestEachValueReachesItsPlaceAlone: each value reaches what it should, and nothing else changes.
func TestEachValueReachesItsPlaceAlone(t *testing.T) {
	folder := chart(t)
	before := rendered(t, folder)
	for _, c := range []struct {
		set  []string
		want string   // in every object that changes
		in   []string // the kinds and names of all of them
	}{
		{[]string{"image.registry=registry.example:5000/x"}, "registry.example:5000/x/virt-", []string{"ConfigMap images", "DaemonSet virt-handler", "Deployment *"}},
		{[]string{"image.tag=v1.2"}, ":v1.2", []string{"ConfigMap images", "DaemonSet virt-handler", "Deployment *"}},
		{[]string{"image.pullPolicy=Always"}, "imagePullPolicy:Always", []string{"DaemonSet virt-handler", "Deployment *"}},
		{[]string{"instancetypes=true"}, "--common-instancetypes", []string{"Deployment virt-controller"}},
		{[]string{"virtController.nodeSelector.zone=a"}, "nodeSelector:map[zone:a]", []string{"Deployment virt-controller"}},
		{[]string{"virtController.tolerations[0].operator=Exists"}, "tolerations:[map[operator:Exists]]", []string{"Deployment virt-controller"}},
		{[]string{"virtHandler.nodeSelector.zone=a"}, "nodeSelector:map[kubernetes.io/os:linux zone:a]", []string{"DaemonSet virt-handler"}},
		{[]string{"kubeletRoot=/var/lib/k0s/kubelet"}, "path:/var/lib/k0s/kubelet/device-plugins", []string{"DaemonSet virt-handler"}},
	} {
		var args, changed []string
		for _, s := range c.set {
			args = append(args, "--set", s)
		}
		for key, o := range rendered(t, folder, args...) {
			if cmp.Equal(before[key], o) {
				continue
			}
			name := o.kind() + " " + o.name()
			changed = append(changed, name)
			if o.kind() == "Deployment" && slices.Contains(c.in, "Deployment *") {
				name = "Deployment *"
			}
			if text := fmt.Sprint(map[string]any(o)); !slices.Contains(c.in, name) || !strings.Contains(text, c.want) {
				t.Errorf("%v changes %s, or has no %q in it", c.set, name, c.want)
			}
		}
		if len(changed) < len(c.in) {
			t.Errorf("%v changes %v, want %v", c.set, changed, c.in)
		}
	}
	after := rendered(t, folder, "--set", "createNamespace=false")
	if after["v1 Namespace  kubevirt"] != nil || len(after) != len(before)-1 {
		t.Errorf("%d objects without the namespace, %d with it", len(after), len(before))
	}
	after = rendered(t, folder, "--set", "olderVersions=false")
	for key, o := range before {
		older := o.at("metadata", "labels").text(optional) == "older-versions"
		if gone := after[key] == nil; gone != older {
			t.Errorf("without older versions, %s is gone: %v", key, gone)
		}
	}
	if len(after) > len(before)-4 {
		t.Errorf("%d objects without older versions, %d with them", len(after), len(before))
	}
	for _, wrong := range []string{"image.tagg=v1", "virtHandler.replicas=2", "image.pullPolicy=Sometimes", "image.tag=a b", "kubeletRoot=kubelet", "virtController.replicas=-1", "instancetypes=some", "datavolumes=some", "olderVersions=1"} {
		if _, err := helm("template", "kubeqemu", folder, "--set", wrong); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: %v, want to be refused by the schema", wrong, err)
		}
	}
}

const small = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: virt-x}
spec: {replicas: 1, template: {spec: {containers: [{image: "a/b/virt-x:1", imagePullPolicy: Never}]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: ns, annotations: {note: "{{ .Values.x }} and HELM"}}
data: {image: "a/b/virt-y:1", other: "c/virt-y:1 "}
`

// TestTemplateLikeTextStaysText: what looks like a template stays text.
func TestTemplateLikeTextStaysText(t *testing.T) {
	files, err := Chart([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: v1
data:
  image: {{ .Values.image.registry }}/virt-y:{{ .Values.image.tag }}
  other: 'c/virt-y:1 '
kind: ConfigMap
metadata:
  annotations:
    note: '{{ "{{" }} .Values.x }} and HELM'
  name: c
  namespace: ns
`
	if diff := cmp.Diff(want, string(files["templates/configmap-c.yaml"])); diff != "" {
		t.Error(diff)
	}
	again, err := Chart([]byte(small))
	if err != nil || !cmp.Equal(files, again) {
		t.Errorf("another chart the second time (%v)", err)
	}
}

func TestBadManifestsAreRefused(t *testing.T) {
	for what, manifests := range map[string]string{
		"nothing":        "",
		"no kind":        "a: b\n",
		"no YAML":        "a: [\n",
		"no workloads":   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n",
		"two tags":       strings.Replace(small, "virt-y:1\",", "virt-y:2\",", 1),
		"two policies":   small + "---\n" + strings.NewReplacer("name: virt-x", "name: virt-z", "Never", "Always").Replace(strings.Split(small, "---")[0]),
		"the same twice": small + "---\n" + small,
	} {
		if _, err := Chart([]byte(manifests)); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
