package e2e

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// serve starts a web server with the tiny guest's disk as /disk/tiny.qcow2, and returns its URL. The
// rate is in bytes a second, 0 for no limit. Not each cluster has image volumes, so a container with
// the disk's image copies the disk.
func serve(t *testing.T, namespace, name string, rate int) string {
	t.Helper()
	apply(t, namespace, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: program
    image: localhost/kubeqemu/virt-launcher:dev
    imagePullPolicy: Never
    command: [/usr/bin/virt-launcher, copy-root, --to=/program]
    volumeMounts: [{name: program, mountPath: /program}]
  - name: disk
    image: %s
    imagePullPolicy: Never
    workingDir: /
    command: [/program/usr/bin/virt-image, copy-files, --to=/www, --most=1000000000, --, /disk/tiny.qcow2]
    volumeMounts: [{name: program, mountPath: /program}, {name: disk, mountPath: /www}]
  containers:
  - name: server
    image: %s
    imagePullPolicy: Never
    command: [webserver, /www, "%d"]
    volumeMounts: [{name: disk, mountPath: /www}]
  volumes: [{name: program, emptyDir: {}}, {name: disk, emptyDir: {}}]
`, name, tinyImage, clientImage, rate))
	kubectl(t, "-n", namespace, "wait", "--for=condition=Ready", "--timeout=600s", "pod/"+name)
	return "http://" + get[corev1.Pod](t, "-n", namespace, "pod", name).Status.PodIP + ":8080"
}

// template is a DataVolume template on storage that binds at the first consumer.
func template(name, source string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"storage":{"storageClassName":"e2e-dynamic","resources":{"requests":{"storage":"256Mi"}}},"source":` + source + `}}`
}

// withTemplates creates a VM whose disks are the DataVolumes of its templates. The first is the root.
func withTemplates(t *testing.T, namespace, name string, templates map[string]string, order ...string) vm {
	t.Helper()
	manifest := manifestOf(t, name, v1.RunStrategyAlways, offline, evictedBy(v1.EvictionStrategyLiveMigrateIfPossible), func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks, s.Volumes = nil, nil
		for _, disk := range order {
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: disk, Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
			s.Volumes = append(s.Volumes, v1.Volume{Name: disk, DataVolume: &v1.DataVolumeSource{Name: name + "-" + disk}})
		}
	})
	var all []string
	for _, disk := range order {
		all = append(all, template(name+"-"+disk, templates[disk]))
	}
	const strategy = `"runStrategy":"Always"`
	if !strings.Contains(manifest, strategy) {
		t.Fatalf("the manifest has no %s", strategy)
	}
	apply(t, namespace, strings.Replace(manifest, strategy, strategy+`,"dataVolumeTemplates":[`+strings.Join(all, ",")+"]", 1))
	return vm{vmi{t: t, namespace: namespace, name: name}}
}

// importedDisks: without CDI, Kubeqemu fills the disks of a VM's templates itself: an image of a web
// server, the same image of a registry and of servers behind a balancer, a raw disk that is compressed in two members, and a blank disk. The
// percentage is seen on the way, and never falls.
func importedDisks(t *testing.T) {
	ns := namespace(t)
	provision(t, ns)
	url, fast := serve(t, ns, "web", 512<<10), serve(t, ns, "fast", 0)
	apply(t, ns, namespacePolicies) // the importers' pods, and those that bind claims, get the limits that they lack
	m := withTemplates(t, ns, "imported", map[string]string{"root": `{"http":{"url":"` + url + `/disk/tiny.qcow2"}}`, "data": `{"blank":{}}`,
		"copy": `{"registry":{"url":"docker://` + tinyImage + `"}}`, "balanced": `{"http":{"url":"` + fast + `/balanced/disk/tiny.qcow2"}}`,
		"packed": `{"http":{"url":"` + fast + `/digits.gz"}}`}, "root", "data", "copy", "balanced", "packed")
	seen := m.followPercentage("imported-root")
	if len(seen) < 2 {
		t.Errorf("the percentages %v were seen on the way, want at least two", seen)
	}
	m.runs("")
	if got := m.in(m.shell(), "blockdev --getsize64 /dev/vdb"); got != fmt.Sprint(256<<20) {
		t.Errorf("the guest's blank disk has %s bytes", got)
	}
	if got := m.in(m.shell(), "for disk in vda vdc vdd; do head -c 512 /dev/$disk | md5sum; done | uniq | wc -l"); got != "1" {
		t.Errorf("the disks of the web servers and of the registry have %s boot sectors", got)
	}
	if got, want := m.in(m.shell(), "head -c 1048576 /dev/vde | md5sum"), sum(strings.Repeat("0", 512<<10)+strings.Repeat("1", 512<<10)); got != want+"  -" {
		t.Errorf("the disk that was compressed has the sum %s, want %s", got, want)
	}
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "--timeout=600s", "datavolume/imported-root", "datavolume/imported-data", "datavolume/imported-copy", "datavolume/imported-balanced", "datavolume/imported-packed")
	if shown := kubectl(t, "-n", ns, "get", "dv", "imported-root"); !strings.Contains(shown, "Succeeded") || !strings.Contains(shown, "100.0%") {
		t.Errorf("kubectl shows\n%s", shown)
	}
	if left := kubectl(t, "-n", ns, "get", "pods", "-o", "name"); strings.Contains(left, "importer") || strings.Contains(left, "consumer") {
		t.Errorf("while the guest runs there is %s", left)
	}
	kubectl(t, "-n", ns, "delete", "vm", "imported", "--timeout=600s")
	nothingLeft(t, ns, "imported")
}

