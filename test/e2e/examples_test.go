package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// example has the shape of one of KubeVirt's examples/*.yaml: the kind, and every
// field that it sets, with an image of ours.
type example struct {
	manifest string
	// refused names the fields for which it is, or words of the refusal.
	refused []string
}

const (
	onDisk = `devices: {disks: [{name: containerdisk, disk: {bus: virtio}}]}, memory: {guest: 128Mi}, resources: {}`
	disk   = `{name: containerdisk, containerDisk: {image: "` + tinyImage + `"}}`
	sata   = `{name: containerdisk, containerDisk: {image: "` + sataImage + `"}}`
	seeded = `devices: {disks: [{name: containerdisk, disk: {bus: virtio}}, {name: cloudinitdisk, disk: {bus: virtio}}]`
	seed   = `{name: cloudinitdisk, cloudInitNoCloud: {userData: "#!/bin/sh\n\necho printed\n"}}`
)

// specOf is the spec of a VMI.
func specOf(domain, volumes string, more ...string) string {
	return fmt.Sprintf(`{domain: {%s}, terminationGracePeriodSeconds: 0, volumes: [%s]%s}`, domain, volumes, strings.Join(append([]string{""}, more...), ", "))
}

func exampleVMI(name, spec string) string {
	return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: %[1]s, labels: {special: %[1]s}}\nspec: %s\n", name, spec)
}

func exampleVM(name, spec string, more ...string) string {
	return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: %[1]s, labels: {kubevirt.io/vm: %[1]s}}\n"+
		"spec: {runStrategy: Halted, template: {metadata: {labels: {kubevirt.io/vm: %[1]s}}, spec: %[2]s}%[3]s}\n",
		name, spec, strings.Join(append([]string{""}, more...), ", "))
}

func exampleOf(apiVersion, kind, name, rest string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\n%s\n", apiVersion, kind, name, rest)
}

const instancetypes = "instancetype.kubevirt.io/v1beta1"

// prepared is what other examples name, in its own files there.
var prepared = strings.Join([]string{
	exampleOf(instancetypes, "VirtualMachineInstancetype", "csmall", "spec: {cpu: {guest: 1}, memory: {guest: 128Mi}}"),
	exampleOf(instancetypes, "VirtualMachinePreference", "virtio", "spec: {devices: {preferredDiskBus: virtio, preferredInterfaceModel: virtio}}"),
}, "---\n")

