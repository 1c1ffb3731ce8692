package admission

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	kjson "sigs.k8s.io/json"
)

// decode reads JSON as the API server does: names are case-sensitive, unknown names are
// skipped. Everybody in the cluster can send JSON here.
func decode[T any](raw []byte) (*T, error) {
	if err := CheckReadable(raw); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	object := new(T)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, object); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	return object, nil
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

// unchanged returns the JSON of an updated object with defaults (after), without the defaults
// that would change the stored object (old).
func unchanged(before, after, old []byte) ([]byte, error) {
	var was, is, there any
	for text, value := range map[*[]byte]*any{&before: &was, &after: &is, &old: &there} {
		if err := json.Unmarshal(*text, value); err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
	}
	text, err := json.Marshal(kept(was, is, there))
	if err != nil {
		return nil, fmt.Errorf("write object: %w", err)
	}
	return text, nil
}

// kept returns an updated object with defaults, without those defaults that would change the
// stored object. was is the update as read, is the same with defaults, old the stored object. A
// field that the update leaves out, and a default would fill, keeps its value in old, or stays
// out if old has none. So applying a manifest again changes nothing, even if a default has
// changed since, or nobody has filled it in yet.
func kept(was, is, old any) any {
	if reflect.DeepEqual(was, is) {
		return is
	}
	switch is := is.(type) {
	case map[string]any:
		was, _ := was.(map[string]any)
		old, _ := old.(map[string]any)
		fields := map[string]any{}
		for name, value := range is {
			before, there := old[name]
			field := kept(was[name], value, before)
			if there || !hollow(field) {
				fields[name] = field
			}
		}
		return fields
	case []any:
		was, _ := was.([]any)
		old, _ := old.([]any)
		return keptItems(was, is, old)
	}
	if old == nil {
		return was
	}
	return old
}

// keptItems returns what kept does, for lists. Defaults add items at the end only. An item is that of the stored object
// which has its name.
func keptItems(was, is, old []any) []any {
	stored := map[string]any{}
	for _, item := range old {
		stored[itemName(item)] = item
	}
	unnamed := func(item any) bool { return itemName(item) == "" }
	if len(was) > len(is) || len(stored) < len(old) || slices.ContainsFunc(is, unnamed) {
		return was
	}
	items := []any{}
	for i, item := range is {
		before, there := stored[itemName(item)]
		switch {
		case i < len(was) && there:
			items = append(items, kept(was[i], item, before))
		case i < len(was): // of a new item, {} says something: the disk is a LUN, or a CD-ROM
			items = append(items, was[i])
		case there:
			items = append(items, before)
		}
	}
	return items
}

// itemName returns the name of an item of a list, or an empty text if it has none.
func itemName(item any) string {
	fields, _ := item.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

// hollow says whether a value holds nothing.
func hollow(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return len(value) == 0
	case []any:
		return len(value) == 0
	}
	return value == nil
}