// followPercentage returns the percentages of a DataVolume that were seen before it was filled.
func (m vm) followPercentage(volume string) []float64 {
	m.t.Helper()
	var seen []float64
	if err := poll(func() error {
		found, err := getObject[cdi.DataVolume]("-n", m.namespace, "datavolume", volume)
		if err != nil || found.Status.Phase == cdi.Succeeded {
			return err
		}
		if percent, err := strconv.ParseFloat(strings.TrimSuffix(string(found.Status.Progress), "%"), 64); err == nil && (len(seen) == 0 || percent != seen[len(seen)-1]) {
			if len(seen) > 0 && percent < seen[len(seen)-1] {
				m.t.Errorf("the percentage fell from %v to %v", seen[len(seen)-1], percent)
			}
			seen = append(seen, percent)
		}
		return fmt.Errorf("DataVolume %s is %s %s", volume, found.Status.Phase, found.Status.Progress)
	}); err != nil {
		m.t.Fatal(err)
	}
	return seen
}

// nothingLeft waits until nothing of a VM's disks is there.
func nothingLeft(t *testing.T, namespace, vm string) {
	t.Helper()
	if err := poll(func() error {
		left, err := output("", "kubectl", "-n", namespace, "get", "datavolumes,persistentvolumeclaims,pods", "-o", "name")
		if err == nil && strings.Contains(left, vm+"-") {
			err = fmt.Errorf("after VM %s there is %s", vm, left)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// refusedSources: a source that cannot be had, or may not, is said with its reason, and ends nothing
// else. A VM that is deleted meanwhile leaves nothing.
func refusedSources(t *testing.T) {
	ns := namespace(t)
	provision(t, ns)
	url := serve(t, ns, "web", 0)
	host := get[corev1.Pod](t, "-n", ns, "pod", "web").Status.HostIP
	for name, test := range map[string]struct{ url, words string }{
		"missing":  {url + "/disk/none.qcow2", "404"},
		"node":     {"http://" + host + ":10250/pods", host},
		"loopback": {"http://127.0.0.1:10248/healthz", "127.0.0.1"},
		"metadata": {"http://169.254.169.254/latest/meta-data", "169.254.169.254"},
	} {
		m := withTemplates(t, ns, name, map[string]string{"root": `{"http":{"url":"` + test.url + `"}}`}, "root")
		m.is(v1.VirtualMachineStatusDataVolumeError)
		m.says(v1.ConditionFailure, test.words)
		kubectl(t, "-n", ns, "delete", "vm", name, "--timeout=600s")
		nothingLeft(t, ns, name)
	}
}

// dataVolume creates a DataVolume without a VM, on storage that binds at the first consumer. It is filled
// at once.
func dataVolume(namespace, name, spec string, args ...string) error {
	_, err := output(fmt.Sprintf(`{"apiVersion":"cdi.kubevirt.io/v1beta1","kind":"DataVolume","metadata":{"name":%q,"annotations":{"cdi.kubevirt.io/storage.bind.immediate.requested":""}},"spec":%s}`, name, spec),
		"kubectl", append([]string{"-n", namespace, "create", "-f", "-"}, args...)...)
	return err
}

// ready waits until a DataVolume is filled.
func ready(t *testing.T, namespace, name string) {
	t.Helper()
	kubectl(t, "-n", namespace, "wait", "--for=condition=Ready", "--timeout=600s", "datavolume/"+name)
}

// mayCopy lets somebody copy what a namespace has.
func mayCopy(t *testing.T, namespace, name, subject string) {
	t.Helper()
	apply(t, namespace, fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s}
rules: [{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [%[2]s]
`, name, subject))
}

// noSourcePods waits until a namespace has no source pod.
func noSourcePods(t *testing.T, namespace string) {
	t.Helper()
	if err := poll(func() error {
		left, err := output("", "kubectl", "-n", namespace, "get", "pods", "-l", "kubeqemu.io/source-for", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("namespace %s still has %s", namespace, left)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// copiedDisks: a disk of another namespace is copied, for a VM and without one, by who may, and through a
// DataSource. Nothing is left of it.
func copiedDisks(t *testing.T) {
	golden, ns := namespace(t), namespace(t)
	provision(t, golden)
	provision(t, ns)
	url := serve(t, golden, "web", 0)
	if err := dataVolume(golden, "golden", `{"source":{"http":{"url":"`+url+`/disk/tiny.qcow2"}},"storage":{"storageClassName":"e2e-dynamic","resources":{"requests":{"storage":"256Mi"}}}}`); err != nil {
		t.Fatal(err)
	}
	ready(t, golden, "golden")
	source := `{"pvc":{"namespace":"` + golden + `","name":"golden"}}`
	m := withTemplates(t, ns, "copied", map[string]string{"root": source}, "root")
	m.says(v1.ConditionFailure, "service account default of namespace "+ns+" may not clone from namespace "+golden)
	mayCopy(t, golden, "vms", "{kind: ServiceAccount, name: default, namespace: "+ns+"}")
	m.runs("")
	if got := m.in(m.shell(), "blockdev --getsize64 /dev/vda"); got != fmt.Sprint(256<<20) {
		t.Errorf("the guest's disk has %s bytes", got)
	}
	if shown := kubectl(t, "-n", ns, "get", "events", "-o", "jsonpath={.items[*].reason}"); !strings.Contains(shown, "CloneScheduled") || !strings.Contains(shown, "CloneSucceeded") {
		t.Errorf("the events are %s", shown)
	}
	noSourcePods(t, golden)
	copiedByTenant(t, golden, ns, source)
	kubectl(t, "-n", ns, "delete", "vm", "copied", "--timeout=600s")
	nothingLeft(t, ns, "copied")
}

// copiedByTenant: the same without a VM, by a user who has the right, and not before. While the source is
// in use, the copy waits.
func copiedByTenant(t *testing.T, golden, ns, source string) {
	const storage = `"storage":{"storageClassName":"e2e-dynamic"}}`
	as := tenant(t, ns)
	may(t, ns, as, "create", "datavolumes.cdi.kubevirt.io")
	through := `{"sourceRef":{"kind":"DataSource","name":"golden","namespace":"` + golden + `"},` + storage
	for name, spec := range map[string]string{"direct": `{"source":` + source + "," + storage, "through": through} {
		if err := dataVolume(ns, name, spec, as); err == nil || !strings.Contains(err.Error(), "you may not copy from namespace "+golden) {
			t.Errorf("%s, by who may not: %v", name, err)
		}
	}
	mayCopy(t, golden, "tenant", "{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant-of-"+ns+"}")
	may(t, golden, as, "create", "datavolumes.cdi.kubevirt.io", "--subresource=source")
	apply(t, golden, `{"apiVersion":"cdi.kubevirt.io/v1beta1","kind":"DataSource","metadata":{"name":"golden"},"spec":{"source":`+source+`}}`)
	if err := dataVolume(ns, "through", through, as); err != nil {
		t.Fatal(err)
	}
	ready(t, ns, "through")
	apply(t, golden, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"writer"},"spec":{"terminationGracePeriodSeconds":0,
"containers":[{"name":"c","image":%q,"imagePullPolicy":"Never","command":["busybox","sleep","600"],"volumeMounts":[{"name":"v","mountPath":"/v"}]}],
"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"golden"}}]}}`, clientImage))
	if err := dataVolume(ns, "waits", `{"source":`+source+","+storage, as); err != nil {
		t.Fatal(err)
	}
	if err := poll(func() error {
		said, err := output("", "kubectl", "-n", ns, "get", "datavolume", "waits", "-o", `jsonpath={.status.conditions[?(@.type=="Running")]}`)
		if err == nil && (!strings.Contains(said, "CloneSourceInUse") || !strings.Contains(said, "writer")) {
			err = fmt.Errorf("while a pod uses the source the copy says %s", said)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	kubectl(t, "-n", golden, "delete", "pod", "writer", "--timeout=600s")
	ready(t, ns, "waits")
	// One that goes as soon as it has a source pod.
	if err := dataVolume(ns, "dropped", `{"source":`+source+","+storage, as); err != nil {
		t.Fatal(err)
	}
	if err := poll(func() error {
		made, err := output("", "kubectl", "-n", golden, "get", "pods", "-l", "kubeqemu.io/source-for", "-o", "name")
		if err == nil && made == "" {
			err = errors.New("the copy has no source pod")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	kubectl(t, "-n", ns, "delete", "datavolume", "dropped", "through", "waits", "--timeout=600s")
	noSourcePods(t, golden)
}
