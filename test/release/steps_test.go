package release

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// stepsOf returns the selectors of the commands in a section of INSTALL.md that apply objects, one after the other.
func stepsOf(t *testing.T, section string) (steps []labels.Selector) {
	t.Helper()
	page, err := os.ReadFile("../../config/release/INSTALL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
	if !found {
		t.Fatalf("INSTALL.md has no section %s", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	apply := regexp.MustCompile(`kubectl apply .* -f kubeqemu.yaml +-l ('[^']*'|\S+)`)
	for _, command := range apply.FindAllStringSubmatch(strings.ReplaceAll(text, "\\\n", ""), -1) {
		selector, err := labels.Parse(strings.Trim(command[1], "'"))
		if err != nil {
			t.Fatal(err)
		}
		steps = append(steps, selector)
	}
	return steps
}

// TestUpgradeAppliesEachObjectInItsStep: the steps of an upgrade are the definitions, virt-handler, virt-controller and
// virt-api, and those of the way back are the same ones the other way round. None leaves an object out.
func TestUpgradeAppliesEachObjectInItsStep(t *testing.T) {
	kubectl, err := filepath.Abs("../../_output/bin/kubectl")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kubectl); err != nil {
		testkit.Lacks(t, "kubectl", "make cluster", err)
	}
	manifests, err := sourced(t, "version=v9.8.7 kubectl="+kubectl+"; manifests config/default")
	if err != nil {
		t.Fatal(err)
	}
	upgrade, back := stepsOf(t, "Upgrade"), stepsOf(t, "Back to the release before")
	if len(upgrade) != 4 || len(back) != 4 {
		t.Fatalf("an upgrade has %d steps and the way back has %d, want 4", len(upgrade), len(back))
	}
	// In the first step there is nothing that runs, and nothing that leads the API server to virt-api.
	late := map[string]int{"DaemonSet/virt-handler": 1, "Deployment/virt-controller": 2, "Deployment/virt-api": 3}
	lateKinds := map[string]int{"APIService": 3, "MutatingWebhookConfiguration": 3, "ValidatingWebhookConfiguration": 3}
	early := []string{"Namespace", "CustomResourceDefinition", "ServiceAccount", "Role", "RoleBinding", "ClusterRole",
		"ClusterRoleBinding", "ConfigMap", "Secret", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"FlowSchema", "PriorityLevelConfiguration"}
	seen := map[string]bool{}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		name := object.Kind + "/" + object.Name
		seen[name] = true
		var in []int
		for i, step := range upgrade {
			has := labels.Set(object.Labels)
			if step.Matches(has) != back[len(back)-1-i].Matches(has) {
				t.Errorf("the way back applies %s in another step", name)
			}
			if step.Matches(has) {
				in = append(in, i)
			}
		}
		want, known := late[name]
		if of, ok := lateKinds[object.Kind]; ok {
			want, known = of, true
		}
		switch {
		case len(in) != 1:
			t.Errorf("%s is applied in the steps %v", name, in)
		case object.Kind == "Service":
		case !known && !slices.Contains(early, object.Kind):
			t.Errorf("nobody has said in which step %s is applied", name)
		case in[0] != want:
			t.Errorf("%s is applied in step %d, want %d", name, in[0], want)
		}
	}
	for name := range late {
		if !seen[name] {
			t.Errorf("the manifests have no %s", name)
		}
	}
}
