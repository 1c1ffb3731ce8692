// Package patch changes objects of which the program knows only a part: somebody wrote unknown
// fields into them, or their schema is newer than the program.
package patch

import (
	"encoding/json"
	"fmt"
	"reflect"

	"gomodules.xyz/jsonpatch/v2"
)

// Operations turns the difference between raw as it was read (before) and the result (after)
// into a JSON patch of raw itself. To replace raw would lose unknown fields, in the items of
// lists too, and other notations of the same value, such as 1024M.
func Operations(raw, before, after []byte) ([]jsonpatch.Operation, error) {
	var written, was, is any
	for text, value := range map[*[]byte]*any{&raw: &written, &before: &was, &after: &is} {
		if err := json.Unmarshal(*text, value); err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
	}
	patched, err := json.Marshal(merge(written, was, is))
	if err != nil {
		return nil, fmt.Errorf("write object: %w", err)
	}
	return jsonpatch.CreatePatch(raw, patched)
}

// merge applies the difference between was and is to written. was is how written was read.
func merge(written, was, is any) any {
	switch is := is.(type) {
	case map[string]any:
		was, _ := was.(map[string]any)
		fields, ok := written.(map[string]any)
		if !ok {
			fields = map[string]any{}
		}
		for name, value := range is {
			if before, there := was[name]; !there || !reflect.DeepEqual(before, value) {
				fields[name] = merge(fields[name], before, value)
			}
		}
		for name := range was {
			if _, there := is[name]; !there {
				delete(fields, name)
			}
		}
		return fields
	case []any:
		was, _ := was.([]any)
		items, _ := written.([]any)
		if len(items) != len(was) || len(is) < len(was) {
			return is
		}
		for i := range was {
			items[i] = merge(items[i], was[i], is[i])
		}
		return append(items, is[len(was):]...)
	}
	switch written.(type) {
	case float64, bool:
		// A written 0 or false reads as if the field were empty. Yet somebody wants that value,
		// and to refuse it is the schema's part. An empty text means that nothing is wanted.
		return written
	}
	return is
}
