package kit

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func invalid(labels ...string) error {
	var errs field.ErrorList
	for _, label := range labels {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "labels"), label, "is none"))
	}
	return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", errs)
}

// TestSortedRefusalOfALimitRange: the API server lists what breaks a LimitRange in the order of a Go map.
func TestSortedRefusalOfALimitRange(t *testing.T) {
	cpu := "maximum cpu usage per Container is 1, but limit is 2"
	memory := "minimum memory usage per Pod is 1Gi.  No request is specified"
	const want = `pods "x" is forbidden: [maximum cpu usage per Container is 1, but limit is 2, ` +
		`minimum memory usage per Pod is 1Gi.  No request is specified]`
	for _, texts := range [][]string{{cpu, memory}, {memory, cpu}} {
		var causes []error
		for _, text := range texts {
			causes = append(causes, errors.New(text))
		}
		err := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", utilerrors.NewAggregate(causes))
		if got := SortedRefusal(err); got.Error() != want || !apierrors.IsForbidden(got) {
			t.Errorf("got  %v\nwant %s", got, want)
		}
	}
}

func TestSortedRefusal(t *testing.T) {
	const want = `Pod "x" is invalid: metadata.labels: Invalid value: "a": is none, metadata.labels: Invalid value: "b": is none`
	for _, err := range []error{invalid("a", "b"), invalid("b", "a"), invalid("b", "a", "b")} {
		if got := SortedRefusal(err); got.Error() != want || !apierrors.IsInvalid(got) {
			t.Errorf("got  %v\nwant %s", got, want)
		}
	}
	if got := SortedRefusal(invalid(strings.Repeat("é", refusalLimit))).Error(); len(got) > refusalLimit+100 {
		t.Errorf("%d bytes", len(got))
	}
	for _, err := range []error{nil, errors.New("down"), apierrors.NewBadRequest("no"), invalid()} {
		if got := SortedRefusal(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}
