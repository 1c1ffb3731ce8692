package follow

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const evict, stay = "descheduler.alpha.kubernetes.io/evict", "descheduler.alpha.kubernetes.io/prefer-no-eviction"

func keys(t *testing.T, annotations, labels string) Keys {
	t.Helper()
	k, err := Parse(annotations, labels)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestParseKeys(t *testing.T) {
	for list, want := range map[string]string{
		"":                                  "",
		"example.com/a":                     "",
		" example.com/a, tier ,":            "",
		"example.com/*,example.com/net-*":   "",
		"app.kubernetes.io/*":               "",
		"*":                                 "names no domain",
		"tier*":                             "names no domain",
		"example.com/a*b":                   "is no key",
		"example.com/":                      "is no key",
		"a/b/c":                             "is no key",
		"example.com/*,kubevirt.io":         "only components write",
		"kubevirt.io/*":                     "only components write",
		"kubevirt.io/created-by":            "only components write",
		"vmi.kubevirt.io/id":                "only components write",
		"kubeqemu.io/template-parts":        "only components write",
		"k8s.v1.cni.cncf.io/networks":       "only components write",
		"v1.multus-cni.io/*":                "only components write",
		"kubectl.kubernetes.io/*":           "only components write",
		"notkubevirt.io/a,kubevirt.io.eu/a": "",
	} {
		for _, parse := range []func() (Keys, error){func() (Keys, error) { return Parse(list, "") }, func() (Keys, error) { return Parse("", list) }} {
			if _, err := parse(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", list, err, want)
			}
		}
	}
}

// TestPatchFollowsTheListedKeys: keys of the list follow, what followed before goes with its source, and everything
// else stays.
func TestPatchFollowsTheListedKeys(t *testing.T) {
	type m = map[string]string
	k := keys(t, "example.com/note", "example.com/*,tier")
	for name, c := range map[string]struct {
		from   Metadata
		object metav1.ObjectMeta
		want   string // the patch without its UID; empty if there is none
	}{
		"nothing": {Metadata{}, metav1.ObjectMeta{}, ""},
		"only others' keys": {Metadata{Labels: m{"app": "web", "kubevirt.io/vm": "a"}, Annotations: m{"x": "y"}},
			metav1.ObjectMeta{Labels: m{"app": "db", "example.com/a": "mine", "kubevirt.io": "virt-launcher"}, Annotations: m{evict: "by hand"}}, ""},
		"a new key": {Metadata{Annotations: m{evict: "true"}, Labels: m{"example.com/a": "1"}}, metav1.ObjectMeta{Labels: m{"app": "db"}},
			`{"labels":{"example.com/a":"1"},"annotations":{"` + evict + `":"true","` + Annotation + `":"annotation:` + evict + `,label:example.com/a"}}`},
		"a changed value": {Metadata{Labels: m{"tier": "2"}}, metav1.ObjectMeta{Labels: m{"tier": "1"}, Annotations: m{Annotation: "label:tier"}},
			`{"labels":{"tier":"2"},"annotations":{"` + Annotation + `":"label:tier"}}`},
		"as it is": {Metadata{Labels: m{"tier": "1"}, Annotations: m{stay: ""}},
			metav1.ObjectMeta{Labels: m{"tier": "1"}, Annotations: m{stay: "", Annotation: "annotation:" + stay + ",label:tier"}}, ""},
		"a key goes": {Metadata{}, metav1.ObjectMeta{Labels: m{"tier": "1", "example.com/other": "x"}, Annotations: m{Annotation: "label:tier"}},
			`{"labels":{"tier":null},"annotations":{"` + Annotation + `":null}}`},
		"a key that is gone already": {Metadata{}, metav1.ObjectMeta{Annotations: m{Annotation: "label:tier"}}, `{"annotations":{"` + Annotation + `":null}}`},
		"an object of an earlier version": {Metadata{Labels: m{"tier": "1"}}, metav1.ObjectMeta{Labels: m{"tier": "1"}},
			`{"annotations":{"` + Annotation + `":"label:tier"}}`},
		"what a user wrote into the note": {Metadata{}, metav1.ObjectMeta{
			Labels:      m{"kubevirt.io": "virt-launcher", "vmi.kubevirt.io/id": "vm", "app": "web"},
			Annotations: m{"cni": "x", Annotation: "label:kubevirt.io,label:vmi.kubevirt.io/id,label:app,annotation:cni,annotation:" + Annotation + ",,label:"}},
			`{"annotations":{"` + Annotation + `":null}}`},
		"reserved keys of the source": {Metadata{Labels: m{"kubevirt.io": "virt-api", "vmi.kubevirt.io/id": "other"}, Annotations: m{"kubevirt.io/domain": "other"}}, metav1.ObjectMeta{}, ""},
	} {
		c.object.UID = "u"
		before := c.object.DeepCopy()
		patch, err := k.Patch(c.from, &c.object)
		if err != nil {
			t.Fatal(err)
		}
		want := c.want
		if want != "" {
			want = `{"metadata":{"uid":"u",` + strings.TrimPrefix(want, "{") + "}"
		}
		if string(patch) != want {
			t.Errorf("%s:\n%s, want\n%s", name, patch, want)
		}
		if !maps.Equal(before.Labels, c.object.Labels) || !maps.Equal(before.Annotations, c.object.Annotations) {
			t.Errorf("%s: the object was changed", name)
		}
		if patch == nil {
			continue
		}
		apply(t, &c.object, patch)
		if again, err := k.Patch(c.from, &c.object); err != nil || again != nil {
			t.Errorf("%s: a second patch: %s, %v", name, again, err)
		}
	}
}

// apply applies a merge patch.
func apply(t *testing.T, object *metav1.ObjectMeta, patch []byte) {
	t.Helper()
	var p struct {
		Metadata struct{ Labels, Annotations map[string]*string }
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		t.Fatal(err)
	}
	merge := func(into *map[string]string, changes map[string]*string) {
		for key, value := range changes {
			if *into == nil {
				*into = map[string]string{}
			}
			if value == nil {
				delete(*into, key)
			} else {
				(*into)[key] = *value
			}
		}
	}
	merge(&object.Labels, p.Metadata.Labels)
	merge(&object.Annotations, p.Metadata.Annotations)
}

// TestNewObjectHasItsNote: a new object has its note from the start, so that nothing is written later.
// TestPatchIsBounded: a template's author can make no patch that is too large for the object.
func TestPatchIsBounded(t *testing.T) {
	k := keys(t, "", "example.com/*")
	from := Metadata{Labels: map[string]string{}, Annotations: map[string]string{evict: strings.Repeat("x", maxValue+1), stay: strings.Repeat("x", maxValue)}}
	for i := range 2 * maxKeys {
		from.Labels[fmt.Sprintf("example.com/l%03d", i)] = "x"
	}
	object := &metav1.ObjectMeta{}
	patch, err := k.Patch(from, object)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Metadata.Labels) != maxKeys || got.Metadata.Labels["example.com/l063"] != "x" {
		t.Errorf("%d labels follow, want the first %d", len(got.Metadata.Labels), maxKeys)
	}
	if _, long := got.Metadata.Annotations[evict]; long || len(got.Metadata.Annotations[stay]) != maxValue {
		t.Errorf("of the annotations follow %v", maps.Keys(got.Metadata.Annotations))
	}
	if again, err := k.Patch(from, &got.Metadata); err != nil || again != nil {
		t.Errorf("what follows is patched again: %s, %v", again, err)
	}
}

