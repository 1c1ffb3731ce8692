package subresources

import (
	"encoding/json"
	"fmt"
	"regexp"

	"sigs.k8s.io/yaml"
)

// maxYAML bounds a body that is read as YAML, in bytes. The parsed tree takes three hundred times
// as much memory, before virt-api can check anything in it.
const maxYAML = 64 << 10

// asJSON returns a body as JSON, and an error if the body is neither JSON nor YAML.
//
// YAML with aliases is refused. The parser puts the whole value in place of each alias: 100 KiB of
// YAML become gigabytes.
func asJSON(text []byte) ([]byte, error) {
	if json.Valid(text) {
		return text, nil
	}
	if len(text) > maxYAML {
		return nil, fmt.Errorf("it is no JSON, and as YAML longer than %d bytes", maxYAML)
	}
	if name := aliased(text); name != "" {
		return nil, fmt.Errorf("it is no JSON, and as YAML it has the alias *%s: write its value there", name)
	}
	return yaml.YAMLToJSON(text)
}

// names of anchors and aliases, as the parser has them.
var (
	anchor = regexp.MustCompile(`&([0-9A-Za-z_-]+)`)
	alias  = regexp.MustCompile(`\*([0-9A-Za-z_-]+)`)
)

// aliased returns the name of an alias in a YAML text, or "". An alias needs an anchor of the same
// name. Two such words in a comment or a string look the same, and are taken for an alias.
func aliased(text []byte) string {
	anchors := map[string]bool{}
	for _, found := range anchor.FindAllSubmatch(text, -1) {
		anchors[string(found[1])] = true
	}
	if len(anchors) == 0 {
		return ""
	}
	for _, found := range alias.FindAllSubmatch(text, -1) {
		if anchors[string(found[1])] {
			return string(found[1])
		}
	}
	return ""
}
