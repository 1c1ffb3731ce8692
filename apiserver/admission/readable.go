package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits far beyond any object of ours.
const (
	maxTokens = 50_000 // each, such as {, may become a struct of a hundred bytes
	maxDepth  = 100
)

// costly are numbers that take long to read as a quantity: with an exponent
// such as 1e-999999999, which takes minutes, or of very many digits.
var costly = regexp.MustCompile(`^[+-]?(?:[0-9.]*[0-9][0-9.]*[eE](?:-[0-9]{4,}|\+?[0-9]{5,})|[0-9.]{64,}.*)$`)

// CheckReadable refuses a JSON text that would take long, or much memory, to read as one of our
// objects. Any string may be a quantity, except those in metadata: there a revision may look
// like a costly number.
func CheckReadable(raw []byte) error {
	r := reader{tokens: json.NewDecoder(bytes.NewReader(raw))}
	r.tokens.UseNumber()
	if err := r.value(nil, 0, true, true); err != nil {
		return err
	}
	if _, err := r.tokens.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

type reader struct {
	tokens *json.Decoder
	read   int
}

func (r *reader) next() (json.Token, error) {
	if r.read++; r.read > maxTokens {
		return nil, fmt.Errorf("it has more than %d names and values", maxTokens)
	}
	return r.tokens.Token()
}

// value reads one value. numbers says whether the value may be a quantity, inner whether the
// values inside it may be.
func (r *reader) value(path *field.Path, depth int, numbers, inner bool) error {
	token, err := r.next()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case json.Delim:
		return r.members(token, path, depth+1, inner)
	case json.Number:
		return affordable(token.String(), path)
	case string:
		if numbers {
			return affordable(token, path)
		}
	}
	return nil
}

// members reads what is in an object or a list, and its end.
func (r *reader) members(kind json.Delim, path *field.Path, depth int, numbers bool) error {
	if depth > maxDepth {
		return fmt.Errorf("it is nested more than %d deep", maxDepth)
	}
	for i := 0; r.tokens.More(); i++ {
		at, inner := path.Index(i), numbers
		if kind == '{' {
			name, err := r.next()
			if err != nil {
				return err
			}
			// A resource may be called metadata: its quantity is no object.
			at, inner = path.Child(name.(string)), numbers && name != "metadata"
		}
		if err := r.value(at, depth, numbers, inner); err != nil {
			return err
		}
	}
	_, err := r.next()
	return err
}

func affordable(text string, path *field.Path) error {
	if !costly.MatchString(text) {
		return nil
	}
	return field.Invalid(path, text[:min(len(text), 32)], "a number with so many digits, or such an exponent, is not read")
}
