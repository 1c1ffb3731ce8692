package experiment

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStepsOfAFieldsPath(t *testing.T) {
	for path, want := range map[string][]string{
		"":                               nil,
		"spec":                           {"spec"},
		"spec.disks[0].disk.bus":         {"spec", "disks", "0", "disk", "bus"},
		"metadata.labels[a.b/c].x":       {"metadata", "labels", "a.b/c", "x"},
		"a[0][1]":                        {"a", "0", "1"},
		"a[":                             {"a", ""},
		".":                              nil,
		"spec.template.spec.volumes[12]": {"spec", "template", "spec", "volumes", "12"},
	} {
		if diff := cmp.Diff(want, Steps(path)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", path, diff)
		}
	}
}
