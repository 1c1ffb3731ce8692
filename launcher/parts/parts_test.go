package parts

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// spy is a part that notes which verbs it has heard. Its verbs fail with err.
type spy struct {
	heard *[]string
	name  string
	err   error
}

func (s spy) hear(verb string) error {
	*s.heard = append(*s.heard, s.name+" "+verb)
	return s.err
}

func (s spy) Prepare(context.Context, *control.StartRequest, map[string]*os.File) error {
	return s.hear("prepares")
}
func (s spy) Start(*control.StartRequest, map[string]*os.File) error { return s.hear("starts") }
func (s spy) Attach(*control.StartRequest, *process.QEMU) error      { return s.hear("attaches") }
func (s spy) Arrive(context.Context)                                 { _ = s.hear("arrives") }
func (s spy) Close() error                                           { return s.hear("closes") }

// TestListGoesThroughItsParts: each verb goes through the parts in their order. It ends with the first error, but each
// part is closed.
func TestListGoesThroughItsParts(t *testing.T) {
	failure := errors.New("b fails")
	for _, fails := range []error{nil, failure} {
		var heard []string
		list := List{spy{&heard, "a", nil}, None{}, spy{&heard, "b", fails}, spy{&heard, "c", nil}}
		errs := []error{list.Prepare(t.Context(), nil, nil), list.Start(nil, nil), list.Attach(nil, nil), list.Close()}
		list.Arrive(t.Context())
		for _, err := range errs {
			if !errors.Is(err, fails) {
				t.Errorf("%v, want %v", err, fails)
			}
		}
		want := []string{"a prepares", "b prepares", "c prepares", "a starts", "b starts", "c starts",
			"a attaches", "b attaches", "c attaches", "a closes", "b closes", "c closes", "a arrives", "b arrives", "c arrives"}
		if fails != nil {
			want = slices.DeleteFunc(want, func(verb string) bool {
				return verb == "c prepares" || verb == "c starts" || verb == "c attaches"
			})
		}
		if !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q", heard, want)
		}
	}
}
