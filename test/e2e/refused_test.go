package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// changed is a tiny VMI with a JSON merge patch (RFC 7386), written as YAML,
// applied to its spec.
func changed(t *testing.T, name, patch string) []byte {
	t.Helper()
	base, err := json.Marshal(tiny(name))
	if err != nil {
		t.Fatal(err)
	}
	change, err := yaml.YAMLToJSON([]byte("{metadata: {labels: {app: refused}}, spec: {" + patch + "}}"))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	object, err := jsonpatch.MergePatch(base, change)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return object
}

// TestRefused: what is wrong is said when it is applied, with the path of each
// thing that is wrong; nothing is kept, and no component minds.
func TestRefused(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	const (
		disks      = "spec.domain.devices.disks"
		interfaces = "spec.domain.devices.interfaces"
		root       = "{name: root, containerDisk: {image: x:1}}"
	)
	many := strings.Repeat("{name: x, disk: {}},", 500)
	cases := map[string]struct {
		patch string
		paths []string
	}{
		"memory-exponent":    {`domain: {memory: {guest: "1e9"}}`, []string{"spec.domain.memory.guest"}},
		"memory-garbage":     {`domain: {memory: {guest: lots}}`, []string{"spec.domain.memory.guest"}},
		"no-memory":          {`domain: {memory: null}`, []string{"spec.domain.memory"}},
		"vcpus-10000":        {`domain: {cpu: {cores: 10000}}`, []string{"spec.domain.cpu.cores"}},
		"no-vcpu":            {`domain: {cpu: {sockets: 0}}`, []string{"spec.domain.cpu.sockets"}},
		"vcpus-negative":     {`domain: {cpu: {threads: -1}}`, []string{"spec.domain.cpu.threads"}},
		"cpu-model-options":  {`domain: {cpu: {model: "max,+vmx"}}`, []string{"spec.domain.cpu.model"}},
		"cpu-feature":        {`domain: {cpu: {features: [{name: "aes,hv-passthrough"}]}}`, []string{"spec.domain.cpu.features[0].name"}},
		"machine-pc":         {`domain: {machine: {type: pc}}`, []string{"spec.domain.machine.type"}},
		"machine-options":    {`domain: {machine: {type: "q35,smm=on"}}`, []string{"spec.domain.machine.type"}},
		"uuid":               {`domain: {firmware: {uuid: "1"}}`, []string{"spec.domain.firmware.uuid"}},
		"serial-with-comma":  {`domain: {firmware: {serial: "a,b"}}`, []string{"spec.domain.firmware.serial"}},
		"efi-and-bios":       {`domain: {firmware: {bootloader: {efi: {secureBoot: false}, bios: {}}}}`, []string{"spec.domain.firmware.bootloader"}},
		"efi-without-smm":    {`domain: {firmware: {bootloader: {efi: {}}}}`, []string{"spec.domain.firmware.bootloader.efi.secureBoot", "spec.domain.features.smm.enabled"}},
		"efi-without-acpi":   {`domain: {features: {acpi: {enabled: false}}, firmware: {bootloader: {efi: {secureBoot: false}}}}`, []string{"spec.domain.features.acpi.enabled"}},
		"long-kernel-args":   {`domain: {firmware: {kernelBoot: {kernelArgs: "` + strings.Repeat("x", 3000) + `"}}}`, []string{"spec.domain.firmware.kernelBoot.kernelArgs"}},
		"timezone":           {`domain: {clock: {timezone: ../etc/passwd}}`, []string{"spec.domain.clock.timezone"}},
		"clock-offset":       {`domain: {clock: {utc: {offsetSeconds: 10000000000}}}`, []string{"spec.domain.clock.utc.offsetSeconds"}},
		"hyperv-need":        {`domain: {features: {hyperv: {synic: {}, vpindex: {enabled: false}}}}`, []string{"spec.domain.features.hyperv.vpindex.enabled"}},
		"hyperv-twice":       {`domain: {features: {hyperv: {relaxed: {}}, hypervPassthrough: {}}}`, []string{"spec.domain.features.hypervPassthrough"}},
		"disks-500":          {`domain: {devices: {disks: [` + many + `]}}`, []string{disks}},
		"two-disks-of-name":  {`domain: {devices: {disks: [{name: root}, {name: root}]}}`, []string{disks}},
		"disk-and-cdrom":     {`domain: {devices: {disks: [{name: root, disk: {}, cdrom: {}}]}}`, []string{disks + "[0]"}},
		"lun":                {`domain: {devices: {disks: [{name: root, lun: {}}]}}`, []string{disks + "[0].lun"}},
		"bus-ide":            {`domain: {devices: {disks: [{name: root, disk: {bus: ide}}]}}`, []string{disks + "[0].disk.bus"}},
		"boot-order-0":       {`domain: {devices: {disks: [{name: root, bootOrder: 0}]}}`, []string{disks + "[0].bootOrder"}},
		"disk-name":          {`domain: {devices: {disks: [{name: "root,readonly=on"}]}}`, []string{disks + "[0].name"}},
		"two-bindings":       {`domain: {devices: {interfaces: [{name: default, masquerade: {}, bridge: {}}]}}`, []string{interfaces + "[0]"}},
		"no-binding":         {`domain: {devices: {interfaces: [{name: default}]}}`, []string{interfaces + ": "}},
		"sriov":              {`domain: {devices: {interfaces: [{name: default, sriov: {}}]}}`, []string{interfaces + "[0].sriov"}},
		"short-mac":          {`domain: {devices: {interfaces: [{name: default, masquerade: {}, macAddress: "52:54:00"}]}}`, []string{interfaces + "[0].macAddress"}},
		"port-65536":         {`domain: {devices: {interfaces: [{name: default, masquerade: {}, ports: [{port: 65536}]}]}}`, []string{interfaces + "[0].ports[0].port"}},
		"model":              {`domain: {devices: {interfaces: [{name: default, masquerade: {}, model: ne2k_isa}]}}`, []string{interfaces + "[0].model"}},
		"public-dhcp-option": {`domain: {devices: {interfaces: [{name: default, masquerade: {}, dhcpOptions: {privateOptions: [{option: 3, value: x}]}}]}}`, []string{interfaces + "[0].dhcpOptions.privateOptions[0].option"}},
		"multus-name":        {`networks: [{name: default, multus: {networkName: "lan@eth0"}}]`, []string{"spec.networks[0].multus.networkName"}},
		"multus-masquerade":  {`networks: [{name: default, multus: {networkName: lan}}]`, []string{interfaces + "[0].masquerade"}},
		"resource-claim":     {`networks: [{name: default, resourceClaim: {}}]`, []string{"spec.networks[0].resourceClaim"}},
		"no-source":          {`volumes: [{name: root}]`, []string{"spec.volumes[0]"}},
		"two-sources":        {`volumes: [{name: root, containerDisk: {image: x:1}, emptyDisk: {capacity: 1Gi}}]`, []string{"spec.volumes[0]"}},
		"hotpluggable-data":  {`volumes: [{name: root, dataVolume: {name: data, hotpluggable: true}}]`, []string{"spec.volumes[0].dataVolume.hotpluggable"}},
		"hotpluggable-claim": {`volumes: [{name: root, persistentVolumeClaim: {claimName: data, hotpluggable: true}}]`, []string{"spec.volumes[0].persistentVolumeClaim.hotpluggable"}},
		"host-disk-relative": {`volumes: [{name: root, hostDisk: {path: etc/passwd, type: Disk}}]`, []string{"spec.volumes[0].hostDisk.path"}},
		"host-disk-type":     {`volumes: [{name: root, hostDisk: {path: /vms/a.img, type: Folder}}]`, []string{"spec.volumes[0].hostDisk.type"}},
		"claim-without-name": {`volumes: [{name: root, persistentVolumeClaim: {claimName: ""}}]`, []string{"spec.volumes[0].persistentVolumeClaim.claimName"}},
		"capacity-exponent":  {`volumes: [{name: root, emptyDisk: {capacity: "1e-999999999"}}]`, []string{"spec.volumes[0].emptyDisk.capacity"}},
		"cloud-init-1-MB":    {`volumes: [` + root + `, {name: seed, cloudInitNoCloud: {userData: "` + strings.Repeat("x", 1<<20) + `"}}]`, []string{"spec.volumes[1].cloudInitNoCloud.userData"}},
		"metrics":            {`domain: {devices: {downwardMetrics: {}}}`, []string{"spec.domain.devices.downwardMetrics"}},
		"gpus":               {`domain: {devices: {gpus: [{name: a, deviceName: b}]}}`, []string{"spec.domain.devices.gpus"}},
		"hugepages":          {`domain: {memory: {hugepages: {pageSize: 64Ki}}}`, []string{"spec.domain.memory.hugepages.pageSize"}},
		"dedicated-cpus":     {`domain: {cpu: {isolateEmulatorThread: true}}`, []string{"spec.domain.cpu.isolateEmulatorThread"}},
		"numa":               {`domain: {cpu: {numa: {guestMappingPassthrough: {}}}}`, []string{"spec.domain.cpu.numa.guestMappingPassthrough"}},
		"realtime":           {`domain: {cpu: {realtime: {}}}`, []string{"spec.domain.cpu.dedicatedCpuPlacement"}},
		"hugepages-resource": {`domain: {resources: {limits: {hugepages-2Mi: 2Mi}}}`, []string{"spec.domain.resources.limits[hugepages-2Mi]"}},
		"eviction":           {`evictionStrategy: Evict`, []string{"spec.evictionStrategy"}},
		"probe":              {`livenessProbe: {tcpSocket: {port: 80}, guestAgentPing: {}}`, []string{"spec.livenessProbe"}},
		"start-strategy":     {`startStrategy: Later`, []string{"spec.startStrategy"}},
		"hostname":           {`hostname: Not_A_Label`, []string{"spec.hostname"}},
		"grace":              {`terminationGracePeriodSeconds: -1`, []string{"spec.terminationGracePeriodSeconds"}},
		"s390x":              {`architecture: s390x`, []string{"spec.architecture"}},
		"three-at-once": {`architecture: s390x, hostname: UP, domain: {machine: {type: pc}}`,
			[]string{"spec.architecture", "spec.hostname", "spec.domain.machine.type"}},
	}
	var all []string
	for name, c := range cases {
		all = append(all, string(changed(t, name, c.patch)))
	}
	_, err := output(strings.Join(all, "\n---\n"), "kubectl", "-n", ns, "apply", "--server-side", "-f", "-")
	if err == nil {
		t.Fatal("all were accepted")
	}
	// One message an object, each of one or more lines.
	messages := map[string]string{}
	name := ""
	named := regexp.MustCompile(`VirtualMachineInstance(?:\.kubevirt\.io)? "([^"]+)" is invalid|failed to create typed patch object \([^/]*/([^;]+);`)
	for line := range strings.Lines(err.Error()) {
		if m := named.FindStringSubmatch(line); m != nil {
			name = m[1] + m[2]
		}
		messages[name] += line
	}
	for name, c := range cases {
		for _, path := range c.paths {
			if text := messages[name]; !strings.Contains(text, path) && !strings.Contains(text, strings.TrimPrefix(path, "spec")) {
				t.Errorf("%s: %.300q, want an error that names %s", name, text, path)
			}
		}
	}
	if left := kubectl(t, "-n", ns, "get", "vmi", "-o", "name"); left != "" {
		t.Errorf("of what is refused, this is there: %s", left)
	}
	refusesBytes(t, ns)
}

