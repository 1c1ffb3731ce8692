package filler

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestDataVolumesAreOursOnlyWithoutCDI(t *testing.T) {
	ours := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{cdi.ManagedByLabel: cdi.ManagedByKubeqemu}}}
	theirs := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{cdi.ManagedByLabel: "cdi-operator"}}}
	going := ours.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, c := range map[string]struct {
		definition    *metav1.PartialObjectMetadata
		installations []string
		reason        string
	}{
		"ours":                     {ours, nil, v1.ReasonFillsDataVolumes},
		"ours beside CDI":          {ours, []string{"cdi"}, v1.ReasonCDIInstalled},
		"CDI's":                    {theirs, nil, v1.ReasonDefinitionForeign},
		"CDI's, and CDI":           {theirs, []string{"cdi"}, v1.ReasonCDIInstalled},
		"somebody's":               {&metav1.PartialObjectMetadata{}, nil, v1.ReasonDefinitionForeign},
		"none":                     {nil, nil, v1.ReasonDefinitionMissing},
		"none yet, but CDI":        {nil, []string{"cdi"}, v1.ReasonCDIInstalled},
		"ours, and is being given": {going, nil, v1.ReasonDefinitionMissing},
	} {
		if v := judge(c.definition, c.installations); v.reason != c.reason || v.open != (c.reason == v1.ReasonFillsDataVolumes) || v.message == "" {
			t.Errorf("%s: %+v, want %s", name, v, c.reason)
		}
	}
}

// TestConditionFollowsTheJudgement: the condition is written when it changes, and goes when nobody asked for DataVolumes.
func TestConditionFollowsTheJudgement(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "kubevirt"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(kv).WithStatusSubresource(kv).Build()
	for i, known := range []*verdict{{true, "A", "a"}, {true, "A", "a"}, {false, "B", "b"}, nil, nil} {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(kv), kv); err != nil {
			t.Fatal(err)
		}
		before := kv.ResourceVersion
		if err := report(t.Context(), c, kv, known, time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(kv), kv); err != nil {
			t.Fatal(err)
		}
		if unchanged := i == 1 || i == 4; (kv.ResourceVersion == before) != unchanged {
			t.Errorf("step %d: written: %v", i, kv.ResourceVersion != before)
		}
		switch n := len(kv.Status.Conditions); {
		case known == nil && n != 0, known != nil && (n != 1 || kv.Status.Conditions[0].Reason != known.reason || string(kv.Status.Conditions[0].Status) != map[bool]string{true: "True", false: "False"}[known.open]):
			t.Errorf("step %d: %+v", i, kv.Status.Conditions)
		}
	}
}

// unreadable is an API server that answers nothing.
type unreadable struct{ client.Reader }

func (unreadable) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no answer")
}

func TestNothingIsOursIfTheClusterIsUnreadable(t *testing.T) {
	if v, err := look(t.Context(), unreadable{}); err == nil || v.open {
		t.Errorf("%+v, %v", v, err)
	}
}
