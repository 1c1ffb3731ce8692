package resolve

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

// capture is the root of a QEMU 10.0, which LAUNCHER_QEMU=10.0 config/images/build.sh
// launcher makes with an OUTPUT of its own: cache/launcher-root in there.
var capture = flag.String("capture", "", "`root` of a QEMU "+capturedVersion+" that is asked for the schema that testdata holds")

const (
	capturedVersion = "10.0.13"
	capturedFile    = "testdata/schema-10.0.json"
)

// capturedSchema is as much of what a QEMU says of itself as the goldens need.
type capturedSchema struct {
	Version string                       `json:"version"`
	Types   map[string]schemaType        `json:"types"`
	Devices map[string]map[string]string `json:"devices"`
}

func captured(t *testing.T) program {
	t.Helper()
	p := program{path: *capture + "/usr/bin/qemu-system-x86_64", root: *capture}
	if p.ask(t); p.version != capturedVersion {
		t.Fatalf("%s is QEMU %s, not %s", p.path, p.version, capturedVersion)
	}
	return p
}

func (c *capturedSchema) device(driver string) map[string]string {
	if c.Devices[driver] == nil {
		c.Devices[driver] = map[string]string{"driver": "str", "id": "str", "bus": "str"}
	}
	return c.Devices[driver]
}

// write leaves out variants that nothing picked; of enums all values stay.
func (c *capturedSchema) write(t *testing.T) {
	t.Helper()
	c.Version = capturedVersion
	for name, s := range c.Types {
		s.Variants = slices.DeleteFunc(slices.Clone(s.Variants), func(v schemaVariant) bool {
			_, ok := c.Types[v.Type]
			return !ok
		})
		c.Types[name] = s
	}
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	// A line for each type and device, so that a change can be read.
	text := strings.NewReplacer(`},"`, "},\n\"", `"types":{`, "\"types\":{\n", `"devices":{`, "\"devices\":{\n").Replace(string(data))
	if err := os.WriteFile(capturedFile, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readCaptured(t *testing.T) *knowledge {
	t.Helper()
	data, err := os.ReadFile(capturedFile)
	var c capturedSchema
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil || c.Version != capturedVersion {
		t.Fatalf("%s, of QEMU %q: %v", capturedFile, c.Version, err)
	}
	return &knowledge{types: c.Types, devices: c.Devices}
}
