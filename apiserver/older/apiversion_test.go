package older

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

const was, is = "kubevirt.io/v1", "kubevirt.io/v1alpha3"

// rewritten is a text with another version, in pieces of so many bytes.
func rewritten(t testing.TB, text, from, by string, piece int) string {
	t.Helper()
	var out strings.Builder
	to := &apiVersions{to: &out, from: from, by: by}
	for rest := []byte(text); len(rest) > 0; {
		n := min(piece, len(rest))
		if _, err := to.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
		if len(to.caught) > maxCaught+1 || len(to.out) > piece+maxCaught+len(by)+4 {
			t.Fatalf("it holds %d and %d bytes", len(to.caught), len(to.out))
		}
	}
	return out.String()
}

func TestAPIVersionsAreReplaced(t *testing.T) {
	long := strings.Repeat("x", 3*maxCaught)
	for name, c := range map[string]struct{ text, want string }{
		"an object":             {`{"kind":"VirtualMachine","apiVersion":"kubevirt.io/v1","metadata":{}}`, `{"kind":"VirtualMachine","apiVersion":"kubevirt.io/v1alpha3","metadata":{}}`},
		"spaces":                {" { \"apiVersion\" :\n\t\"kubevirt.io/v1\" } ", " { \"apiVersion\" :\n\t\"kubevirt.io/v1alpha3\" } "},
		"escapes":               {`{"\u0061piVersion":"kubevirt.io\/v1"}`, `{"\u0061piVersion":"kubevirt.io/v1alpha3"}`},
		"another version":       {`{"apiVersion":"kubevirt.io/v1beta7"}`, `{"apiVersion":"kubevirt.io/v1beta7"}`},
		"a longer one":          {`{"apiVersion":"kubevirt.io/v1` + long + `"}`, `{"apiVersion":"kubevirt.io/v1` + long + `"}`},
		"a long key":            {`{"` + long + `":1,"apiVersion":"kubevirt.io/v1"}`, `{"` + long + `":1,"apiVersion":"kubevirt.io/v1alpha3"}`},
		"an owner":              {`{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1"}]}}`, `{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1"}]}}`},
		"managed fields":        {`{"metadata":{"managedFields":[{"apiVersion":"kubevirt.io/v1"}]}}`, `{"metadata":{"managedFields":[{"apiVersion":"kubevirt.io/v1"}]}}`},
		"an annotation's text":  {`{"metadata":{"annotations":{"a":"{\"apiVersion\":\"kubevirt.io/v1\"}"}}}`, `{"metadata":{"annotations":{"a":"{\"apiVersion\":\"kubevirt.io/v1\"}"}}}`},
		"a value named alike":   {`{"a":"apiVersion","b":"kubevirt.io/v1","apiVersion":"kubevirt.io/v1"}`, `{"a":"apiVersion","b":"kubevirt.io/v1","apiVersion":"kubevirt.io/v1alpha3"}`},
		"twice":                 {`{"apiVersion":"kubevirt.io/v1","apiVersion":"kubevirt.io/v1"}`, `{"apiVersion":"kubevirt.io/v1alpha3","apiVersion":"kubevirt.io/v1alpha3"}`},
		"a list":                {`{"apiVersion":"kubevirt.io/v1","items":[{"apiVersion":"kubevirt.io/v1"},{"a":[{"apiVersion":"kubevirt.io/v1"}],"apiVersion":"kubevirt.io/v1"}]}`, `{"apiVersion":"kubevirt.io/v1alpha3","items":[{"apiVersion":"kubevirt.io/v1alpha3"},{"a":[{"apiVersion":"kubevirt.io/v1"}],"apiVersion":"kubevirt.io/v1alpha3"}]}`},
		"a table":               {`{"apiVersion":"meta.k8s.io/v1","rows":[{"cells":["kubevirt.io/v1"],"object":{"apiVersion":"kubevirt.io/v1"}}]}`, `{"apiVersion":"meta.k8s.io/v1","rows":[{"cells":["kubevirt.io/v1"],"object":{"apiVersion":"kubevirt.io/v1alpha3"}}]}`},
		"a table in an event":   {`{"object":{"apiVersion":"meta.k8s.io/v1","rows":[{"object":{"apiVersion":"kubevirt.io/v1"}}]}}`, `{"object":{"apiVersion":"meta.k8s.io/v1","rows":[{"object":{"apiVersion":"kubevirt.io/v1alpha3"}}]}}`},
		"events":                {`{"type":"ADDED","object":{"apiVersion":"kubevirt.io/v1"}}` + "\n" + `{"type":"BOOKMARK","object":{"apiVersion":"kubevirt.io/v1"}}`, `{"type":"ADDED","object":{"apiVersion":"kubevirt.io/v1alpha3"}}` + "\n" + `{"type":"BOOKMARK","object":{"apiVersion":"kubevirt.io/v1alpha3"}}`},
		"an error in a watch":   {`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1"}}`, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1"}}`},
		"deep":                  {strings.Repeat(`{"object":[`, 2000) + `{"apiVersion":"kubevirt.io/v1"}`, strings.Repeat(`{"object":[`, 2000) + `{"apiVersion":"kubevirt.io/v1"}`},
		"after something deep":  {`{"a":` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `,"apiVersion":"kubevirt.io/v1"}`, `{"a":` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `,"apiVersion":"kubevirt.io/v1alpha3"}`},
		"no object":             {`["apiVersion","kubevirt.io/v1"]`, `["apiVersion","kubevirt.io/v1"]`},
		"too many ends":         {`}}]{"apiVersion":"kubevirt.io/v1"}`, `}}]{"apiVersion":"kubevirt.io/v1alpha3"}`},
		"nothing but a string":  {`"kubevirt.io/v1"`, `"kubevirt.io/v1"`},
		"another kind of value": {`{"apiVersion":7,"items":"kubevirt.io/v1"}`, `{"apiVersion":7,"items":"kubevirt.io/v1"}`},
	} {
		for _, piece := range []int{1, 2, 3, 7, 1 << 20} {
			if got := rewritten(t, c.text, was, is, piece); got != c.want {
				t.Errorf("%s, in pieces of %d: %s, want %s", name, piece, got, c.want)
			}
		}
	}
}

// TestWriterErrorIsPassedOn: an error of the writer is the writer's.
func TestWriterErrorIsPassedOn(t *testing.T) {
	reader, writer := io.Pipe()
	reader.Close()
	_, err := io.Copy(&apiVersions{to: writer, from: was, by: is}, iotest.OneByteReader(strings.NewReader(`{"a":"b"}`)))
	if err == nil {
		t.Error("none")
	}
}

// oracle does with encoding/json what apiVersions does, to a value.
func oracle(value any, place string) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			at := place + "/" + key
			if text, ok := v[key].(string); ok && key == "apiVersion" && text == was && places[at] {
				v[key] = is
				continue
			}
			v[key] = oracle(v[key], at)
		}
	case []any:
		for i := range v {
			v[i] = oracle(v[i], place+"/[]")
		}
	}
	return value
}

