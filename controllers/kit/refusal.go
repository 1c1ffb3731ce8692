package kit

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusalLimit bounds all causes of a refusal together, in bytes. The causes become
// the message of a condition.
const refusalLimit = 1024

// SortedRefusal sorts the validation errors in an answer of the API server's, so
// that an unchanged failure does not change the status. The API server validates
// labels, selectors and annotations, and what a LimitRange wants, in the order of a
// Go map, which differs each time. Each new text would be a new condition, and the event of that change would
// have the object reconciled at once, past every back-off.
func SortedRefusal(err error) error {
	var answer *apierrors.StatusError
	if errors.As(err, &answer) && answer.ErrStatus.Code == http.StatusForbidden {
		status := answer.ErrStatus.DeepCopy()
		if status.Message = sortedList(status.Message); status.Message == answer.ErrStatus.Message {
			return err
		}
		return &apierrors.StatusError{ErrStatus: *status}
	}
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
	if len(text) > refusalLimit {
		text = strings.ToValidUTF8(text[:refusalLimit], "") + "…"
	}
	status.Message = fmt.Sprintf("%s %q is invalid: %s", status.Details.Kind, status.Details.Name, text)
	return &apierrors.StatusError{ErrStatus: *status}
}

// sortedList sorts the list in brackets that ends a text, as what breaks a LimitRange is listed: each of the list is
// "A is B" or "A is B, but C is D".
func sortedList(text string) string {
	before, list, found := strings.Cut(text, ": [")
	list, ended := strings.CutSuffix(list, "]")
	if !found || !ended {
		return text
	}
	var causes []string
	for part := range strings.SplitSeq(list, ", ") {
		if last := len(causes) - 1; last >= 0 && strings.HasPrefix(part, "but ") {
			causes[last] += ", " + part
		} else {
			causes = append(causes, part)
		}
	}
	slices.Sort(causes)
	return before + ": [" + strings.Join(causes, ", ") + "]"
}
