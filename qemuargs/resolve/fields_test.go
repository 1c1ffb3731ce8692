package resolve

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// fieldsHead is how the part of docs/arguments.md begins that lists the fields.
const fieldsHead = `## Every field

This table lists each field below ` + "`spec`" + ` of a VirtualMachineInstance, and the cases that show its arguments. A case leads to its command line. A field with
"no argument" shapes another part of the VM, such as its pod. A field with "refused" or "never" is refused by its path: with "refused"
until Kubeqemu has something else first, which the line names, and with "never" for good.

| field below ` + "`spec`" + ` | what becomes of it |
|---|---|
`

// whole are fields of Kubernetes that are listed as one.
var whole = []string{"accessCredentials", "affinity", "dnsConfig", "livenessProbe", "readinessProbe", "tolerations", "topologySpreadConstraints"}

// noArgument are the fields of what makes the Machine that make no argument of QEMU by themselves, and what they do.
var noArgument = map[string]string{
	"domain.clock.timer.hpet.tickPolicy":                              "only the default, delay, is accepted: QEMU has no other",
	"domain.cpu.isolateEmulatorThread":                                "the launcher gives QEMU's other threads a CPU of their own",
	"domain.devices.disks[].tag":                                      "the config drive tells the guest",
	"domain.devices.interfaces[].tag":                                 "the config drive tells the guest",
	"domain.memory.reservedOverhead.addedOverhead":                    "memory that the pod books beside the guest's",
	"domain.memory.reservedOverhead.memLock":                          "virt-handler raises QEMU's limit of locked memory",
	"networks[].pod.vmIPv6NetworkCIDR":                                "the private network of the guest in the pod",
	"domain.clock.timer.rtc.present":                                  "only true is accepted: QEMU's q35 always has one",
	"domain.devices.disableHotplug":                                   "no port for hotplug is kept; there is no hotplug yet",
	"domain.devices.disks[].cdrom.readonly":                           "a CD-ROM is read-only in any case",
	"domain.devices.logSerialConsole":                                 "the console's output goes to the pod's log, in a container of its own",
	"domain.devices.sound.name":                                       "names the device in the VMI",
	"domain.devices.watchdog.name":                                    "names the device in the VMI",
	"domain.devices.disks[].cdrom.tray":                               "only closed is accepted yet",
	"domain.devices.inputs[].type":                                    "a tablet; KubeVirt has no other",
	"domain.devices.interfaces[].dhcpOptions.bootFileName":            "what the pod's DHCP server says",
	"domain.devices.interfaces[].dhcpOptions.ntpServers":              "what the pod's DHCP server says",
	"domain.devices.interfaces[].dhcpOptions.privateOptions[].option": "what the pod's DHCP server says",
	"domain.devices.interfaces[].dhcpOptions.privateOptions[].value":  "what the pod's DHCP server says",
	"domain.devices.interfaces[].dhcpOptions.tftpServerName":          "what the pod's DHCP server says",
	"domain.devices.interfaces[].ports[].name":                        "names the port in the VMI",
	"domain.devices.interfaces[].ports[].port":                        "rules of the pod's NAT",
	"domain.devices.interfaces[].ports[].protocol":                    "rules of the pod's NAT",
	"domain.devices.inputs[].name":                                    "names the device in the VMI",
	"domain.resources.overcommitGuestOverhead":                        "the pod does not request the memory that it books beside the guest's",
	"networks[].name":                                                 "joins an interface with its network",
	"volumes[].name":                                                  "joins a disk with its volume",
}

// listed is a field of the schema, and what is said of it.
type listed struct{ path, said string }

// fields lists the leaves below a part of the schema.
func fields(of map[string]any, path string) (out []listed) {
	if why := refusal(of); why != "" {
		return []listed{{path, why}}
	}
	items, _ := of["items"].(map[string]any)
	properties, _ := of["properties"].(map[string]any)
	switch {
	case slices.Contains(whole, path) || properties == nil && (items == nil || items["properties"] == nil && refusal(items) == ""):
		text, _ := of["description"].(string)
		return []listed{{path, strings.Join(strings.Fields(text), " ")}}
	case properties == nil:
		return fields(items, path+"[]")
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		out = append(out, fields(properties[name].(map[string]any), strings.TrimPrefix(path+"."+name, "."))...)
	}
	return out
}

// refusal returns what is said of a field that is refused; empty of another field.
func refusal(of map[string]any) string {
	rules, _ := of["x-kubernetes-validations"].([]any)
	text, _ := of["description"].(string)
	for _, rule := range rules {
		switch message := rule.(map[string]any)["message"].(string); {
		case strings.HasPrefix(message, "not supported yet"):
			_, why, _ := strings.Cut(strings.Join(strings.Fields(text), " "), "not supported yet: ")
			return "refused: " + strings.TrimSuffix(why, ".")
		case strings.HasPrefix(message, "never supported"):
			_, why, _ := strings.Cut(strings.Join(strings.Fields(text), " "), "never supported: ")
			return "never: " + strings.TrimSuffix(why, ".")
		}
	}
	return ""
}

// becomes returns what becomes of a field, by the cases that show it.
func (f listed) becomes(t *testing.T, all []shown) string {
	t.Helper()
	var links []string
	for _, s := range all {
		if slices.ContainsFunc(s.fields, func(of string) bool { return shows(of, "spec."+f.path) }) {
			links = append(links, link(s))
		}
	}
	why, none := noArgument[f.path]
	machine := strings.HasPrefix(f.path, "domain.") || strings.HasPrefix(f.path, "volumes[]") || strings.HasPrefix(f.path, "networks[]")
	switch {
	case f.said == "refused: " || f.said == "never: ":
		t.Errorf("%s is refused, and nothing says why: its Go field needs the tag later or never, and a comment with the same words", f.path)
		return ""
	case strings.HasPrefix(f.said, "refused: ") || strings.HasPrefix(f.said, "never: "):
		return f.said
	case len(links) > 0 && none:
		t.Errorf("%s is listed as a field without an argument, and %s shows one", f.path, links)
		return ""
	case len(links) > 0:
		return strings.Join(links, ", ")
	case none:
		return "no argument: " + why
	case machine:
		t.Errorf("no case shows %s, and the field is not listed as one without an argument", f.path)
		return ""
	}
	return "no argument: " + firstSentence(f.said)
}

// shows reports whether a case of a field shows another: the same, one below it, or the map that it is a key of.
func shows(of, path string) bool {
	return of == path || strings.HasPrefix(path, of+".") || strings.HasPrefix(of, path+".")
}

func firstSentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(first, ".")
}

// fieldTable returns the part of the page that lists the fields.
func fieldTable(t *testing.T, all []shown) string {
	t.Helper()
	text, err := os.ReadFile("../../config/crd/kubevirt.io_virtualmachineinstances.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct {
						Properties map[string]map[string]any `json:"properties"`
					} `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &crd); err != nil || len(crd.Spec.Versions) == 0 {
		t.Fatalf("read the CRD: %v, %d versions", err, len(crd.Spec.Versions))
	}
	list := fields(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], "")
	if len(list) < 100 {
		t.Fatalf("the schema has %d fields", len(list))
	}
	var table strings.Builder
	table.WriteString(fieldsHead)
	for _, f := range list {
		fmt.Fprintf(&table, "| `%s` | %s |\n", f.path, f.becomes(t, all))
	}
	return table.String()
}
