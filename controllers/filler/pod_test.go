package filler

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(shared.Tests(m), "testdata/*.golden.yaml") }

var sources = map[string]string{
	"blank":    blank,
	"block":    `{source: {blank: {}}, preallocation: true, priorityClassName: high, pvc: {volumeMode: Block, resources: {requests: {storage: 1Gi}}}}`,
	"claim":    `{source: {pvc: {namespace: golden, name: debian}}, storage: {resources: {requests: {storage: 1Gi}}}}`,
	"upload":   uploaded,
	"registry": `{source: {registry: {url: "docker://registry.example/debian:13", pullMethod: node, platform: {architecture: arm64}}}, storage: {resources: {requests: {storage: 1Gi}}}}`,
	"http": `{source: {http: {url: "https://example.com/$(X)$$/disk.qcow2", checksum: "md5:00000000000000000000000000000000", certConfigMap: ca, secretRef: login,
  extraHeaders: ["A: 1"], secretExtraHeaders: [one, two]}}, storage: {resources: {requests: {storage: 1Gi}}}}`,
}

var testConfig = Config{Image: "registry.example/virt-launcher:v1", Forbidden: []string{"10.0.0.0/8"}, Permitted: []string{"10.1.0.0/16"}}

func TestImporterPodGolden(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, spec := range sources {
		v := volume(t, spec)
		v.Labels = map[string]string{v1.CreatedByLabel: "forged"}
		if errs := v.Spec.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
		pod, err := podOf(v, bound(v, "2Gi"), testConfig, 3)
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, "testdata/"+name+".golden.yaml", string(text))
		for _, result := range evaluator.EvaluatePod(podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
			if !result.Allowed {
				t.Errorf("%s: not restricted: %s", name, result.ForbiddenDetail)
			}
		}
		var task importer.Task
		if err := json.Unmarshal([]byte(strings.ReplaceAll(pod.Spec.Containers[0].Env[0].Value, "$$", "$")), &task); err != nil || set(task.Source) != 1 || task.Source.HTTP != nil && task.Source.HTTP.URL != v.Spec.Source.HTTP.URL {
			t.Errorf("%s: the task is %+v (%v)", name, task, err)
		}
	}
}

// set is how many sources are set.
func set(s importer.Source) (n int) {
	for _, there := range []bool{s.Blank != nil, s.HTTP != nil, s.Image != nil, s.Claim != nil, s.Upload != nil} {
		if there {
			n++
		}
	}
	return n
}

func TestImporterPodNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, volume := range []string{"a", strings.Repeat("a", 244), strings.Repeat("a", 245), strings.Repeat("a", 253), strings.Repeat("a.", 126) + "b"} {
		name := podName(volume)
		if !strings.HasPrefix(name, importer.PodPrefix) || len(validation.IsDNS1123Subdomain(name)) > 0 || seen[name] {
			t.Errorf("%s of %s", name, volume)
		}
		seen[name] = true
	}
}

func TestRestartsAreCountedAndBounded(t *testing.T) {
	pod := &corev1.Pod{}
	for annotation, want := range map[string]int32{"": 2, "5": 7, "-3": 2, "x": 2, "99999999999": 2, "2147483647": maxRestarts} {
		pod.Annotations = map[string]string{restartsAnnotation: annotation}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "other", RestartCount: 9}, {Name: containerName, RestartCount: 2}}
		if got := restartsOf(pod); got != want {
			t.Errorf("%q: %d restarts, want %d", annotation, got, want)
		}
	}
	if pod, err := podOf(volume(t, blank), bound(volume(t, blank), "2Gi"), testConfig, 4); err != nil || restartsOf(pod) != 4 || pod.Labels[cdi.ManagedByLabel] == "" {
		t.Errorf("%v (%v)", pod, err)
	}
}
