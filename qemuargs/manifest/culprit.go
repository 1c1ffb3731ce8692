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
	tree  any
	into  reflect.Type
	cause string
	tries int // how often the text is still decoded
}

func newCulprit(text []byte, into any, cause error) *culprit {
	c := &culprit{into: reflect.TypeOf(into).Elem(), cause: cause.Error(), tries: 1000}
	if json.Unmarshal(text, &c.tree) != nil {
		c.tree = nil
	}
	return c
}

// path is that of the value. It is empty where the text has the same error at two values, or
// too many values.
func (c *culprit) path() string { return c.below("", c.tree) }

// below returns the path of the value among the fields and elements of node, or the path of
// node.
func (c *culprit) below(path string, node any) string {
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			value := node[key]
			node[key] = nil
			guilty := c.isGone()
			node[key] = value
			if guilty {
				return c.below(join(path, key), value)
			}
		}
	case []any:
		for i, value := range node {
			node[i] = nil
			guilty := c.isGone()
			node[i] = value
			if guilty {
				return c.below(fmt.Sprintf("%s[%d]", path, i), value)
			}
		}
	}
	return path
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// isGone says whether the tree, as it is now, has another error or none.
func (c *culprit) isGone() bool {
	if c.tries--; c.tries < 0 {
		return false
	}
	text, err := json.Marshal(c.tree)
	if err != nil {
		return false
	}
	_, err = kjson.UnmarshalStrict(text, reflect.New(c.into).Interface())
	return err == nil || err.Error() != c.cause
}
