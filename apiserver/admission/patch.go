package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	merge "github.com/evanphx/json-patch/v5"
	"gomodules.xyz/jsonpatch/v2"
	kjson "sigs.k8s.io/json"
)

// decode reads JSON as the API server does: names are case-sensitive, unknown
// ones are skipped. Everybody in the cluster can have something read here.
func decode[T any](raw []byte) (*T, error) {
	if err := checkNumbers(raw); err != nil {
		return nil, err
	}
	object := new(T)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, object); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	return object, nil
}

// costly are numbers that take long to read as a quantity: with an exponent,
// such as 1e-999999999, which takes minutes, or of very many digits.
var costly = regexp.MustCompile(`^[+-]?(?:[0-9.]*[eE][+-]?[0-9]+|[0-9.]{64,}.*)$`)

// checkNumbers looks for costly numbers anywhere in a JSON text, for which
// strings are quantities is not known before it is read. The schema refuses
// them where they are.
func checkNumbers(raw []byte) error {
	tokens := json.NewDecoder(bytes.NewReader(raw))
	tokens.UseNumber()
	for {
		token, err := tokens.Token()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read object: %w", err)
		}
		text, _ := token.(string)
		if number, ok := token.(json.Number); ok {
			text = number.String()
		}
		if costly.MatchString(text) {
			return fmt.Errorf("read object: the number %.32s is not read: it has an exponent or too many digits", text)
		}
	}
}

// filled returns the JSON of an object as it was read, and after fill.
func filled[T any](raw []byte, fill func(*T)) (before, after []byte, err error) {
	object, err := decode[T](raw)
	if err != nil {
		return nil, nil, err
	}
	if before, err = json.Marshal(object); err != nil {
		return nil, nil, fmt.Errorf("write object: %w", err)
	}
	fill(object)
	if after, err = json.Marshal(object); err != nil {
		return nil, nil, fmt.Errorf("write object: %w", err)
	}
	return before, after, nil
}

// isWritten says whether there is a number or a switch at a path. A 0 that was
// written reads as if nothing were; it is what somebody wants, though, and the
// schema's to refuse. An empty text means that nothing is wanted.
func isWritten(object any, path string) bool {
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		switch o := object.(type) {
		case map[string]any:
			object = o[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(o) {
				return false
			}
			object = o[i]
		default:
			return false
		}
	}
	switch object.(type) {
	case float64, bool:
		return true
	}
	return false
}

// patch turns the difference of what was read of raw and what came of it into
// a JSON patch of raw itself. That raw is not simply replaced keeps fields that
// are not known here, which are the schema's to refuse, and what was written
// another way than it would be here, such as 1024M.
func patch(raw, before, after []byte) ([]jsonpatch.Operation, error) {
	changes, err := jsonpatch.CreatePatch(before, after)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	var object any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	changes = slices.DeleteFunc(changes, func(o jsonpatch.Operation) bool { return isWritten(object, o.Path) })
	text, err := json.Marshal(changes)
	if err != nil {
		return nil, fmt.Errorf("write changes: %w", err)
	}
	decoded, err := merge.DecodePatch(text)
	if err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	options := merge.NewApplyOptions()
	// What reading makes an empty object of may be missing in raw.
	options.EnsurePathExistsOnAdd = true
	patched, err := decoded.ApplyWithOptions(raw, options)
	if err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	return jsonpatch.CreatePatch(raw, patched)
}
