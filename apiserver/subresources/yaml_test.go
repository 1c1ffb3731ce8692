package subresources

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestYAMLBodyBecomesJSON(t *testing.T) {
	for name, c := range map[string]struct{ text, want, refused string }{
		"JSON":                     {` {"a": 1}`, ` {"a": 1}`, ""},
		"JSON with words":          {`{"a": "&x", "b": "*x"}`, `{"a": "&x", "b": "*x"}`, ""},
		"YAML":                     {"a: 1\nb: [c]\n", `{"a":1,"b":["c"]}`, ""},
		"an anchor":                {"a: &x 1\n", `{"a":1}`, ""},
		"a pattern":                {"a: rm *.txt & ls\n", `{"a":"rm *.txt \u0026 ls"}`, ""},
		"an alias":                 {"a: &x 1\nb: *x\n", "", "alias *x"},
		"in a list":                {"a: &x 1\nb: [*x,*x]\n", "", "alias *x"},
		"a merge":                  {"a: &x {c: 1}\nb: {<<: *x}\n", "", "alias *x"},
		"with a tag":               {"a: !!str &x-1 y\nb: *x-1\n", "", "alias *x-1"},
		"as a key":                 {"a: &x y\n? *x\n: 1\n", "", "alias *x"},
		"an alias without anchor":  {"a: *x\n", "", "unknown anchor"},
		"long":                     {"a: " + strings.Repeat("x", maxYAML), "", "longer than"},
		"neither":                  {"{", "", "yaml"},
		"an anchor of other words": {"a: &\u00e9 1\nb: *\u00e9\n", "", "alphabetic"},
	} {
		got, err := asJSON([]byte(c.text))
		if string(got) != c.want || (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

// TestYAMLBodyTakesLittleMemory: no body of YAML takes much memory.
func TestYAMLBodyTakesLittleMemory(t *testing.T) {
	bomb := "a: &a " + strings.Repeat("x", maxYAML/2) + "\nb: [" + strings.Repeat("*a,", maxYAML/8) + "]\n"
	for name, text := range map[string]string{
		"aliases": bomb, "maps": "[" + strings.Repeat("{a},", maxYAML/4-2) + "]", "lists": "[" + strings.Repeat("[],", maxYAML/3-2) + "]",
		"deep": strings.Repeat("[", 9000) + strings.Repeat("]", 9000), "keys": keys(maxYAML - 100),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := asJSON([]byte(text))
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: %d KiB of YAML took %d MiB (%v)", name, len(text)>>10, took>>20, err)
		}
	}
}

func keys(most int) string {
	var b strings.Builder
	for i := 0; b.Len() < most; i++ {
		fmt.Fprintf(&b, "k%d:\n", i)
	}
	return b.String()
}

// FuzzAliased: what is not refused has no alias that the parser would follow.
func FuzzAliased(f *testing.F) {
	f.Add("a: &x 1\nb: *x\n")
	f.Add("- &a [1]\n- {<<: *a}\n")
	f.Fuzz(func(t *testing.T, text string) {
		if aliased([]byte(text)) != "" || len(text) > 4096 {
			return
		}
		out, err := yaml.YAMLToJSON([]byte(text))
		if err == nil && len(out) > 16*len(text)+64 {
			t.Errorf("%d bytes become %d", len(text), len(out))
		}
	})
}
