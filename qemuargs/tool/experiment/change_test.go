package experiment

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestEntriesGoWithTheirNames: an object that goes leaves no volume without its disk, and a new name is in all places
// of the old one and in no other.
func TestEntriesGoWithTheirNames(t *testing.T) {
	var tree any
	text := `{"spec":{"domain":{"devices":{
		"disks":[{"name":"a","disk":{"bus":"scsi"}},{"name":"other-a"}],
		"inputs":[{"name":"a"}],
		"interfaces":[{"name":"a","bridge":{}}]}},
		"networks":[{"name":"a","pod":{}}],
		"volumes":[{"name":"other-a"},{"name":"a"}]}}`
	if err := json.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	names := func(c Change, list string) (names []string) {
		entries, _ := At(c.Tree, list)
		all, _ := entries.([]any)
		for _, entry := range all {
			name, _ := At(entry, "name")
			text, _ := name.(string)
			names = append(names, text)
		}
		slices.Sort(names)
		return names
	}
	renamed, gone := map[string]bool{}, 0
	for _, c := range Changes(tree, nil) {
		disks, volumes := names(c, "spec.domain.devices.disks"), names(c, "spec.volumes")
		if c.Whole && !slices.Equal(disks, volumes) {
			t.Errorf("%q: there are disks %q and volumes %q", c.Paths, disks, volumes)
		}
		if gone += 2 - len(disks); c.New == "" {
			continue
		}
		if strings.Contains(text, c.New) {
			t.Errorf("the new name %q was there before", c.New)
		}
		paths := strings.Join(c.Paths, " ")
		if renamed[paths] = true; !slices.Equal(disks, volumes) {
			t.Errorf("%s: with another name there are disks %q and volumes %q", paths, disks, volumes)
		}
	}
	for _, want := range []string{
		"spec.domain.devices.disks[0].name spec.volumes[1].name",
		"spec.domain.devices.disks[1].name spec.volumes[0].name",
		"spec.domain.devices.interfaces[0].name spec.networks[0].name",
		"spec.domain.devices.inputs[0].name",
	} {
		if !renamed[want] {
			t.Errorf("%s do not get another name together", want)
		}
	}
	if gone != 2 {
		t.Errorf("%d disks went, each of the two once", gone)
	}
}
