package schema

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxErrors and maxUnknown bound lists. Joining errors takes time in the square of their
	// number.
	maxErrors  = 200
	maxUnknown = 200
	// maxText bounds the text of one error, and of one path, in bytes. maxTexts bounds the text
	// of all errors, and of all paths.
	maxText  = 16 << 10
	maxTexts = 128 << 10
)

// bounded returns the first errors, without values that are too long.
func bounded(errs field.ErrorList) field.ErrorList {
	var kept field.ErrorList
	texts := 0
	for i, err := range errs {
		if len(err.Field) > maxText || len(err.Detail) > maxText || len(err.ErrorBody()) > maxText {
			err = &field.Error{Type: err.Type, Field: cut(err.Field), BadValue: field.OmitValueType{}, Detail: cut(err.Detail)}
		}
		texts += len(err.Field) + len(err.ErrorBody())
		if len(kept) == maxErrors || texts > maxTexts {
			return append(kept, field.Invalid(field.NewPath("object"), "", fmt.Sprintf("has %d errors more", len(errs)-i)))
		}
		kept = append(kept, err)
	}
	return kept
}

// shortened returns the first paths, which are not too long, neither one of them nor all.
func shortened(paths []string) []string {
	var kept []string
	texts := 0
	for i, path := range paths {
		path = cut(path)
		if texts += len(path); i == maxUnknown || texts > maxTexts {
			return append(kept, fmt.Sprintf("… and %d more", len(paths)-i))
		}
		kept = append(kept, path)
	}
	return kept
}

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