// examples are KubeVirt's, but for those that TestKubeVirtManifests runs, and the
// operator's own.
var examples = map[string]example{
	"vm-cirros":        {manifest: exampleVM("vm-cirros", specOf(seeded+`}, memory: {guest: 128Mi}, resources: {}`, disk+", "+seed))},
	"vm-cirros-sata":   {manifest: exampleVM("vm-cirros-sata", specOf(`devices: {}, memory: {guest: 128Mi}, resources: {}`, sata))},
	"vm-priorityclass": {manifest: exampleVM("vm-priorityclass", specOf(onDisk, disk, "priorityClassName: e2e-non-preemptible"))},
	"vm-alpine-multipvc": {manifest: exampleVM("vm-alpine-multipvc", specOf(
		`devices: {disks: [{name: pvcdisk1, disk: {bus: virtio}}, {name: pvcdisk2, disk: {bus: virtio}}]}, memory: {guest: 128Mi}, resources: {}`,
		`{name: pvcdisk1, persistentVolumeClaim: {claimName: disk-alpine}}, {name: pvcdisk2, persistentVolumeClaim: {claimName: disk-custom}}`))},
	"vm-alpine-datavolume": {manifest: exampleVM("vm-alpine-datavolume", specOf(
		`devices: {disks: [{name: dv, disk: {bus: virtio}}]}, memory: {guest: 128Mi}, resources: {}`, `{name: dv, dataVolume: {name: alpine-dv}}`),
		`dataVolumeTemplates: [{metadata: {creationTimestamp: null, name: alpine-dv}, spec: {pvc: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}, storageClassName: local}, source: {registry: {url: "docker://alpine"}}}}]`)},
	"vm-cirros-csmall": {manifest: exampleVM("vm-cirros-csmall", specOf(seeded+`}, resources: {}`, disk+", "+seed),
		"instancetype: {kind: VirtualMachineInstancetype, name: csmall}")},
	"vm-cirros-csmall-virtio": {manifest: exampleVM("vm-cirros-csmall-virtio", specOf(`devices: {disks: [{name: containerdisk, disk: {}}]}, resources: {}`, disk),
		"instancetype: {kind: VirtualMachineInstancetype, name: csmall}", "preference: {kind: VirtualMachinePreference, name: virtio}")},
	"vmi-migratable": {manifest: exampleVMI("vmi-migratable", specOf(
		`devices: {disks: [{name: containerdisk, disk: {bus: virtio}}], interfaces: [{name: default, masquerade: {}}]}, memory: {guest: 128Mi}, resources: {}`,
		disk, "networks: [{name: default, pod: {}}]"))},
	"vmi-fedora": {manifest: exampleVMI("vmi-fedora", specOf(seeded+`, interfaces: [{name: default, masquerade: {}}], rng: {}}, memory: {guest: 1024M}, resources: {}`,
		disk+", "+seed, "networks: [{name: default, pod: {}}]"))},
	"vmi-pvc": {manifest: exampleVMI("vmi-pvc", specOf(
		`devices: {disks: [{name: pvcdisk, disk: {bus: virtio}}]}, memory: {guest: 128Mi}, resources: {}`, `{name: pvcdisk, persistentVolumeClaim: {claimName: disk-alpine}}`))},
	"vmi-replicaset-cirros": {manifest: exampleOf("kubevirt.io/v1", "VirtualMachineInstanceReplicaSet", "vmi-replicaset-cirros",
		"spec: {replicas: 3, selector: {matchLabels: {kubevirt.io/vmReplicaSet: cirros}}, template: {metadata: {labels: {kubevirt.io/vmReplicaSet: cirros}}, spec: "+specOf(onDisk, disk)+"}}")},
	"vm-pool-cirros": {manifest: exampleOf("pool.kubevirt.io/v1beta1", "VirtualMachinePool", "vm-pool-cirros",
		"spec: {replicas: 3, selector: {matchLabels: {kubevirt.io/vmpool: cirros}}, virtualMachineTemplate: {metadata: {creationTimestamp: null, labels: {kubevirt.io/vmpool: cirros}}, spec: "+
			"{runStrategy: Always, template: {metadata: {creationTimestamp: null, labels: {kubevirt.io/vmpool: cirros}}, spec: "+specOf(onDisk, disk)+"}}}}")},
	"vmi-preset-small": {manifest: exampleOf("kubevirt.io/v1", "VirtualMachineInstancePreset", "vmi-preset-small",
		"spec: {domain: {memory: {guest: 128Mi}}, selector: {matchLabels: {kubevirt.io/vmPreset: vmi-preset-small}}}")},
	"clarge":         {manifest: exampleOf(instancetypes, "VirtualMachineInstancetype", "clarge", "spec: {cpu: {guest: 4}, memory: {guest: 2Gi}}")},
	"cluster-csmall": {manifest: exampleOf(instancetypes, "VirtualMachineClusterInstancetype", "e2e-cluster-csmall", "spec: {cpu: {guest: 1}, memory: {guest: 128Mi}}")},
	"vmi-alpine-efi": {manifest: exampleVMI("vmi-alpine-efi", specOf(onDisk+`, firmware: {bootloader: {efi: {secureBoot: false}}}`, disk))},
	"vmi-secureboot": {manifest: exampleVMI("vmi-secureboot", specOf(onDisk+`, features: {acpi: {}, smm: {enabled: true}}, firmware: {bootloader: {efi: {secureBoot: true}}}`, disk))},

	"vmi-fedora-isolated": {manifest: exampleVMI("vmi-fedora-isolated", specOf(onDisk+`, cpu: {cores: 1, sockets: 1, threads: 1, dedicatedCpuPlacement: true, isolateEmulatorThread: true}`, disk))},
	"vmi-multus-ptp": {manifest: exampleVMI("vmi-multus-ptp", specOf(
		`devices: {disks: [{name: containerdisk, disk: {bus: virtio}}], interfaces: [{name: ptp, bridge: {}}], rng: {}}, memory: {guest: 128Mi}, resources: {}`,
		disk, "networks: [{name: ptp, multus: {networkName: ptp-conf}}]"))},
	"vmi-sriov": {exampleVMI("vmi-sriov", specOf(
		`devices: {disks: [{name: containerdisk, disk: {bus: virtio}}], interfaces: [{name: default, masquerade: {}}, {name: sriov, sriov: {}}]}, memory: {guest: 128Mi}, resources: {}`,
		disk, "networks: [{name: default, pod: {}}, {name: sriov, multus: {networkName: sriov/sriov-network}}]")), nil},
	"vmi-gpu": {exampleVMI("vmi-gpu", specOf(`devices: {disks: [{name: containerdisk, disk: {}}], gpus: [{name: gpu1, deviceName: nvidia.com/GPU}]}, memory: {guest: 1024M}`, disk)),
		[]string{"devices.gpus"}},
	"vmi-usb": {exampleVMI("vmi-usb", specOf(`devices: {disks: [{name: containerdisk, disk: {}}], hostDevices: [{name: node-usb, deviceName: kubevirt.io/storage}]}, memory: {guest: 128Mi}`, disk)),
		[]string{"devices.hostDevices"}},
	"vmi-with-sidecar-hook": {strings.Replace(exampleVMI("vmi-with-sidecar-hook", specOf(onDisk, disk)), "labels:",
		`annotations: {hooks.kubevirt.io/hookSidecars: '[{"image": "example"}]'}, labels:`, 1), []string{"hooks.kubevirt.io/hookSidecars"}},
	"windows": {exampleOf(instancetypes, "VirtualMachinePreference", "windows",
		"spec: {clock: {preferredClockOffset: {utc: {}}}, devices: {preferredDiskBus: sata, preferredInterfaceModel: e1000, preferredTPM: {}}, features: {preferredHyperv: {relaxed: {}}, preferredSmm: {}}, firmware: {preferredEfi: {secureBoot: true}}}"),
		nil},
	"migration-job": {manifest: exampleOf("kubevirt.io/v1", "VirtualMachineInstanceMigration", "migration-job", "spec: {vmiName: vmi-migratable}")},
	"example-migration-policy": {manifest: exampleOf("migrations.kubevirt.io/v1alpha1", "MigrationPolicy", "e2e-example-policy",
		"spec: {allowAutoConverge: false, bandwidthPerMigration: 2000Mi, completionTimeoutPerGiB: 100, allowPostCopy: false, selectors: {namespaceSelector: {namespace-key: namespace-value}, virtualMachineInstanceSelector: {vmi-key: vmi-value}}}")},
}