// refusesBytes posts what kubectl itself would not send: text that is no UTF-8.
func refusesBytes(t *testing.T, ns string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "vmi.json")
	text := strings.Replace(string(changed(t, "bytes", `hostname: HOST`)), "HOST", "\xff\xfe", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := output("", "kubectl", "create", "--raw", "/apis/kubevirt.io/v1/namespaces/"+ns+"/virtualmachineinstances", "-f", file)
	if err == nil || !strings.Contains(err.Error(), "spec.hostname") {
		t.Errorf("a host name that is no UTF-8: %v, want an error that names spec.hostname", err)
	}
}

// beyondSchema are VMIs that the schema lets pass, with what is wrong with each.
var beyondSchema = map[string]struct {
	patch string
	paths []string
}{
	"memory-0":         {`domain: {memory: {guest: "0"}}`, []string{"spec.domain.memory.guest"}},
	"memory-1-ei":      {`domain: {memory: {guest: 1Ei}}`, []string{"spec.domain.memory.guest"}},
	"request-too-much": {`domain: {resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}}`, []string{"spec.domain.resources.requests[memory]"}},
	"vcpus-134217728":  {`domain: {cpu: {cores: 512, sockets: 512, threads: 512}}`, []string{"spec.domain.cpu"}},
	"bad-base64":       {`volumes: [{name: root, cloudInitNoCloud: {userDataBase64: "%%%"}}]`, []string{"spec.volumes[0].cloudInitNoCloud.userDataBase64"}},
	"many": {`domain: {memory: {guest: "1"}, devices: {disks: [{name: none}, {name: root, disk: {bus: sata, readonly: true}}], interfaces: [{name: other, masquerade: {}, macAddress: "01:00:5e:00:00:01"}]}}`,
		[]string{"spec.domain.memory.guest", "spec.domain.devices.disks[0].name", "spec.domain.devices.disks[1].disk.readonly",
			"spec.domain.devices.interfaces[0].name", "spec.domain.devices.interfaces[0].macAddress", "spec.networks[0].name"}},
}