func decoded(text string) (value any, err error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err = decoder.Decode(&value); err == nil && len(bytes.TrimSpace([]byte(text[decoder.InputOffset():]))) > 0 {
		err = fmt.Errorf("there is more")
	}
	return value, err
}

// check compares with the oracle, and brings the text back.
func check(t testing.TB, text string, piece int) {
	t.Helper()
	before, err := decoded(text)
	got := rewritten(t, text, was, is, piece)
	if err != nil {
		return // no more is promised than that it ends
	}
	after, err := decoded(got)
	if err != nil {
		t.Fatalf("%s became %s: %v", text, got, err)
	}
	if want := oracle(before, ""); !reflect.DeepEqual(after, want) {
		t.Fatalf("%s became %s", text, got)
	}
	if back := rewritten(t, got, is, was, piece); !strings.Contains(text, is) && !strings.Contains(text, `\`) && back != text {
		t.Fatalf("%s came back as %s", text, back)
	}
}

func FuzzAPIVersions(f *testing.F) {
	f.Add(`{"apiVersion":"kubevirt.io/v1","items":[{"apiVersion":"kubevirt.io/v1"}]}`, 1)
	f.Add(`{"object":{"rows":[{"object":{"apiVersion":"kubevirt.io\/v1"}}]}}`, 3)
	f.Add(`{"a":"\\\"","b":[{},[],{"c":"]"}]}`, 2)
	f.Fuzz(func(t *testing.T, text string, piece int) { check(t, text, max(piece&0xfff, 1)) })
}

// anyValue makes a value of words that mean something here.
func anyValue(random *rand.Rand, depth int) any {
	words := []string{"apiVersion", "items", "rows", "object", "kind", "spec", was, is, "v1", "", `"`, `\`, "{", "]", "é", "\x00", strings.Repeat("y", 150)}
	word := func() string { return words[random.IntN(len(words))] }
	if depth == 0 || random.IntN(4) == 0 {
		switch random.IntN(5) {
		case 0:
			return random.Int64()
		case 1:
			return nil
		case 2:
			return random.Float64() * 1e300
		}
		return word()
	}
	if random.IntN(3) == 0 {
		var list []any
		for range random.IntN(4) {
			list = append(list, anyValue(random, depth-1))
		}
		return list
	}
	object := map[string]any{}
	for range random.IntN(4) {
		object[word()] = anyValue(random, depth-1)
	}
	if random.IntN(2) == 0 {
		object["apiVersion"] = was
	}
	return object
}

// TestRoundTripLosesNothing: 100,000 objects go to an older version and back, and lose nothing.
func TestRoundTripLosesNothing(t *testing.T) { roundTrips(t, 10_000) }

func roundTrips(t *testing.T, count int) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	changed := 0
	for range count {
		text, err := json.Marshal(anyValue(random, 4))
		if err != nil {
			t.Fatal(err)
		}
		check(t, string(text), 1+random.IntN(40))
		if rewritten(t, string(text), was, is, 1<<20) != string(text) {
			changed++
		}
	}
	if changed < count/10 {
		t.Errorf("only %d had a version", changed)
	}
}
