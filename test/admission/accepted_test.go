package admission

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// warned returns a client of a user, and what the API server warns the user of.
func (s *testServer) warned() (client.Client, *warnings) {
	heard := &warnings{}
	config := rest.CopyConfig(s.config)
	config.WarningHandler = heard
	return s.client(config), heard
}

// accepted are VMIs of other people's that are taken, with what the API server warns of.
var accepted = map[string]struct {
	patch string
	warns []string
}{
	"plain":         {"hostname: plain", nil},
	"rhel-machine":  {"domain: {machine: {type: pc-q35-rhel9.6.0}}", []string{"spec.domain.machine.type: pc-q35-rhel9.6.0 runs as pc-q35-9.1"}},
	"old-rhel":      {"domain: {machine: {type: pc-q35-rhel8.2.0}}", []string{"spec.domain.machine.type: pc-q35-rhel8.2.0 runs as pc-q35-5.2"}},
	"old-machine":   {"domain: {machine: {type: pc-q35-4.2}}", []string{"spec.domain.machine.type: pc-q35-4.2 runs as pc-q35-5.2"}},
	"device-plugin": {`domain: {resources: {requests: {devices.kubevirt.io/kvm: "1"}}}`, []string{"spec.domain.resources.requests[devices.kubevirt.io/kvm] has no effect: the launcher pod asks for the devices that it needs"}},
	"writable-cdrom": {"domain: {devices: {disks: [{name: root, cdrom: {bus: sata, readonly: false}}]}}",
		[]string{"spec.domain.devices.disks[0].cdrom.readonly has no effect: a CD-ROM is always read-only"}},
	"broken-base64": {`volumes: [{name: root, cloudInitNoCloud: {userDataBase64: "` + strings.Repeat(`eHh4\n`, 680) + `"}}]`, nil},
	"exa":           {"domain: {resources: {requests: {memory: 128Mi}, limits: {memory: 1Ei}}}", nil},
	"exa-guest":     {"domain: {memory: {guest: 1Ei}}", nil},
	"leading-zeros": {"networks: [{name: default, pod: {vmNetworkCIDR: 10.10.010.0/24}}]", nil},
	"extended":      {`domain: {resources: {requests: {example.com/fpga: "1"}, limits: {example.com/fpga: "1"}}}`, nil},
}

// takesOthers: what other people's manifests have is taken, and what of it is done otherwise is said, of a VMI and of a VM's template.
func (s *testServer) takesOthers(t *testing.T) {
	for name, c := range accepted {
		for kind, object := range map[string]client.Object{"VirtualMachineInstance": changedObject(t, name, c.patch), "VirtualMachine": machineOf(changedObject(t, name, c.patch))} {
			as, heard := s.warned()
			if err := as.Create(t.Context(), object, client.DryRunAll); err != nil {
				t.Errorf("%s, %s: %v", kind, name, err)
				continue
			}
			var want []string
			for _, w := range c.warns {
				if kind == "VirtualMachine" {
					w = strings.Replace(w, "spec.", "spec.template.spec.", 1)
				}
				want = append(want, w)
			}
			if got := heard.next(); got != strings.Join(want, "\n") {
				t.Errorf("%s, %s: the API server warns %q, want %q", kind, name, got, want)
			}
		}
	}
}

// warnedTemplates are templates that the API server takes with a warning, and that warning. No guest of such a template runs as it says. The warning of
// cloud-init goes on with the words of a library.
var warnedTemplates = map[string]struct{ patch, warns string }{
	"time-zone":  {"domain: {clock: {timezone: Mars/Olympus}}", `domain.clock.timezone: there is no time zone "Mars/Olympus": no guest with it starts`},
	"cpu-model":  {"domain: {cpu: {model: Pentium9}}", "domain.cpu.model: QEMU has no CPU model Pentium9, so no node takes the guest"},
	"cloud-init": {`volumes: [{name: root, cloudInitNoCloud: {userData: "#cloud-config\nusers: [a\n"}}]`, "volumes[0].cloudInitNoCloud.userData is no YAML, and cloud-init does not read it: "},
	"host-disk": {"volumes: [{name: root, hostDisk: {path: /etc/passwd.img, type: Disk}}]",
		"volumes[0].hostDisk.path: Forbidden: lies below no folder that the cluster's configuration permits (hostDisk.folders in the KubeVirt object's configuration)"},
}

// warnsOfTemplates: a VM that will not run as its template says is taken, and whoever applies it is told.
func (s *testServer) warnsOfTemplates(t *testing.T) {
	for name, c := range warnedTemplates {
		as, heard := s.warned()
		if err := as.Create(t.Context(), machineOf(changedObject(t, name, c.patch)), client.DryRunAll); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, want := heard.next(), "spec.template.spec."+c.warns
		if got != want && (name != "cloud-init" || !strings.HasPrefix(got, want) || strings.Contains(got, "\n")) {
			t.Errorf("%s: the API server warns %q, want %q", name, got, want)
		}
	}
}

// takesOthersKubeVirt: a KubeVirt of OpenShift's, or of KubeVirt's own examples, is taken.
func (s *testServer) takesOthersKubeVirt(t *testing.T) {
	for spec, want := range map[string]string{
		"{configuration: {machineType: pc-q35-rhel9.6.0, emulatedMachines: [pc-q35-rhel*]}}":                           "spec.configuration.machineType: pc-q35-rhel9.6.0 runs as pc-q35-9.1",
		"{configuration: {architectureConfiguration: {amd64: {emulatedMachines: ['q35*', 'pc-q35*', 'pc-i440fx*']}}}}": "",
		"{configuration: {migrations: {completionTimeoutPerGiB: 123456789, progressTimeout: 123456789}}}":              "",
		"{infra: {replicas: 2}}": "spec.infra has no effect: ",
	} {
		patch, err := yaml.YAMLToJSON([]byte("{spec: " + spec + "}"))
		if err != nil {
			t.Fatal(err)
		}
		as, heard := s.warned()
		err = as.Patch(t.Context(), &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}, client.RawPatch(types.MergePatchType, patch), client.DryRunAll)
		if got := heard.next(); err != nil || !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %v, the API server warns %q, want %q", spec, err, got, want)
		}
	}
}

// takesExported: a VM that was read from KubeVirt, with its status, is applied under strict validation.
func (s *testServer) takesExported(t *testing.T) {
	vm := machineOf(changedObject(t, "exported", "hostname: exported"))
	vm.Object["status"] = map[string]any{"created": true, "ready": true, "printableStatus": "Running", "volumeSnapshotStatuses": []any{map[string]any{"enabled": false, "name": "root", "reason": "none"}},
		"snapshotInProgress": "now", "restoreInProgress": "now", "memoryDumpRequest": map[string]any{"claimName": "dump", "phase": "Completed"}, "changedBlockTracking": map[string]any{"state": "Disabled"}}
	if err := s.as("somebody").Create(t.Context(), vm, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		t.Fatal(err)
	}
	if status, has, err := unstructured.NestedMap(vm.Object, "status"); has && len(status) > 0 || err != nil {
		t.Errorf("the status %v is kept: %v", status, err)
	}
}