// past grants virt-controller, which virt-api is not asked about, to make VMIs
// in a namespace, and returns kubectl's argument for being it.
func past(t *testing.T, namespace string) string {
	t.Helper()
	kubectl(t, "-n", namespace, "create", "role", "past", "--verb=create,get", "--resource=virtualmachineinstances.kubevirt.io")
	kubectl(t, "-n", namespace, "create", "rolebinding", "past", "--role=past", "--serviceaccount=kubevirt:virt-controller")
	may(t, namespace, asController, "create", "virtualmachineinstances.kubevirt.io")
	return asController
}

// TestControllerRefuses: what the schema lets pass, and virt-api was not asked
// about, the controller refuses, all at once.
func TestControllerRefuses(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	as := past(t, ns)
	var all []string
	for name, c := range beyondSchema {
		all = append(all, string(changed(t, name, c.patch)))
	}
	if _, err := output(strings.Join(all, "\n---\n"), "kubectl", "-n", ns, "create", "-f", "-", as); err != nil {
		t.Fatal(err)
	}
	for name, c := range beyondSchema {
		v := vmi{t: t, namespace: ns, name: name}
		status := v.await(v1.Failed).Status
		message := ""
		if s := status.Condition(v1.ConditionSynchronized); s != nil {
			message = s.Message
		}
		for _, path := range c.paths {
			if status.Reason != "InvalidSpec" || !strings.Contains(message, path+":") {
				t.Errorf("%s: %s: %s, want InvalidSpec and %s in it", name, status.Reason, fmt.Sprintf("%.500q", message), path)
			}
		}
	}
}
