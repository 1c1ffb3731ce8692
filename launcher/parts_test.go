package launcher

import (
	"reflect"
	"testing"
)

// TestListHasAllParts: the loop goes through each part that has a name, once.
func TestListHasAllParts(t *testing.T) {
	var all vmParts
	listed := map[reflect.Type]int{}
	for _, part := range all.list() {
		kind := reflect.TypeOf(part)
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		listed[kind]++
	}
	named := reflect.TypeFor[vmParts]()
	for i := range named.NumField() {
		if f := named.Field(i); listed[f.Type] != 1 {
			t.Errorf("the list has %s %d times", f.Name, listed[f.Type])
		}
	}
	if named.NumField() != len(listed) {
		t.Errorf("%d parts have names, and the list has %v", named.NumField(), listed)
	}
}
