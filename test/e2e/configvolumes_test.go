package e2e

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// files adds a config volume.
func files(disk v1.Disk, volume v1.Volume) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		disk.Name = volume.Name
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, disk)
		s.Volumes = append(s.Volumes, volume)
	}
}

func hardDisk(bus v1.DiskBus) v1.Disk { return v1.Disk{Disk: &v1.DiskTarget{Bus: bus}} }
func cdrom(bus v1.DiskBus) v1.Disk    { return v1.Disk{CDRom: &v1.CDRomTarget{Bus: bus}} }

func settings() v1.Volume {
	return v1.Volume{Name: "settings", ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, VolumeLabel: "settings"}}
}

func keys() v1.Volume {
	return v1.Volume{Name: "keys", Secret: &v1.SecretVolumeSource{SecretName: "keys", VolumeLabel: "Keys.of-16_chars"}}
}

func facts() v1.Volume {
	return v1.Volume{Name: "facts", DownwardAPI: &v1.DownwardAPIVolumeSource{VolumeLabel: "facts", Fields: []corev1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "pod/note", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['note']"}},
		{Path: "pod/memory", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "compute", Resource: "requests.memory"}},
	}}}
}

// object is a manifest of a ConfigMap or a Secret.
func object(t *testing.T, kind, name string, data map[string]string) string {
	t.Helper()
	field := map[string]string{"ConfigMap": "data", "Secret": "stringData"}[kind]
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}, field: data})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hold makes an object or changes it. The objects are too large for the annotation of an apply by the client.
func hold(t *testing.T, namespace, manifest string) {
	t.Helper()
	if _, err := output(manifest, "kubectl", "-n", namespace, "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// onSATA gives the guest the kernel that knows SATA.
func onSATA(s *v1.VirtualMachineInstanceSpec) { s.Volumes[0].ContainerDisk.Image = sataImage }

// mounting mounts the volumes with labels at /tmp/LABEL, anew if they are mounted.
func mounting(labels ...string) string {
	return `modprobe -qa isofs; look() { mkdir -p /tmp/$1; umount /tmp/$1 2>/dev/null; echo 3 >/proc/sys/vm/drop_caches; ` +
		`for i in $(seq 100); do d=$(findfs LABEL=$1 2>/dev/null) && break; usleep 100000; done; mount -o ro -t iso9660 $d /tmp/$1; }; ` +
		`for l in ` + strings.Join(labels, " ") + `; do look $l || echo "no volume $l"; done; `
}

// sum is the md5 sum of a text as the guest prints it.
func sum(text string) string { return fmt.Sprintf("%x", md5.Sum([]byte(text))) }

// TestConfigVolumes: a guest reads the files of a ConfigMap, a Secret, the downward API, a service account and answer files,
// each on another kind of disk. A missing ConfigMap holds the guest up, and the VMI says so. After a restart the guest has
// what the ConfigMap holds then.
func TestConfigVolumes(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	long := strings.Repeat("long-name.", 25) + "end"
	large := strings.Repeat("0123456789abcdef", 16<<10)
	hold(t, ns, object(t, "Secret", "keys", map[string]string{"token": "secret\n", "large": large}))
	hold(t, ns, object(t, "ConfigMap", "answers", map[string]string{"Autounattend.xml": "<unattend/>", "script.ps1": "# script"}))
	kubectl(t, "-n", ns, "create", "serviceaccount", "robot")
	m := createVM(t, ns, "files", v1.RunStrategyAlways, offline, onSATA, bootsKernel,
		files(hardDisk(v1.DiskBusVirtio), settings()), files(cdrom(v1.DiskBusSATA), keys()), files(hardDisk(v1.DiskBusSATA), facts()),
		files(hardDisk(v1.DiskBusSCSI), v1.Volume{Name: "robot", ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "robot"}}),
		files(cdrom(v1.DiskBusSCSI), v1.Volume{Name: "answers", Sysprep: &v1.SysprepSource{ConfigMap: &corev1.LocalObjectReference{Name: "answers"}}}),
		files(cdrom(v1.DiskBusSCSI), v1.Volume{Name: "none", ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Optional: new(bool), VolumeLabel: "none"}}),
		func(s *v1.VirtualMachineInstanceSpec) { *s.Volumes[len(s.Volumes)-1].ConfigMap.Optional = true })
	if err := poll(func() error { _, err := getObject[v1.VirtualMachineInstance]("-n", ns, "vmi", m.name); return err }); err != nil {
		t.Fatal(err)
	}
	m.awaitCondition(v1.ConditionSynchronized, v1.ReasonMountFailed, `configmap "settings" not found`)
	hold(t, ns, object(t, "ConfigMap", "settings", map[string]string{"greeting": "hello", "Greeting": "Hello", long: "long", ".hidden": ""}))
	m.runs("")
	if s := m.get().Status.Condition(v1.ConditionSynchronized); s != nil && s.Status == metav1.ConditionFalse {
		t.Errorf("the guest runs, and the VMI says %+v", s)
	}
	// The token ends with its pod.
	if c := m.condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "robot, has a token") {
		t.Errorf("LiveMigratable is %+v", c)
	}
	shell := m.shell()
	if out := m.in(shell, mounting("settings", "Keys.of-16_chars", "facts", "cfgdata", "unattendCD", "none")+"true"); out != "" {
		t.Fatal(out)
	}
	for command, want := range map[string]string{
		"cat /tmp/settings/greeting":                   "hello",
		"cat /tmp/settings/Greeting":                   "Hello",
		"cat /tmp/settings/" + long:                    "long",
		"ls -A /tmp/settings | wc -l":                  "4",
		"cat /tmp/Keys.of-16_chars/token":              "secret",
		"md5sum </tmp/Keys.of-16_chars/large":          sum(large) + "  -",
		"cat /tmp/facts/labels | grep -c kubevirt.io=": "1",
		"cat /tmp/facts/pod/memory":                    fmt.Sprint(m.pod().Spec.Containers[0].Resources.Requests.Memory().Value()),
		"cat /tmp/cfgdata/namespace":                   ns,
		"md5sum </tmp/cfgdata/ca.crt":                  sum(get[corev1.ConfigMap](t, "-n", ns, "configmap", "kube-root-ca.crt").Data["ca.crt"]) + "  -",
		"cat /tmp/unattendCD/Autounattend.xml":         "<unattend/>",
		"ls /tmp/unattendCD | tr '\\n' ' '":            "Autounattend.xml script.ps1",
		"ls -A /tmp/none | wc -l":                      "0",
		// Only a hard disk on sata can be written to. Which is sda is chance: the guest looks for disks of sata and scsi at once.
		"blockdev --getro $(findfs LABEL=settings)":      "1",
		"blockdev --getro $(findfs LABEL=facts)":         "0",
		"blockdev --getro $(findfs LABEL=cfgdata)":       "1",
		"touch /tmp/settings/x 2>&1 | grep -c Read-only": "1",
	} {
		if got := m.in(shell, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	token := m.in(shell, "cat /tmp/cfgdata/token")
	review := fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":%q}}`, token)
	if who, err := output(review, "kubectl", "create", "-f", "-", "-o", "jsonpath={.status.user.username}"); err != nil || who != "system:serviceaccount:"+ns+":robot" {
		t.Errorf("the token is that of %q (%v)", who, err)
	}
	for _, v := range m.pod().Spec.Volumes {
		if strings.HasPrefix(v.Name, "kube-api-access") {
			t.Error("the launcher has a token of its own")
		}
	}
	hold(t, ns, object(t, "ConfigMap", "settings", map[string]string{"greeting": "good evening"}))
	if got := m.in(shell, mounting("settings")+"cat /tmp/settings/greeting"); got != "hello" {
		t.Errorf("the disk of a running guest has changed: %q", got)
	}
	before := m.uid()
	asksRestart(m)
	m.runs(before)
	if got := m.in(m.shell(), mounting("settings")+"cat /tmp/settings/greeting; ls -A /tmp/settings | wc -l"); got != "good evening1" && got != "good evening\n1" {
		t.Errorf("after a restart the disk has %q", got)
	}
}

// TestConfigVolumeRefused: a volume of which no disk can be made ends the VMI, which says why, and names the volume.
func TestConfigVolumeRefused(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	hold(t, ns, object(t, "ConfigMap", "answers", map[string]string{"unattended.xml": "<unattend/>"}))
	many := map[string]string{}
	for i := range 600 {
		many[fmt.Sprint("key-", i)] = ""
	}
	hold(t, ns, object(t, "ConfigMap", "many", many))
	for name, c := range map[string]struct {
		volume v1.Volume
		says   string
	}{
		"answers": {v1.Volume{Name: "answers", Sysprep: &v1.SysprepSource{ConfigMap: &corev1.LocalObjectReference{Name: "answers"}}},
			"spec.volumes[1].sysprep: Invalid value: \"answers\": neither autounattend.xml nor unattend.xml is among the files"},
		"many": {v1.Volume{Name: "many", ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "many"}}},
			"there are more than 512 files and folders"},
	} {
		v := create(t, ns, tiny(name, offline, files(cdrom(v1.DiskBusSATA), c.volume)))
		v.await(v1.Failed)
		if now, err := json.Marshal(v.get().Status); err != nil || !strings.Contains(string(now), strings.ReplaceAll(c.says, `"`, `\"`)) {
			t.Errorf("%s: status %s, want %s in it", name, now, c.says)
		}
	}
}

