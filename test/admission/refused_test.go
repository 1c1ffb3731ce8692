package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	testserver "github.com/kubeqemu/kubeqemu/test/apiserver"
)

// guest is a VMI with something of each kind, in which something may be wrong.
const guest = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {guest: 128Mi}
    devices:
      autoattachGraphicsDevice: false
      disks: [{name: root, disk: {bus: virtio}}]
      interfaces: [{name: default, masquerade: {}}]
  networks: [{name: default, pod: {}}]
  volumes: [{name: root, containerDisk: {image: "image:v1"}}]
`

// changed is that VMI with a JSON merge patch (RFC 7386), written as YAML, applied to its spec.
func changed(t *testing.T, name, patch string) []byte {
	t.Helper()
	base, err := sigsyaml.YAMLToJSON(fmt.Appendf(nil, guest, name))
	if err != nil {
		t.Fatal(err)
	}
	change, err := sigsyaml.YAMLToJSON([]byte("{spec: {" + patch + "}}"))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	object, err := jsonpatch.MergePatch(base, change)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return object
}

// changedObject is what changed returns, as an object.
func changedObject(t *testing.T, name, patch string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(changed(t, name, patch), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// machineOf is a VirtualMachine whose template has a VMI's spec.
func machineOf(vmi *unstructured.Unstructured) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": vmi.Object["metadata"],
		"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": vmi.Object["spec"]}}}}
}

// TestRefused: what is wrong with an object is said when it is applied, with the path of each thing that is wrong, and
// nothing is kept.
func TestRefused(t *testing.T) {
	s := newTestServer(t)
	s.serve()
	t.Run("by the schema", s.refusedBySchema)
	t.Run("bytes", s.refusedBytes)
	t.Run("beyond the schema", s.refusedBeyondSchema)
	t.Run("a second KubeVirt", s.refusedSecond)
	t.Run("instancetypes", s.refusedInstancetypes)
	if left := s.vmis(t); len(left) > 0 {
		t.Errorf("of what is refused, this is there: %v", left)
	}
	t.Run("by the controller", s.refusedByController)
}

// vmis are the names of all VMIs.
func (s *testServer) vmis(t *testing.T) (names []string) {
	t.Helper()
	list := &v1.VirtualMachineInstanceList{}
	if err := s.admin.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for _, of := range list.Items {
		names = append(names, of.Name)
	}
	return names
}

func (s *testServer) refusedBySchema(t *testing.T) {
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
		"gpus":               {`domain: {devices: {gpus: [{name: a, deviceName: b}]}}`, []string{"spec.domain.devices.gpus", "not supported yet: no device of the node is offered to pods"}},
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
	user := s.as("somebody")
	for name, c := range cases {
		object := changedObject(t, name, c.patch)
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		err = user.Patch(t.Context(), object, client.RawPatch(types.ApplyPatchType, text), client.FieldOwner("kubectl"),
			client.FieldValidation(metav1.FieldValidationStrict))
		for _, path := range c.paths {
			if err == nil || !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), strings.TrimPrefix(path, "spec")) {
				t.Errorf("%s: %.300v, want an error that names %s", name, err, path)
			}
		}
	}
}

// refusedBytes posts what no client sends: text that is no UTF-8.
func (s *testServer) refusedBytes(t *testing.T) {
	text := strings.Replace(string(changed(t, "bytes", `hostname: HOST`)), "HOST", "\xff\xfe", 1)
	config := rest.CopyConfig(s.config)
	config.GroupVersion, config.APIPath = &v1.GroupVersion, "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Post().Namespace("default").Resource("virtualmachineinstances").SetHeader("Content-Type", "application/json").
		Body([]byte(text)).Do(t.Context()).Error()
	if err == nil || !strings.Contains(err.Error(), "spec.hostname") {
		t.Errorf("a host name that is no UTF-8: %v, want an error that names spec.hostname", err)
	}
}

// beyondSchema are VMIs that the schema lets pass, with what is wrong with each.
var beyondSchema = map[string]struct {
	patch string
	paths []string
}{
	"memory-0":          {`domain: {memory: {guest: "0"}}`, []string{"spec.domain.memory.guest"}},
	"memory-5-ei":       {`domain: {memory: {guest: 5Ei}}`, []string{"spec.domain.memory.guest"}},
	"request-no-limit":  {`domain: {resources: {requests: {example.com/fpga: "1"}}}`, []string{"spec.domain.resources.limits[example.com/fpga]"}},
	"limit-below-guest": {`domain: {resources: {limits: {memory: 64Mi}}}`, []string{"spec.domain.resources.limits[memory]"}},
	"rhel-unknown":      {`domain: {machine: {type: pc-q35-rhel9.9.9}}`, []string{"spec.domain.machine.type"}},
	"usb-serial":        {`domain: {devices: {disks: [{name: root, serial: "012345678901234567890", disk: {bus: usb}}]}}`, []string{"spec.domain.devices.disks[0].serial"}},
	"request-too-much":  {`domain: {resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}}`, []string{"spec.domain.resources.requests[memory]"}},
	"vcpus-134217728":   {`domain: {cpu: {cores: 512, sockets: 512, threads: 512}}`, []string{"spec.domain.cpu"}},
	"bad-base64":        {`volumes: [{name: root, cloudInitNoCloud: {userDataBase64: "%%%"}}]`, []string{"spec.volumes[0].cloudInitNoCloud.userDataBase64"}},
	"many": {`domain: {memory: {guest: "1"}, devices: {disks: [{name: none}, {name: root, disk: {bus: sata, readonly: true}}], interfaces: [{name: other, masquerade: {}, macAddress: "01:00:5e:00:00:01"}]}}`,
		[]string{"spec.domain.memory.guest", "spec.domain.devices.disks[0].name", "spec.domain.devices.disks[1].disk.readonly",
			"spec.domain.devices.interfaces[0].name", "spec.domain.devices.interfaces[0].macAddress", "spec.networks[0].name"}},
}

// refusedBeyondSchema: virt-api says what the schema cannot know, however it is applied, or would be applied.
func (s *testServer) refusedBeyondSchema(t *testing.T) {
	user := s.as("somebody")
	for name, c := range beyondSchema {
		object := func() *unstructured.Unstructured { return changedObject(t, name, c.patch) }
		text := changed(t, name, c.patch)
		for how, err := range map[string]error{
			"create":            user.Create(t.Context(), object()),
			"dry run":           user.Create(t.Context(), object(), client.DryRunAll),
			"server-side apply": user.Patch(t.Context(), object(), client.RawPatch(types.ApplyPatchType, text), client.FieldOwner("kubectl")),
		} {
			for _, path := range c.paths {
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `"`+name+`" is invalid`) || !strings.Contains(err.Error(), path+":") {
					t.Errorf("%s, %s: %v, want an error that names %s", name, how, err, path)
				}
			}
		}
	}
}

// refusedSecond: kubectl says so too of a KubeVirt beside another.
func (s *testServer) refusedSecond(t *testing.T) {
	const second = `{"apiVersion":"kubevirt.io/v1","kind":"KubeVirt","metadata":{"name":%q,"namespace":%q},"spec":{}}`
	s.plane.MustApply(fmt.Sprintf(second, "kubevirt", "kubevirt"))
	s.poll("virt-api knows it", func() error {
		for namespace, says := range map[string]string{"kubevirt": "already created", "default": `there is "kubevirt" in the namespace "kubevirt"`} {
			if err := s.plane.Apply(fmt.Sprintf(second, "second", namespace), client.DryRunAll); err == nil || !strings.Contains(err.Error(), says) {
				return fmt.Errorf("a second KubeVirt in %s: %v, want %q", namespace, err, says)
			}
		}
		return nil
	})
}

// refusedInstancetypes: a size that no guest can have is refused when it is written, and not for each VM that names it.
func (s *testServer) refusedInstancetypes(t *testing.T) {
	for spec, want := range map[string]string{
		"{cpu: {guest: 1}, memory: {guest: 1Gi, overcommitPercent: 50, hugepages: {pageSize: 2Mi}}}":   "hugepages and overcommitPercent should not be requested together",
		"{cpu: {guest: 1, dedicatedCPUPlacement: true}, memory: {guest: 1Gi, overcommitPercent: 50}}":  "memory.overcommitPercent must not be set",
		"{cpu: {guest: 1, dedicatedCPUPlacement: true}, memory: {guest: 1Gi, overcommitPercent: 0}}":   "",
		"{cpu: {guest: 1, dedicatedCPUPlacement: false}, memory: {guest: 1Gi, overcommitPercent: 50}}": "",
		"{cpu: {guest: 1, realtime: {mask: 1-x}}, memory: {guest: 1Gi}}":                               "spec.cpu.realtime.mask",
		"{cpu: {guest: 1}, memory: {guest: 1Gi, overcommitPercent: 0, hugepages: {pageSize: 2Mi}}}":    "",
	} {
		objects, err := testserver.Parse("{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineInstancetype, " +
			"metadata: {name: a, namespace: default}, spec: " + spec + "}")
		if err != nil {
			t.Fatal(err)
		}
		err = s.as("somebody").Create(t.Context(), objects[0], client.DryRunAll,
			client.FieldValidation(metav1.FieldValidationStrict))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}

// refusedByController: what the schema lets pass, and virt-api was not asked about, virt-controller refuses, all at once.
func (s *testServer) refusedByController(t *testing.T) {
	controller := s.as(controllerAccount)
	r := s.instances(controller)
	for name, c := range beyondSchema {
		object := changedObject(t, name, c.patch)
		if err := controller.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		of := &v1.VirtualMachineInstance{}
		s.poll("the end of "+name, func() error {
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)})
			if err := errors.Join(err, s.admin.Get(t.Context(), client.ObjectKeyFromObject(object), of)); err != nil {
				return err
			}
			if of.Status.Phase != v1.Failed {
				return fmt.Errorf("it is %q", of.Status.Phase)
			}
			return nil
		})
		message := ""
		if c := of.Status.Condition(v1.ConditionSynchronized); c != nil {
			message = c.Message
		}
		for _, path := range c.paths {
			if of.Status.Reason != "InvalidSpec" || !strings.Contains(message, path+":") {
				t.Errorf("%s: %s: %.500q, want InvalidSpec and %s in it", name, of.Status.Reason, message, path)
			}
		}
	}
}

// instances is virt-controller's part for VMIs, to be called by hand.
func (s *testServer) instances(as client.Client) *vmi.Reconciler {
	return &vmi.Reconciler{Client: as, Live: as, Events: events.NewFakeRecorder(100), Clock: clock.RealClock{},
		Cluster: func(context.Context) (*v1.KubeVirtConfiguration, error) { return &v1.KubeVirtConfiguration{}, nil },
		Config:  vmi.PodConfig{LauncherImage: "launcher:v1"}}
}
