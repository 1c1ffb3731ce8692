// Package patch changes objects of which the program knows a part: those that
// somebody has written with fields that do not exist, and those of a schema that
// is newer than the program.
package patch

import (
	"encoding/json"
	"fmt"
	"reflect"

	"gomodules.xyz/jsonpatch/v2"
)

// Operations turns the difference of what was read of raw and what came of it into
// a JSON patch of raw itself. That raw is not simply replaced keeps fields that
// are not known here, in the items of lists too, and what was written another way
// than it would be here, such as 1024M.
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

// merge makes of what was written what differs between was, as which it was
// read, and is.
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
		// A 0 that was written reads as if nothing were. It is what somebody
		// wants, though, and the schema's to refuse; an empty text means that
		// nothing is wanted.
		return written
	}
	return is
}