// TestMigrationConfigVolumes: a guest that moves keeps the files that it started with, also those of a ConfigMap that has
// changed or is gone since.
func TestMigrationConfigVolumes(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	random := make([]byte, 300<<10)
	for i := range random {
		random[i] = byte(i * i >> 3)
	}
	text := base64.StdEncoding.EncodeToString(random)
	hold(t, ns, object(t, "ConfigMap", "settings", map[string]string{"greeting": "hello", "text": text}))
	hold(t, ns, object(t, "Secret", "keys", map[string]string{"token": "secret"}))
	m := createVM(t, ns, "files", v1.RunStrategyAlways, offline, onSATA,
		files(cdrom(v1.DiskBusSATA), settings()), files(hardDisk(v1.DiskBusVirtio), keys()), files(hardDisk(v1.DiskBusSATA), facts()))
	m.runs("")
	uid := m.uid()
	if c := m.condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionTrue || m.get().Status.MigrationMethod != v1.MethodBlockMigration {
		t.Errorf("LiveMigratable is %+v by %s", c, m.get().Status.MigrationMethod)
	}
	read := func() string {
		t.Helper()
		return m.in(m.shell(), mounting("settings", "Keys.of-16_chars", "facts")+
			"cat /tmp/settings/greeting; md5sum </tmp/settings/text; cat /tmp/Keys.of-16_chars/token; md5sum </tmp/facts/labels")
	}
	before := read()
	if !strings.Contains(before, sum(text)) || !strings.Contains(before, "secret") || !strings.Contains(before, "hello") {
		t.Fatalf("the guest reads %q", before)
	}
	hold(t, ns, object(t, "ConfigMap", "settings", map[string]string{"greeting": "good evening"}))
	hold(t, ns, object(t, "Secret", "keys", map[string]string{"token": strings.Repeat("other", 50_000)}))
	for i := range 2 {
		if i == 1 {
			kubectl(t, "-n", ns, "delete", "configmap/settings", "secret/keys")
		}
		begun := time.Now()
		m.migrate(fmt.Sprint("move-", i), nil).ends(v1.MigrationSucceeded)
		t.Logf("moved in %.1f s", time.Since(begun).Seconds())
		if after := read(); after != before {
			t.Errorf("after the move the guest reads %q, and read %q", after, before)
		}
	}
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
}
