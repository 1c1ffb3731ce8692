package older

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	migrationsv1alpha1 "github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
)

// definition is what of a CustomResourceDefinition concerns the table.
type definition struct {
	Spec struct {
		Group, Scope string
		Names        struct {
			Plural, Singular, Kind string
			Categories, ShortNames []string
		}
		Versions []struct {
			Name         string
			Subresources map[string]any
		}
	}
}

// TestResourcesAreThoseOfTheCRDs: the table says what the CustomResourceDefinitions say.
func TestResourcesAreThoseOfTheCRDs(t *testing.T) {
	files, err := filepath.Glob("../../config/crd/*.kubevirt.io_*.yaml")
	more, _ := filepath.Glob("../../config/crd/kubevirt.io_*.yaml")
	if files = append(files, more...); err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	var want []resource
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		if d.Spec.Group == migrationsv1alpha1.GroupVersion.Group {
			continue // v1alpha1 is KubeVirt's only version
		}
		n := d.Spec.Names
		r := resource{group: d.Spec.Group, plural: n.Plural, singular: n.Singular, kind: n.Kind, cluster: d.Spec.Scope == "Cluster", categories: n.Categories, shortNames: n.ShortNames}
		_, r.scale = d.Spec.Versions[0].Subresources["scale"]
		want = append(want, r)
		if !slices.ContainsFunc(Versions(), func(v Version) bool { return v.Group == r.group && v.Current == d.Spec.Versions[0].Name }) {
			t.Errorf("%s has no older version of %s", r.group, d.Spec.Versions[0].Name)
		}
	}
	if len(want) != len(resources()) {
		t.Errorf("%d rows, want %d", len(resources()), len(want))
	}
	for _, w := range want {
		if !slices.ContainsFunc(resources(), func(r resource) bool { return reflect.DeepEqual(r, w) }) {
			t.Errorf("no row is %+v", w)
		}
	}
}
