package admission

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// impossible is the value of a field that the schema refuses in any case.
const impossible = ""

// looked are the fields whose own fields are looked at.
var looked = []string{"domain", "domain.cpu", "domain.devices", "volumes"}

// identity holds the fields by which a guest that was started is that guest, each with another value.
var identity = map[string]string{
	"architecture":                     `"arm64"`,
	"hostname":                         `"other"`,
	"subdomain":                        `"other"`,
	"serviceAccountName":               `"other"`,
	"domain.machine":                   `{"type":"pc-q35-10.0"}`,
	"domain.firmware":                  `{"uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223"}`,
	"domain.clock":                     `{"timezone":"Europe/Berlin"}`,
	"domain.features":                  `{"acpi":{"enabled":false}}`,
	"domain.chassis":                   `{"asset":"other"}`,
	"domain.launchSecurity":            impossible,
	"domain.cpu.cores":                 `3`,
	"domain.cpu.threads":               `2`,
	"domain.cpu.model":                 `"Nehalem"`,
	"domain.cpu.maxSockets":            `9`,
	"domain.cpu.features":              `[{"name":"vmx"}]`,
	"domain.cpu.dedicatedCpuPlacement": `true`,
	"domain.cpu.isolateEmulatorThread": `true`,
	"domain.cpu.numa":                  `{"guestMappingPassthrough":{}}`,
	"domain.cpu.realtime":              `{}`,
	"domain.devices.tpm":               `{"persistent":false}`,
	"volumes[].serviceAccount":         `{"serviceAccountName":"other"}`,
}

// free holds the fields that may change while the guest runs, each with another value.
var free = map[string]string{
	"nodeSelector":                  `{"a":"b"}`,
	"affinity":                      `{"nodeAffinity":{}}`,
	"tolerations":                   `[{"key":"c","operator":"Exists"}]`,
	"topologySpreadConstraints":     `[{"maxSkew":1,"topologyKey":"a","whenUnsatisfiable":"DoNotSchedule"}]`,
	"priorityClassName":             `"other"`,
	"schedulerName":                 `"other"`,
	"startStrategy":                 `"Paused"`,
	"terminationGracePeriodSeconds": `7`,
	"evictionStrategy":              `"External"`,
	"dnsPolicy":                     `"None"`,
	"dnsConfig":                     `{"nameservers":["192.0.2.1"]}`,
	"livenessProbe":                 `{"tcpSocket":{"port":22}}`,
	"readinessProbe":                `{"tcpSocket":{"port":22}}`,
	"accessCredentials": `[{"sshPublicKey":{"source":{"secret":{"secretName":"s"}},` +
		`"propagationMethod":{"configDrive":{}}}}]`,
	"resourceClaims": impossible,
	"utilityVolumes": impossible,
	"networks":       `[{"name":"default","pod":{}},{"name":"more","multus":{"networkName":"n"}}]`,

	"domain.resources":       `{"requests":{"cpu":"2"}}`,
	"domain.memory":          `{"guest":"1Gi"}`,
	"domain.ioThreadsPolicy": `"shared"`,
	"domain.ioThreads":       `{"supplementalPoolThreadCount":2}`,
	"domain.rebootPolicy":    `"Terminate"`,

	"domain.cpu.sockets": `2`,

	"domain.devices.disks":                      `[{"name":"root","disk":{"bus":"virtio"}}]`,
	"domain.devices.interfaces":                 `[{"name":"default","bridge":{},"state":"down"}]`,
	"domain.devices.filesystems":                `[{"name":"more","virtiofs":{}}]`,
	"domain.devices.inputs":                     `[{"name":"more","type":"tablet"}]`,
	"domain.devices.watchdog":                   `{"name":"more","i6300esb":{}}`,
	"domain.devices.rng":                        `{}`,
	"domain.devices.video":                      `{"type":"virtio"}`,
	"domain.devices.autoattachPodInterface":     `false`,
	"domain.devices.autoattachSerialConsole":    `false`,
	"domain.devices.logSerialConsole":           `false`,
	"domain.devices.autoattachGraphicsDevice":   `false`,
	"domain.devices.autoattachMemBalloon":       `false`,
	"domain.devices.autoattachInputDevice":      `true`,
	"domain.devices.networkInterfaceMultiqueue": `true`,
	"domain.devices.blockMultiQueue":            `true`,
	"domain.devices.disableHotplug":             `true`,
	"domain.devices.useVirtioTransitional":      `true`,
	"domain.devices.autoattachVSOCK":            impossible,
	"domain.devices.gpus":                       impossible,
	"domain.devices.hostDevices":                impossible,
	"domain.devices.panicDevices":               `[{"model":"pvpanic"}]`,
	"domain.devices.sound":                      `{"name":"more"}`,
	"domain.devices.clientPassthrough":          impossible,
	"domain.devices.downwardMetrics":            impossible,

	"volumes[].name":                  impossible, // alone
	"volumes[].containerDisk":         `{"image":"image:v2"}`,
	"volumes[].cloudInitNoCloud":      `{"userData":"x"}`,
	"volumes[].cloudInitConfigDrive":  `{"userData":"x"}`,
	"volumes[].emptyDisk":             `{"capacity":"1Gi"}`,
	"volumes[].persistentVolumeClaim": `{"claimName":"c"}`,
	"volumes[].dataVolume":            `{"name":"c"}`,
	"volumes[].ephemeral":             `{"persistentVolumeClaim":{"claimName":"c"}}`,
	"volumes[].hostDisk":              `{"path":"/disks/a.img","type":"Disk"}`,
	"volumes[].configMap":             `{"name":"c"}`,
	"volumes[].secret":                `{"secretName":"c"}`,
	"volumes[].downwardAPI":           `{}`,
	"volumes[].sysprep":               `{"configMap":{"name":"c"}}`,
	"volumes[].downwardMetrics":       impossible,
	"volumes[].memoryDump":            impossible,
	"volumes[].containerPath":         impossible,
}

