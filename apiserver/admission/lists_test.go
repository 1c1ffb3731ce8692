package admission

import (
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/cputime"
)

// TestLongListsAreRefusedByName: a list with more elements than any schema permits is refused by its path and with the bound, wherever in the spec of whichever kind it is.
func TestLongListsAreRefusedByName(t *testing.T) {
	server := newServer(empty, nil)
	empties := func(n int) string { return "[" + strings.Repeat("{},", n-1) + "{}]" }
	for name, c := range map[string]struct{ object, want string }{
		"a VM's disks":        {`{"spec":{"template":{"spec":{"domain":{"devices":{"disks":` + empties(100_000) + `}}}}}}`, "spec.template.spec.domain.devices.disks"},
		"as long as may be":   {`{"spec":{"a":` + empties(maxList) + `}}`, ""},
		"one more":            {`{"spec":{"a":` + empties(maxList+1) + `}}`, "spec.a: Too many: must have at most 1024 items"},
		"a list in a list":    {`{"spec":{"a":[{"b":[]},{"b":` + empties(maxList+1) + `}]}}`, "spec.a.b: Too many"},
		"of numbers":          {`{"spec":{"a":[` + strings.Repeat("1,", maxList) + `1]}}`, "spec.a: Too many"},
		"many lists":          {`{"spec":{"a":[` + strings.Repeat(empties(maxList)+",", 99) + `[]]}}`, "the lists of the spec have more than 4096 elements"},
		"many members":        {`{"spec":{"a":{` + strings.Repeat(`"b":1,`, maxMembers) + `"c":1}}}`, "the spec has more than 10000 members"},
		"a long name":         {`{"spec":{"` + strings.Repeat("<", 1<<20) + `":` + empties(maxList+1) + `}}`, "<<<…: Too many"},
		"many names":          {`{"metadata":{` + strings.Repeat(`"a":1,`, maxTokens) + `"b":2}}`, "more than 50000 names and values"},
		"deep":                {`{"spec":` + strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1) + `}`, "nested more than"},
		"outside of the spec": {`{"metadata":{"finalizers":` + empties(maxList+1) + `},"status":{"a":` + empties(maxList+1) + `}}`, ""},
		"no object":           {`[]`, ""},
		"another type":        {`{"spec":7}`, ""},
	} {
		for _, path := range []string{"/lists-mutate", "/virtualmachineinstances-mutate"} {
			if path != "/lists-mutate" && name == "as long as may be" {
				continue // it is larger than what is filled in, or not
			}
			answer := ask(t, server, path, c.object, "")
			if answer.Allowed != (c.want == "") || !answer.Allowed && !strings.Contains(answer.Result.Message, c.want) {
				t.Errorf("%s, %s: %v %.300s, want %q", name, path, answer.Allowed, answer.Result, c.want)
			}
		}
	}
	object := `{"spec":{"template":{"spec":{"domain":{"devices":{"disks":` + empties(90_000) + `}}}}}}`
	if took := cputime.Of(t, func() { longList([]byte(object)) }); took > time.Second/4 {
		t.Errorf("it took %s", took)
	}
}