func TestNewObjectHasItsNote(t *testing.T) {
	k := keys(t, "", "example.com/*")
	from := Metadata{Labels: map[string]string{"example.com/a": "1", "app": "web"}, Annotations: map[string]string{evict: ""}}
	made := &metav1.ObjectMeta{Labels: maps.Clone(from.Labels), Annotations: map[string]string{evict: "", Annotation: "label:app"}}
	k.Note(from, made)
	if patch, err := k.Patch(from, made); patch != nil || err != nil {
		t.Errorf("patch %s, %v", patch, err)
	}
	plain := &metav1.ObjectMeta{Annotations: map[string]string{Annotation: "label:app"}}
	k.Note(Metadata{}, plain)
	if len(plain.Annotations) > 0 {
		t.Errorf("annotations %v", plain.Annotations)
	}
	k.Note(Metadata{}, &metav1.ObjectMeta{})
}

func TestWhichKeysAreKept(t *testing.T) {
	k := keys(t, "example.com/*", "tier")
	for key, want := range map[string]bool{evict: true, stay: true, "example.com/a": true, Annotation: true, "tier": false, "kubevirt.io/domain": false, "example.org/a": false} {
		if got := k.Keeps(key); got != want {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
	if (Keys{}).Keeps(evict) {
		t.Error("the zero value keeps an annotation")
	}
}
