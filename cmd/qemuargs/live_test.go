package main

import (
	"strings"
	"testing"
)

const (
	liveBefore = `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: web}
spec:
  domain:
    cpu: {sockets: 1, maxSockets: 4}
    memory: {guest: 1Gi}
    devices:
      disks: [{name: root, disk: {bus: virtio}}]
      interfaces: [{name: default, masquerade: {}}]
  networks: [{name: default, pod: {}}]
  volumes: [{name: root, containerDisk: {image: x}}]
`
	liveDisk = "disks: [{name: data, disk: {bus: virtio}}, {"
	liveData = "volumes: [{name: data, persistentVolumeClaim: {claimName: c}}, {"
)

// TestDiffLive: what is in both manifests stays where it is, what is new comes by steps, and what no step changes is
// named. Two objects of other names are compared where there is one of each.
func TestDiffLive(t *testing.T) {
	before := file(t, "before.yaml", liveBefore)
	for name, c := range map[string]struct {
		replace []string
		want    []string
		never   string
	}{
		"disk, before the first": {[]string{"disks: [{", liveDisk, "volumes: [{", liveData},
			[]string{"disks[data]", `+ disk/data`, `"id":"disk-data","bus":"pci.3"`}, "root"},
		"first disk on scsi": {[]string{"disks: [{", strings.Replace(liveDisk, "virtio", "scsi", 1), "volumes: [{", liveData},
			[]string{"scsi\n", `"id":"scsi0"`, `"lun":0`}, "restart"},
		"link": {[]string{"masquerade: {}", "masquerade: {}, state: down"},
			[]string{`set_link {"name":"nic-default","up":false}`}, "restart"},
		"CPU":   {[]string{"sockets: 1", "sockets: 2"}, []string{`"id":"cpu-1-0-0"`}, "restart"},
		"cores": {[]string{"sockets: 1,", "cores: 2, sockets: 1,"}, []string{"needs a restart: cpu.cores"}, "device_add"},
		"TPM and renamed": {[]string{"name: web", "name: other", "disks:", "tpm: {}\n      disks:"},
			[]string{"needs a restart: tpm"}, "name\n"},
	} {
		t.Run(name, func(t *testing.T) {
			after := file(t, "after.yaml", strings.NewReplacer(c.replace...).Replace(liveBefore))
			s := runCommand(t, "", "diff", "--live", before, after)
			if s.code != 1 || c.never != "" && strings.Contains(s.out, c.never) {
				t.Errorf("%+v, and never %q", s, c.never)
			}
			for _, want := range c.want {
				if !strings.Contains(s.out, want) {
					t.Errorf("no %q in %s", want, s.out)
				}
			}
		})
	}
	if s := runCommand(t, "", "diff", "--live", before, before); s.code != 0 || s.out != "" {
		t.Errorf("nothing changes: %+v", s)
	}
	if s := runCommand(t, "", "diff", "--live", "--to", "kvm-7.2", before, before); s.code != 2 {
		t.Errorf("two hosts: %+v", s)
	}
	more := strings.Replace(liveBefore, "name: web", "name: more", 1)
	two := file(t, "two.yaml", liveBefore+"---\n"+more)
	s := runCommand(t, "", "diff", "--live", before, two)
	if s.code != 1 || !strings.Contains(s.out, "default/more\n  is new") {
		t.Errorf("a new one: %+v", s)
	}
	s = runCommand(t, "", "diff", "--live", two, before)
	if s.code != 1 || !strings.Contains(s.out, "default/more\n  is gone") {
		t.Errorf("one that is gone: %+v", s)
	}
}
