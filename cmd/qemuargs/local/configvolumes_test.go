package local

import (
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/launcher/configfiles"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const withFiles = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: web, namespace: team-a, uid: 0a1b2c3d-0000-4000-8000-000000000001, labels: {tier: web, app: shop}, annotations: {note: "two\nlines"}}
spec:
  domain:
    memory: {guest: 256Mi}
    devices:
      disks:
      - {name: settings, disk: {bus: virtio}}
      - {name: keys, cdrom: {bus: sata}}
      - {name: facts, disk: {bus: scsi}}
      - {name: answers, cdrom: {bus: scsi}}
      - {name: none, cdrom: {bus: scsi}}
  volumes:
  - {name: settings, configMap: {name: settings, volumeLabel: settings}}
  - {name: keys, secret: {secretName: keys}}
  - name: facts
    downwardAPI:
      fields:
      - {path: labels, fieldRef: {fieldPath: metadata.labels}}
      - {path: pod/note, fieldRef: {fieldPath: "metadata.annotations['note']"}}
      - {path: pod/name, fieldRef: {fieldPath: metadata.name}}
  - {name: answers, sysprep: {configMap: {name: answers}}}
  - {name: none, configMap: {name: none, optional: true}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: team-a}
data: {greeting: hello}
binaryData: {bytes: AAEC}
---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: team-a}
stringData: {token: secret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: answers, namespace: team-a}
data: {Unattend.xml: <unattend/>}
`

// TestConfigVolumes: the launcher finds the files of the manifests where it finds a pod's.
func TestConfigVolumes(t *testing.T) {
	v := readyVM(t, t.TempDir(), withFiles, Options{})
	if err := v.check(); err != nil {
		t.Fatal(err)
	}
	files, errs := configFiles(v.set, v.vmi)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if err := v.folder.writeConfig(files); err != nil {
		t.Fatal(err)
	}
	for volume, want := range map[string]string{"settings": "bytes=\x00\x01\x02 greeting=hello ", "keys": "token=secret ", "answers": "Unattend.xml=<unattend/> ", "none": "",
		"facts": "labels=app=\"shop\"\ntier=\"web\" pod/name=web pod/note=two\nlines "} {
		found, err := configfiles.Read(v.folder.below(layout.Config(volume)))
		got := ""
		for _, f := range found {
			got += f.Path + "=" + string(f.Data) + " "
		}
		if err != nil || got != want {
			t.Errorf("%s: %q (%v), want %q", volume, got, err, want)
		}
	}
	asked := handover.Inspection(v.vmi)
	reply, err := v.folder.folders().Inspect(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	for i, facts := range reply.ConfigVolumes {
		if facts.Error != "" || facts.Size == 0 {
			t.Errorf("%s: %+v", asked.ConfigVolumes[i].Volume, facts)
		}
	}
}

// TestConfigVolumesRefused: what only a cluster or another manifest has is named.
func TestConfigVolumesRefused(t *testing.T) {
	for old, c := range map[string]struct{ instead, want string }{
		"configMap: {name: settings,":                            {"configMap: {name: other,", "there is no ConfigMap of this name in namespace team-a among the manifests"},
		"secret: {secretName: keys}":                             {"secret: {secretName: other}", "there is no Secret of this name"},
		"sysprep: {configMap: {name: answers}}":                  {"sysprep: {secret: {name: answers}}", "spec.volumes[3].sysprep.secret.name"},
		"configMap: {name: none, optional: true}":                {"serviceAccount: {serviceAccountName: robot}", "there is no cluster here"},
		"{path: labels, fieldRef: {fieldPath: metadata.labels}}": {"{path: cpu, resourceFieldRef: {containerName: compute, resource: limits.cpu}}", "there is no pod here"},
	} {
		v := readyVM(t, t.TempDir(), strings.Replace(withFiles, old, c.instead, 1), Options{})
		if err := v.check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.instead, err, c.want)
		}
	}
}
