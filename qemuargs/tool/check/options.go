package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// shorten keeps a name from outside short.
func shorten(s string) string {
	if len(s) > longest {
		return strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return s
}

// pair is one key=value of an option's value. A bare one has no "=".
type pair struct {
	key, value string
	bare       bool
}

// pairs splits "a=b,c=d,,e": a comma in a value is doubled (QEMU, util/qemu-option.c and util/keyval.c). A first part
// without "=" is the value of the implied key, where there is one.
func pairs(text, implied string) []pair {
	var all []pair
	for first := true; text != ""; first = false {
		end := strings.IndexAny(text, "=,")
		if first && implied != "" && (end < 0 || text[end] == ',') {
			var value string
			value, text = untilComma(text)
			all = append(all, pair{key: implied, value: value})
			continue
		}
		if end < 0 || text[end] == ',' {
			var key string
			key, text = untilComma(text)
			all = append(all, pair{key: key, bare: true})
			continue
		}
		p := pair{key: text[:end]}
		p.value, text = untilComma(text[end+1:])
		all = append(all, p)
	}
	return all
}

// untilComma returns the text before a single comma, with doubled commas made single, and the text after.
func untilComma(text string) (value, rest string) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == ',' {
			if i+1 == len(text) || text[i+1] != ',' {
				return b.String(), text[i+1:]
			}
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String(), ""
}

// word is a value out of key=value: a text that may stand for a number or a truth.
type word string

const deepest = 16 // levels of a value; QEMU's own have 6 at most

var errDeep = fmt.Errorf("it is nested deeper than %d levels", deepest)

// nested makes an object of pairs with dotted keys, such as file.driver=…, as QEMU's keyval does.
func nested(all []pair) (map[string]any, error) {
	root := map[string]any{}
	for _, p := range all {
		if p.bare {
			return nil, fmt.Errorf("%q has no value", shorten(p.key))
		}
		at, parts := root, strings.Split(p.key, ".")
		if len(parts) > deepest {
			return nil, errDeep
		}
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(map[string]any)
			if _, there := at[part]; there && !ok {
				return nil, fmt.Errorf("%q has a value, and parts too", shorten(part))
			}
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
		last := parts[len(parts)-1]
		if _, isObject := at[last].(map[string]any); isObject {
			return nil, fmt.Errorf("%q has a value, and parts too", shorten(p.key))
		}
		at[last] = word(p.value) // the last one counts
	}
	for key, value := range root {
		root[key] = lists(value)
	}
	return root, nil
}

// lists makes lists of the objects whose keys are numbers.
func lists(value any) any {
	object, ok := value.(map[string]any)
	if !ok {
		return value
	}
	list := make([]any, len(object))
	for key, element := range object {
		object[key] = lists(element)
		if n, err := strconv.Atoi(key); err == nil && n >= 0 && n < len(list) {
			list[n] = object[key]
		} else {
			ok = false
		}
	}
	for _, element := range list {
		ok = ok && element != nil
	}
	if ok && len(list) > 0 {
		return list
	}
	return object
}

var errMore = errors.New("something follows the object")

// object reads a value in JSON. A key that is there twice is an error, as it is for QEMU (qobject/json-parser.c).
func object(text string) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var o map[string]any
	if err := d.Decode(&o); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errMore
	}
	keys := json.NewDecoder(strings.NewReader(text))
	return o, once(keys)
}

// once complains of a key that comes twice in the next value, or in a value inside it. The value is known to be JSON.
func once(d *json.Decoder) error {
	open, err := d.Token()
	if err != nil {
		return err
	}
	if open != json.Delim('{') && open != json.Delim('[') {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if open == json.Delim('{') {
			token, err := d.Token()
			if err != nil {
				return err
			}
			key := fmt.Sprint(token)
			if seen[key] {
				return fmt.Errorf("%q is there twice", shorten(key))
			}
			seen[key] = true
		}
		if err := once(d); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end
	return err
}

// isJSON reports whether QEMU takes a value for JSON.
func isJSON(value string) bool { return strings.HasPrefix(value, "{") }
