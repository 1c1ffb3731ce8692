package vmi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const besideSpec = `
domain:
  memory: {guest: 128Mi}
  devices:
    interfaces:
    - {name: storage, bridge: {}, macAddress: 02-00-00-AB-CD-01, ports: [{name: nfs, port: 2049}]}
    - {name: default, masquerade: {}, ports: [{name: http, port: 80}]}
    - {name: lan, bridge: {}}
networks:
- {name: lan, multus: {networkName: lan}}
- {name: default, pod: {}}
- {name: storage, multus: {networkName: infra/storage}}
`

func besideVMI(t *testing.T, spec string) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.Namespace, vmi.UID = "vm", "tenant", "0a1b2c3d-0000-4000-8000-000000000001"
	if err := yaml.UnmarshalStrict([]byte(spec), &vmi.Spec); err != nil {
		t.Fatal(err)
	}
	v1.Default(vmi)
	return vmi
}

// TestMultusIsToldEachNetwork: Multus is told each network of the spec, with the name and the MAC that
// virt-handler and the guest know the interface by, and nothing that the VMI's annotations say.
func TestMultusIsToldEachNetwork(t *testing.T) {
	vmi := besideVMI(t, besideSpec)
	vmi.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": `[{"name":"secret","namespace":"kube-system","interface":"eth9"}]`,
		"k8s.v1.cni.cncf.io/network-status": "[]", "k8s.v1.cni.cncf.io/networks-status": "[]",
		"v1.multus-cni.io/default-network": "kube-system/secret", "mine": "x"}
	pod := Pod(vmi, PodConfig{LauncherImage: "launcher"})
	var got []attachment
	if err := json.Unmarshal([]byte(pod.Annotations["k8s.v1.cni.cncf.io/networks"]), &got); err != nil {
		t.Fatal(err)
	}
	want := []attachment{
		{Name: "lan", Namespace: "tenant", MAC: v1.MAC(vmi.UID, "lan"), Interface: vmi.Spec.Networks[0].Link()},
		{Name: "storage", Namespace: "infra", MAC: "02:00:00:ab:cd:01", Interface: vmi.Spec.Networks[2].Link()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for key, value := range pod.Annotations {
		if strings.Contains(value, "secret") || strings.Contains(key, "status") || strings.Contains(key, "default-network") {
			t.Errorf("the pod has the annotation %s: %s", key, value)
		}
	}
	if pod.Annotations["mine"] != "x" {
		t.Error("the pod has not the VMI's own annotation")
	}
	if ports := pod.Spec.Containers[0].Ports; len(ports) != 1 || ports[0].Name != "http" {
		t.Errorf("the pod shows the ports %v", ports)
	}
	migration := &v1.VirtualMachineInstanceMigration{}
	migration.Name, migration.UID = "move", "0a1b2c3d-0000-4000-8000-000000000002"
	if target := targetPod(vmi, migration, PodConfig{}); target.Annotations[networksAnnotation] != pod.Annotations[networksAnnotation] {
		t.Errorf("the target of a migration has %s", target.Annotations[networksAnnotation])
	}
}

// TestDefaultNetworkIsInMultusNamespace: Multus looks for a default network without a namespace in its own.
func TestDefaultNetworkIsInMultusNamespace(t *testing.T) {
	vmi := besideVMI(t, `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}}]}}, networks: [{name: lan, multus: {networkName: lan, default: true}}]}`)
	pod := Pod(vmi, PodConfig{})
	if got := pod.Annotations["v1.multus-cni.io/default-network"]; got != "tenant/lan" {
		t.Errorf("default network %q", got)
	}
	if got, ok := pod.Annotations[networksAnnotation]; ok {
		t.Errorf("networks %s", got)
	}
}
