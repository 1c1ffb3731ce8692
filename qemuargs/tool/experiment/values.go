package experiment

import (
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// valid are values that a field can have, by the field's own name, or by its own and its list's. What is not here is changed by its form.
var valid = map[string][]any{
	"accelerator": {"kvm", "tcg"}, "qemuVersion": {"7.2.22", "8.2.0", "10.1.0", "11.1.3"}, "format": {"raw", "qcow2"},
	"bus": {"virtio", "sata", "scsi", "usb"}, "cache": {"none", "writethrough", "writeback"},
	"io": {"native", "threads"}, "errorPolicy": {"stop", "ignore", "report", "enospace"}, "ioThreadsPolicy": {"shared", "auto"},
	"model":  {"virtio", "e1000", "e1000e", "Haswell", "host-model", "host-passthrough", "isa", "pvpanic", "hyperv", "ich9", "ac97"},
	"type":   {"q35", "pc-q35-6.2", "pc-q35-7.2", "virt-7.2", "virt-6.2", "vga", "virtio", "bochs", "ramfb"},
	"action": {"reset", "poweroff", "shutdown"}, "policy": {"require", "disable"}, "rebootPolicy": {"Reboot", "Terminate"},
	"tickPolicy": {"delay", "discard", "catchup"}, "track": {"guest", "wall"}, "timezone": {"America/New_York"},
	"pageSize": {"2Mi", "1Gi"}, "guest": {"64Mi", "256Mi", "4Gi", "8Gi"}, "maxGuest": {"2Gi", "8Gi"}, "cpu": {"1", "3"},
	"features.name": {"smap", "rdseed"}, "bootOrder": {3.0}, "serial": {"SN-1"}, "macAddress": {"52:54:00:00:00:77"}, "supplementalPoolThreadCount": {2.0, 3.0},
	"logical": {512.0, 4096.0}, "physical": {4096.0}, "zoneOffset": {3600.0}, "offsetSeconds": {3600.0},
	"manufacturer": {"Other"}, "product": {"Other"}, "family": {"Other"}, "tscFrequency": {2.5e9}, "firmwareDir": {"/other"}, "acpiIndex": {7.0},
}

// The forms of values that are not free text, and another value of each form.
var forms = []struct {
	form  *regexp.Regexp
	other string
}{
	{regexp.MustCompile(`^([0-9a-f]{2}:){5}[0-9a-f]{2}$`), "0a:58:0a:f4:00:99"},
	{regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`), "5d307ca9-b3ef-428c-8861-06e72d69f223"},
	{regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:1f\.[0-7]$`), "0000:00:1d.0"},
	{regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`), "0000:05:00.0"},
}

// Others returns what the field at a path can be changed to, by its name and its value, which is nil where it is not
// set. nil among them takes the field away.
func Others(path string, value any) []any {
	var out []any
	for _, other := range slices.Concat(valid[lastKey(path)], valid[lastKeys(path)]) {
		if other != value {
			out = append(out, other)
		}
	}
	switch v := value.(type) {
	case nil:
		return out
	case bool:
		return append(out, nil, !v)
	case float64:
		return append(out, nil, v+1, 2*v)
	case string:
		return append(append(out, nil), otherTexts(v)...)
	}
	return append(out, nil)
}

func otherTexts(text string) []any {
	for _, f := range forms {
		if f.form.MatchString(text) {
			return []any{f.other}
		}
	}
	out := []any{text + "x"}
	if quantity, err := resource.ParseQuantity(text); err == nil {
		out = append(out, twice(quantity))
	}
	return out
}

func twice(q resource.Quantity) string {
	sum := q.DeepCopy()
	sum.Add(q)
	return sum.String()
}
