package kit

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func invalid(labels ...string) error {
	var errs field.ErrorList
	for _, label := range labels {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "labels"), label, "is none"))
	}
	return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", errs)
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