// specPatch returns a merge patch that gives a field of a VMI's spec a value. A kind of volume comes with a new volume.
func specPatch(path, value string) string {
	if kind, volume := strings.CutPrefix(path, "volumes[]."); volume {
		const account = `{"name":"account","serviceAccount":{"serviceAccountName":"first"}}`
		path, value = "volumes", fmt.Sprintf(`[%s,{"name":"more",%q:%s}]`, account, kind, value)
	}
	names := strings.Split("spec."+path, ".")
	for _, name := range slices.Backward(names) {
		value = fmt.Sprintf(`{%q:%s}`, name, value)
	}
	return value
}

// tryPatch tries a merge patch on a VMI, and changes nothing.
func tryPatch(t *testing.T, c client.Client, vmi *v1.VirtualMachineInstance, patch string) error {
	t.Helper()
	return c.Patch(t.Context(), vmi.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
}

// restricted reports whether the policy of VMI specs has refused a change.
func restricted(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "update of VMI object is restricted: ")
}

// started makes a VMI that has a phase. virt-controller makes it: no webhook fills it in.
func (s *testServer) started(t *testing.T, vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	t.Helper()
	v1.Default(vmi)
	controller := s.as(controllerAccount)
	if err := controller.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	vmi.Status.Phase = v1.Running
	if err := controller.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	return vmi
}

