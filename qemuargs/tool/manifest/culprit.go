package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	kjson "sigs.k8s.io/json"
)

// culprit looks for the value because of which a text cannot be decoded. Types that decode
// themselves, such as resource.Quantity, do not say their path.
type culprit struct {
	tree   any
	into   reflect.Type
	cause  string
	budget int // how many bytes are still decoded
}

// maxDecoded bounds how many bytes are decoded to find a culprit: some seconds' work.
const maxDecoded = 64 << 20

func newCulprit(text []byte, into any, cause error) *culprit {
	c := &culprit{into: reflect.TypeOf(into).Elem(), cause: cause.Error(), budget: maxDecoded}
	if json.Unmarshal(text, &c.tree) != nil {
		c.tree = nil
	}
	return c
}

// path returns the path of the value that cannot be decoded. It is empty where the text has the same error at two
// values. It is a path above the value's where the budget was too small.
func (c *culprit) path() string { return c.below("", c.tree) }

// below returns the path of the value among the fields and elements of node, or the path of
// node.
func (c *culprit) below(path string, node any) string {
	switch node := node.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(node))
		if n, ok := c.among(len(keys), func(i int) any { return node[keys[i]] }, func(i int, value any) { node[keys[i]] = value }); ok {
			return c.below(join(path, keys[n]), node[keys[n]])
		}
	case []any:
		if n, ok := c.among(len(node), func(i int) any { return node[i] }, func(i int, value any) { node[i] = value }); ok {
			return c.below(fmt.Sprintf("%s[%d]", path, n), node[n])
		}
	}
	return path
}

// among returns which of n values is or has the culprit. It takes away one half of the values
// after the other, so that a long list is decoded a few times only.
func (c *culprit) among(n int, value func(i int) any, set func(i int, value any)) (int, bool) {
	without := func(first, end int) bool {
		kept := make([]any, 0, end-first)
		for i := first; i < end; i++ {
			kept = append(kept, value(i))
			set(i, nil)
		}
		gone := c.isGone()
		for i := first; i < end; i++ {
			set(i, kept[i-first])
		}
		return gone
	}
	first, end := 0, n
	if n == 0 || !without(first, end) {
		return 0, false
	}
	for end-first > 1 {
		switch middle := (first + end) / 2; {
		case without(first, middle):
			end = middle
		case without(middle, end):
			first = middle
		default:
			return 0, false // the budget is spent, or both halves have the same error
		}
	}
	return first, true
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// isGone reports whether the tree, as it is now, has another error or none.
func (c *culprit) isGone() bool {
	text, err := json.Marshal(c.tree)
	if err != nil {
		return false
	}
	if c.budget -= len(text); c.budget < 0 {
		return false
	}
	_, err = kjson.UnmarshalStrict(text, reflect.New(c.into).Interface())
	return err == nil || err.Error() != c.cause
}
