package e2e

import (
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const sataImage = "localhost/kubeqemu/tiny-container-disk:dev"

// plainManifests are of the shapes of KubeVirt's examples of plain VMIs: what
// they name, and what they leave to defaults.
var plainManifests = map[string]string{
	// no interface: bridge
	"ephemeral": `
  domain:
    devices:
      disks:
      - {name: containerdisk, disk: {bus: virtio}}
    machine: {type: ""}
    resources: {requests: {memory: 128Mi}}
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: containerdisk, containerDisk: {image: "` + tinyImage + `"}}
`,
	// no disk listed: SATA
	"sata": `
  domain:
    devices: {}
    resources: {requests: {memory: 128Mi}}
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: containerdisk, containerDisk: {image: "` + sataImage + `"}}
`,
	// nocloud and masquerade are about cloud-init's data and the network. QEMU loads their kernel, unlike that of KubeVirt's examples:
	// it is faster than a boot from the disk.
	"nocloud": `
  domain:
    firmware: {kernelBoot: ` + tinyKernel + `}
    devices:
      disks:
      - {name: containerdisk, disk: {bus: virtio}}
      - {name: cloudinitdisk, disk: {bus: virtio}}
      - {name: emptydisk, disk: {bus: virtio}}
    resources: {requests: {memory: 128Mi}}
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: containerdisk, containerDisk: {image: "` + tinyImage + `"}}
  - name: cloudinitdisk
    cloudInitNoCloud:
      userData: |
        #!/bin/sh

        echo hello
  - {name: emptydisk, emptyDisk: {capacity: 2Gi}}
`,
	"masquerade": `
  domain:
    firmware: {kernelBoot: ` + tinyKernel + `}
    devices:
      disks:
      - {name: containerdisk, disk: {bus: virtio}}
      - {name: cloudinitdisk, disk: {bus: virtio}}
      interfaces:
      - {name: testmasquerade, masquerade: {}, ports: [{name: echo, port: 7, protocol: TCP}]}
      rng: {}
    machine: {type: ""}
    resources: {requests: {memory: 1024M}}
  networks:
  - {name: testmasquerade, pod: {}}
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: containerdisk, containerDisk: {image: "` + tinyImage + `"}}
  - name: cloudinitdisk
    cloudInitNoCloud:
      userData: |-
        #cloud-config
        password: secret
        chpasswd: { expire: False }
`,
	"kernel-boot": `
  domain:
    devices: {}
    firmware: {kernelBoot: ` + tinyKernel + `}
    resources: {requests: {memory: 256Mi}}
  terminationGracePeriodSeconds: 0
`,
}

func plainManifest(name, spec string) string {
	return "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata:\n  name: " + name + "\n  labels: {special: " + name + "}\nspec:" + spec
}

// TestKubeVirtManifests: manifests of KubeVirt's plain shapes boot and are
// reached on the address in their status; of what is not supported, every
// field is named.
func TestKubeVirtManifests(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, clientManifest)
	for name, spec := range plainManifests {
		apply(t, ns, plainManifest(name, spec))
	}
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	for name := range plainManifests {
		v := vmi{t: t, namespace: ns, name: name}
		status := v.await(v1.Running).Status
		if len(status.Interfaces) != 1 || status.Interfaces[0].IP == "" {
			t.Errorf("%s: interfaces %+v, want one with an address", name, status.Interfaces)
			continue
		}
		if err := poll(func() error { return echoes(ns, status.Interfaces[0].IP, 7) }); err != nil {
			t.Errorf("%s: %v; its log:\n%s", name, err, kubectl(t, "-n", ns, "logs", v.pod().Name))
		}
	}
	refused := plainManifest("windows", `
  domain:
    clock: {utc: {}, timer: {hpet: {present: false}, hyperv: {}, pit: {tickPolicy: delay}, rtc: {tickPolicy: catchup}}}
    cpu: {cores: 2}
    devices:
      interfaces: [{name: default, masquerade: {}, model: e1000}]
      clientPassthrough: {}
    features: {acpi: {}, apic: {}, hyperv: {relaxed: {}, vapic: {}, spinlocks: {spinlocks: 8191}}, smm: {}}
    firmware: {uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223, bootloader: {efi: {secureBoot: true}}}
    resources: {requests: {memory: 2Gi}}
  networks: [{name: default, pod: {}}]
  volumes: [{name: pvcdisk, persistentVolumeClaim: {claimName: disk-windows}}]
`)
	_, err := output(refused, "kubectl", "-n", ns, "apply", "-f", "-")
	for _, path := range []string{"spec.domain.devices.clientPassthrough"} {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("a Windows VMI: %v, want an error that names %s", err, path)
		}
	}
}