// identity: of a guest that was started, virt-controller changes any field but those of its identity. Nobody else
// changes any.
func (s *testServer) identity(t *testing.T) {
	vmi := tiny("identity")
	vmi.Spec.Hostname, vmi.Spec.Subdomain, vmi.Spec.ServiceAccountName = "first", "first", "first"
	vmi.Spec.Domain.Chassis = &v1.Chassis{Asset: "first"}
	vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "account",
		ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "first"}})
	s.started(t, vmi)
	controller := s.as(controllerAccount)
	others := map[string]client.Client{"a user": s.as("somebody"), "virt-api": s.as(apiAccount)}
	for _, fields := range []map[string]string{identity, free} {
		for path, value := range fields {
			if value == impossible {
				continue
			}
			patch := specPatch(path, value)
			for who, c := range others {
				if err := tryPatch(t, c, vmi, patch); !restricted(err) {
					t.Errorf("%s changes %s: %v", who, path, err)
				}
			}
			judged(t, path, tryPatch(t, controller, vmi, patch))
		}
	}
	for _, path := range []string{"hostname", "serviceAccountName", "domain.machine", "domain.firmware", "domain.chassis",
		"domain.devices.tpm", "domain.cpu.model", "volumes[].serviceAccount"} {
		patch := specPatch(path, "null")
		if path == "volumes[].serviceAccount" {
			patch = `{"spec":{"volumes":[{"name":"root","containerDisk":{"image":"image:v1"}}]}}`
		}
		judged(t, path, tryPatch(t, controller, vmi, patch))
	}
	if err := tryPatch(t, controller, vmi, specPatch("domain.cpu", "null")); !restricted(err) ||
		!strings.Contains(err.Error(), "keeps its domain.cpu.cores") && !strings.Contains(err.Error(), ", domain.cpu.cores") {
		t.Errorf("virt-controller takes away the CPU: %v", err)
	}
	both := `{"spec":{"hostname":"other","nodeSelector":{"a":"b"},"domain":{"chassis":null}}}`
	err := tryPatch(t, controller, vmi, both)
	if !restricted(err) || !strings.HasSuffix(err.Error(), "keeps its hostname, domain.chassis") {
		t.Errorf("virt-controller changes more than the placement: %v", err)
	}
}

// judged fails the test if a field of the identity was not refused by its name, or another field was refused.
func judged(t *testing.T, path string, err error) {
	t.Helper()
	if !has(identity, path) && err != nil {
		t.Errorf("virt-controller changes %s: %v", path, err)
	}
	named := restricted(err) && strings.HasSuffix(err.Error(), "a guest that was started keeps its "+path)
	if has(identity, path) && !named {
		t.Errorf("virt-controller changes %s of the identity: %v", path, err)
	}
}

// longSpecs: the policy's expressions stay below the API server's limits of cost for the longest spec.
func (s *testServer) longSpecs(t *testing.T) {
	const most = 256 // elements of a list in the schema
	vmi := tiny("long-spec")
	vmi.Spec.Volumes, vmi.Spec.Domain.CPU = nil, &v1.CPU{Model: "Nehalem"}
	for i := range most {
		name := fmt.Sprintf("%s-%03d", strings.Repeat("n", 59), i)
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name,
			CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: strings.Repeat("x", 2048)}})
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
			v1.Disk{Name: name, CDRom: &v1.CDRomTarget{}, Serial: strings.Repeat("s", 256)})
		vmi.Spec.Domain.CPU.Features = append(vmi.Spec.Domain.CPU.Features, v1.CPUFeature{Name: fmt.Sprint("f", i)})
	}
	s.started(t, vmi)
	changed := vmi.DeepCopy()
	for i := range changed.Spec.Volumes {
		changed.Spec.Volumes[i] = v1.Volume{Name: changed.Spec.Volumes[i].Name,
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: strings.Repeat("c", 253)}}
		changed.Spec.Domain.Devices.Disks[i].Serial = "other"
	}
	text, err := json.Marshal(changed)
	t.Logf("a VMI of %d bytes (%v)", len(text), err)
	for _, who := range []string{controllerAccount, apiAccount} {
		if err := s.as(who).Update(t.Context(), changed.DeepCopy(), client.DryRunAll); err != nil {
			t.Errorf("%s changes all %d disks: %.500v", who, most, err)
		}
	}
}
