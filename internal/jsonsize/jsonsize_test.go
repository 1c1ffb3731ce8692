package jsonsize

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestNamesAndValues: of well-formed texts each is counted once.
func TestNamesAndValues(t *testing.T) {
	for text, want := range map[string]struct{ values, all int }{
		`1`: {1, 1}, `[]`: {2, 2}, `{"a":1}`: {2, 3}, `{"a":{},"b":[1,2,3]}`: {7, 9}, `",:{[\","`: {1, 1}, `"\\",1`: {2, 2},
		strings.Repeat(`{},`, 100): {201, 201},
	} {
		if values, all := Values([]byte(text)), NamesAndValues([]byte(text)); values != want.values || all != want.all {
			t.Errorf("%.20s: %d values, %d with names, want %+v", text, values, all, want)
		}
	}
}

// FuzzValues: no JSON text has more values than are counted, and counting takes any
// text and allocates nothing.
func FuzzValues(f *testing.F) {
	for _, s := range []string{"", "0", `{}`, `[]`, `[[],{},[{}]]`, `{"a":1,"b":[1,2,3],"c":{"d":null}}`, `"a,b,{[\"\\"`, `{"\"":"\\","{":"["}`, "\\", "\"\\", `[1,2`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		counted, withNames := Values(data), NamesAndValues(data)
		if !json.Valid(data) {
			return
		}
		values, names := 0, 0
		d := json.NewDecoder(bytes.NewReader(data))
		// Of an object keys are tokens too: each has a value, which is counted once.
		var depth []json.Delim
		keys := []int{}
		for {
			token, err := d.Token()
			if err != nil {
				break
			}
			delim, is := token.(json.Delim)
			if is && (delim == '}' || delim == ']') {
				depth, keys = depth[:len(depth)-1], keys[:len(keys)-1]
				continue
			}
			key := false
			if n := len(depth); n > 0 && depth[n-1] == '{' {
				key = keys[n-1]%2 == 0
				keys[n-1]++
			}
			if key {
				names++
			} else {
				values++
			}
			if is {
				depth, keys = append(depth, delim), append(keys, 0)
			}
		}
		if counted < values || withNames < values+names {
			t.Fatalf("%d values and %d names in %q, counted %d, and %d with names", values, names, data, counted, withNames)
		}
	})
}
