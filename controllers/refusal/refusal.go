// Package refusal has the API server say no in the same words each time.
package refusal

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// limit is how long the causes may be together, in bytes: they are written into
// the message of a condition.
const limit = 1024

// Sorted returns an answer of the API server's, with what is invalid in order. It
// validates labels, selectors and annotations in the order of a Go map, another
// one each time; a condition with that text would be a change each time, whose
// event has the object reconciled at once, past every back-off.
func Sorted(err error) error {
	var answer *apierrors.StatusError
	if !errors.As(err, &answer) || answer.ErrStatus.Code != http.StatusUnprocessableEntity || answer.ErrStatus.Details == nil || len(answer.ErrStatus.Details.Causes) == 0 {
		return err
	}
	status := answer.ErrStatus.DeepCopy()
	var causes []string
	for _, c := range status.Details.Causes {
		causes = append(causes, strings.TrimPrefix(c.Field+": "+c.Message, ": "))
	}
	slices.Sort(causes)
	text := strings.Join(slices.Compact(causes), ", ")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	status.Message = fmt.Sprintf("%s %q is invalid: %s", status.Details.Kind, status.Details.Name, text)
	return &apierrors.StatusError{ErrStatus: *status}
}