// TestKubeVirtExamplesAreAcceptedOrNamed: the samples are accepted, and of KubeVirt's examples those of
// supported sorts; of the others every field, or the kind, is named.
func TestKubeVirtExamplesAreAcceptedOrNamed(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	samples, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(samples) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, sample := range samples {
		if name := filepath.Base(sample); strings.HasPrefix(name, "kubevirt") || name == "prometheus.yaml" {
			continue // of another namespace, or another operator's
		}
		if _, err := output("", "kubectl", "-n", ns, "apply", "--dry-run=server", "-f", sample); err != nil {
			t.Error(err)
		}
	}
	for name, e := range examples {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := output(e.manifest, "kubectl", "-n", ns, "apply", "--dry-run=server", "-f", "-")
			if len(e.refused) == 0 && err != nil {
				t.Error(err)
			}
			for _, field := range e.refused {
				if err == nil || !strings.Contains(err.Error(), field) {
					t.Errorf("%v, want to be refused for %s", err, field)
				}
			}
		})
	}
}

// notHere says why TestKubeVirtExamplesRun does not run an example.
var notHere = map[string]string{
	"vmi-pvc":              "it has the disk of another example, and runs after that",
	"vm-alpine-datavolume": "CDI fills its disk",
	"vmi-multus-ptp":       "TestMultus runs what needs Multus",
	"vmi-sriov":            "no node has a network card for it: TestSRIOVResource tests what can be tested",
	"vmi-fedora-isolated":  "TestDedicatedCPUs runs what needs CPUs of its own",
}

// TestKubeVirtExamplesRun: those of supported sorts run.
func TestKubeVirtExamplesRun(t *testing.T) {
	ns := namespace(t)
	c := claims{t, ns}
	for _, name := range []string{"disk-alpine", "disk-custom"} {
		c.folder(name, "100Mi", "true")
	}
	const priority = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: e2e-non-preemptible}\npreemptionPolicy: Never\nvalue: 999999999\n"
	apply(t, ns, prepared+"---\n"+priority)
	t.Cleanup(func() {
		for _, what := range []string{"priorityclass/e2e-non-preemptible", "virtualmachineclusterinstancetype/e2e-cluster-csmall", "migrationpolicy/e2e-example-policy"} {
			if _, err := output("", "kubectl", "delete", what); err != nil {
				t.Error(err)
			}
		}
	})
	for name, e := range examples {
		if len(e.refused) > 0 || notHere[name] != "" {
			continue
		}
		apply(t, ns, e.manifest)
		switch {
		case strings.Contains(e.manifest, "kind: VirtualMachine\n"):
			m := vm{vmi{t: t, namespace: ns, name: name}}
			m.is(v1.VirtualMachineStatusStopped)
			m.does("start", nil)
			m.runs("")
			kubectl(t, "-n", ns, "delete", "vm", name, "--timeout=600s")
		case strings.Contains(e.manifest, "kind: VirtualMachineInstance\n"):
			v := vmi{t: t, namespace: ns, name: name}
			v.await(v1.Running)
			v.delete()
		case strings.Contains(e.manifest, "replicas: 3"):
			kind := map[bool]string{true: "vmpool", false: "vmirs"}[strings.Contains(e.manifest, "kind: VirtualMachinePool\n")]
			if err := poll(func() error {
				ready, err := output("", "kubectl", "-n", ns, "get", kind, name, "-o", "jsonpath={.status.readyReplicas}")
				if err == nil && ready != "3" {
					err = fmt.Errorf("%s %s has %q ready", kind, name, ready)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			kubectl(t, "-n", ns, "delete", kind, name, "--cascade=foreground", "--timeout=600s")
		}
	}
	const sample = "../../config/samples/vm-clusterinstancetype.yaml"
	kubectl(t, "-n", ns, "apply", "-f", sample)
	vm{vmi{t: t, namespace: ns, name: "cluster-sized"}}.runs("")
	kubectl(t, "-n", ns, "delete", "-f", sample, "--timeout=600s")
	// Now that nothing else has its disk.
	apply(t, ns, examples["vmi-pvc"].manifest)
	v := vmi{t: t, namespace: ns, name: "vmi-pvc"}
	v.await(v1.Running)
	v.delete()
}
