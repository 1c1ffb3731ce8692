package admission

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

func serverWith(presets Presets) *http.ServeMux {
	mux := http.NewServeMux()
	Register(mux, func(context.Context) (Facts, error) { return empty, nil }, presets, intake.NewBodies(2*MaxReview))
	return mux
}

// TestNewVMIIsLeftAloneWherePresetsAre: a new VMI is left to virt-controller if its namespace has presets, and
// only then is the API server asked.
func TestNewVMIIsLeftAloneWherePresetsAre(t *testing.T) {
	const vmi, finalizer = `{"metadata":{"labels":{"a":"b"}},"spec":{"domain":{}}}`, `"finalizers":["` + v1.VMIFinalizer + `","other"]`
	excluded := strings.Replace(vmi, `"labels"`, `"annotations":{"`+v1.ExcludePresetsAnnotation+`":"true"},"labels"`, 1)
	for name, c := range map[string]struct {
		object, old, where string
		asked, filled      bool
	}{
		"in this namespace":    {vmi, "", "blue", true, false},
		"in another namespace": {vmi, "", "red", true, true},
		"excluded":             {excluded, "", "blue", false, true},
		"not quite excluded":   {strings.Replace(excluded, `"true"`, `"yes"`, 1), "", "blue", true, false},
		"an update":            {vmi, `{"spec":{"domain":{"machine":{"type":"q35"}}}}`, "blue", false, true},
		"too large":            {strings.Replace(vmi, `"b"`, `"`+strings.Repeat("x", maxFilled)+`"`, 1), "", "blue", false, false},
		"unreadable":           {`{"metadata":7}`, "", "blue", false, false},
	} {
		asked := false
		answer := ask(t, serverWith(func(ctx context.Context, namespace string) (bool, error) {
			asked = true
			return presetsIn(c.where)(ctx, namespace)
		}), "/virtualmachineinstances-mutate", c.object, c.old)
		if !answer.Allowed || asked != c.asked || (len(answer.Patch) > 0) != c.filled {
			t.Errorf("%s: asked %v, %+v, patch %s", name, asked, answer, answer.Patch)
		}
	}
	// The finalizer would say that the presets are there.
	answer := ask(t, serverWith(presetsIn("blue")), "/virtualmachineinstances-mutate", strings.Replace(vmi, `"labels"`, finalizer+`,"labels"`, 1), "")
	if got := string(answer.Patch); !strings.Contains(got, `/metadata/finalizers`) || strings.Contains(got, "/spec") {
		t.Errorf("a finalizer in the manifest: %s", got)
	}
}

// TestWithoutAnswerThereMayBePresets: where the API server does not answer, or not soon, there may be presets.
func TestWithoutAnswerThereMayBePresets(t *testing.T) {
	for name, presets := range map[string]Presets{
		"an error": func(context.Context, string) (bool, error) { return false, errors.New("down") },
		"no answer": func(ctx context.Context, _ string) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		},
	} {
		if answer := ask(t, serverWith(presets), "/virtualmachineinstances-mutate", `{"spec":{"domain":{}}}`, ""); !answer.Allowed || len(answer.Patch) > 0 {
			t.Errorf("%s: %+v", name, answer)
		}
	}
}

// TestWaitForPresetsHoldsUpNoOtherReview: reviews that wait for the API server hold up no other review.
func TestWaitForPresetsHoldsUpNoOtherReview(t *testing.T) {
	waiting, done := make(chan struct{}, maxAsking), make(chan struct{})
	mux := serverWith(func(context.Context, string) (bool, error) {
		waiting <- struct{}{}
		<-done
		return false, nil
	})
	var all sync.WaitGroup
	for range maxDeciding + 1 {
		all.Go(func() { ask(t, mux, "/virtualmachineinstances-mutate", `{"spec":{"domain":{}}}`, "") })
		<-waiting
	}
	if answer := ask(t, mux, "/virtualmachines-validate", `{"spec":{}}`, ""); answer.Allowed {
		t.Errorf("%+v", answer)
	}
	close(done)
	all.Wait()
}

func TestValidatePreset(t *testing.T) {
	const selector = `"selector":{"matchLabels":{"a":"b"}}`
	validated{
		"good":          {`{"metadata":{"name":"x"},"spec":{` + selector + `,"domain":{"cpu":{"cores":2}}}}`, "", empty, ""},
		"bad":           {`{"spec":{"selector":{"matchLabels":{"a b":"c"}},"domain":{"devices":{"disks":[{}]}}}}`, "", empty, "spec.domain.devices.disks,spec.selector.matchLabels"},
		"changed":       {`{"spec":{` + selector + `,"domain":{"cpu":{"cores":1000}}}}`, `{"spec":{` + selector + `}}`, empty, "spec.domain.cpu"},
		"being deleted": {`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{` + selector + `,"domain":{"cpu":{"cores":1000}}}}`, "", empty, ""},
	}.ask(t, "virtualmachineinstancepresets")
}

// TestVMIWithoutMemoryNeedsAPreset: a VMI without memory is refused, unless a preset may still say its memory.
func TestVMIWithoutMemoryNeedsAPreset(t *testing.T) {
	const uid = `"uid":"5d307ca9-b3ef-428c-8861-06e72d69f223"`
	const spec = `"spec":{"domain":{"cpu":{"cores":1000}}}`
	validated{
		"filled in":         {`{"metadata":{` + uid + `,"finalizers":["` + v1.VMIFinalizer + `"]},` + spec + `}`, "", empty, "spec.domain.cpu,spec.domain.memory.guest"},
		"not filled in yet": {`{"metadata":{` + uid + `},` + spec + `}`, "", empty, "spec.domain.cpu"},
	}.ask(t, "virtualmachineinstances")
}
