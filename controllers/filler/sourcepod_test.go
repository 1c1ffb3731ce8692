package filler

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

const (
	ofGolden  = `{source: {pvc: {namespace: golden, name: debian}}, storage: {resources: {requests: {storage: 1Gi}}}}`
	throughDS = `{sourceRef: {kind: DataSource, name: debian, namespace: golden}, storage: {}}`
	ofDebian  = `{source: {pvc: {namespace: "", name: debian}}, storage: {storageClassName: fast}}`
)

// goldenClaim is a claim that is copied.
func goldenClaim(size string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.UID = "golden", "debian", "uid-of-golden"
	claim.Spec.StorageClassName = ptr.To("fast")
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
	return claim
}

func TestSourcePodGolden(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"source":       func(*corev1.PersistentVolumeClaim) {},
		"source-block": func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
		"source-here":  func(c *corev1.PersistentVolumeClaim) { c.Namespace = "ns" },
	} {
		claim := goldenClaim("2Gi")
		change(claim)
		pod, err := sourcePodOf(volume(t, ofGolden), claim, testConfig)
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
		if err := json.Unmarshal([]byte(pod.Spec.Containers[0].Env[0].Value), &task); err != nil || task.Serve == nil || set(task.Source) != 0 || task.Serve.Block != isBlock(claim) {
			t.Errorf("%s: the task is %+v (%v)", name, task, err)
		}
		if of, ok := volumeOf(pod); !isSourcePod(pod) || !ok || of != (types.NamespacedName{Namespace: "ns", Name: "data"}) {
			t.Errorf("%s: the pod is for %s", name, of)
		}
		kept, err := trim(pod)
		if err != nil || !isSourcePod(kept.(*corev1.Pod)) {
			t.Errorf("%s: the cache does not know it (%v)", name, err)
		}
	}
}

func TestBadAnnotationNamesNoDataVolume(t *testing.T) {
	for _, wrong := range []string{"", "x", "/x", "x/", "x/y/z"} {
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{forAnnotation: wrong}
		if of, ok := volumeOf(pod); ok {
			t.Errorf("%q is of %s", wrong, of)
		}
	}
}
