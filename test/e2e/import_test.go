package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// serve starts a web server with the tiny guest's disk as /disk/tiny.qcow2, and returns its URL. The
// rate is in bytes a second, 0 for no limit.
func serve(t *testing.T, namespace, name string, rate int) string {
	t.Helper()
	apply(t, namespace, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: server
    image: %s
    imagePullPolicy: Never
    command: [webserver, /www, "%d"]
    volumeMounts: [{name: disk, mountPath: /www}]
  volumes: [{name: disk, image: {reference: %q, pullPolicy: Never}}]
`, name, clientImage, rate, tinyImage))
	kubectl(t, "-n", namespace, "wait", "--for=condition=Ready", "--timeout=120s", "pod/"+name)
	return "http://" + get[corev1.Pod](t, "-n", namespace, "pod", name).Status.PodIP + ":8080"
}

// template is a DataVolume template on storage that binds at the first consumer.
func template(name, source string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"storage":{"storageClassName":"e2e-dynamic","resources":{"requests":{"storage":"256Mi"}}},"source":` + source + `}}`
}

// withTemplates creates a VM whose disks are the DataVolumes of its templates. The first is the root.
func withTemplates(t *testing.T, namespace, name string, templates map[string]string, order ...string) vm {
	t.Helper()
	manifest := manifestOf(t, name, v1.RunStrategyAlways, offline, func(s *v1.VirtualMachineInstanceSpec) {
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
// server, the same image of a registry, and a blank disk. The percentage is seen on the way, and never
// falls.
func importedDisks(t *testing.T) {
	ns := namespace(t)
	provision(t, ns)
	url := serve(t, ns, "web", 512<<10)
	m := withTemplates(t, ns, "imported", map[string]string{"root": `{"http":{"url":"` + url + `/disk/tiny.qcow2"}}`, "data": `{"blank":{}}`,
		"copy": `{"registry":{"url":"docker://` + tinyImage + `"}}`}, "root", "data", "copy")
	seen := m.followPercentage("imported-root")
	if len(seen) < 2 {
		t.Errorf("the percentages %v were seen on the way, want at least two", seen)
	}
	m.runs("")
	if got := m.in(m.shell(), "blockdev --getsize64 /dev/vdb"); got != fmt.Sprint(256<<20) {
		t.Errorf("the guest's blank disk has %s bytes", got)
	}
	if got := m.in(m.shell(), "for disk in vda vdc; do head -c 512 /dev/$disk | md5sum; done | uniq | wc -l"); got != "1" {
		t.Errorf("the disks of the web server and of the registry have %s boot sectors", got)
	}
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "--timeout=30s", "datavolume/imported-root", "datavolume/imported-data", "datavolume/imported-copy")
	if shown := kubectl(t, "-n", ns, "get", "dv", "imported-root"); !strings.Contains(shown, "Succeeded") || !strings.Contains(shown, "100.0%") {
		t.Errorf("kubectl shows\n%s", shown)
	}
	if left := kubectl(t, "-n", ns, "get", "pods", "-o", "name"); strings.Contains(left, "importer") || strings.Contains(left, "consumer") {
		t.Errorf("while the guest runs there is %s", left)
	}
	kubectl(t, "-n", ns, "delete", "vm", "imported", "--timeout=120s")
	nothingLeft(t, ns, "imported")
}

// followPercentage returns the percentages of a DataVolume that were seen before it was filled.
func (m vm) followPercentage(volume string) []float64 {
	m.t.Helper()
	var seen []float64
	if err := poll(120*time.Second, func() error {
		line, err := output("", "kubectl", "-n", m.namespace, "get", "datavolume", volume, "-o", "jsonpath={.status.phase} {.status.progress}")
		phase, text, _ := strings.Cut(line, " ")
		if err != nil || phase == "Succeeded" {
			return err
		}
		if percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64); err == nil && (len(seen) == 0 || percent != seen[len(seen)-1]) {
			if len(seen) > 0 && percent < seen[len(seen)-1] {
				m.t.Errorf("the percentage fell from %v to %v", seen[len(seen)-1], percent)
			}
			seen = append(seen, percent)
		}
		return fmt.Errorf("DataVolume %s is %s", volume, line)
	}); err != nil {
		m.t.Fatal(err)
	}
	return seen
}

// nothingLeft waits until nothing of a VM's disks is there.
func nothingLeft(t *testing.T, namespace, vm string) {
	t.Helper()
	if err := poll(120*time.Second, func() error {
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
		kubectl(t, "-n", ns, "delete", "vm", name, "--timeout=120s")
		nothingLeft(t, ns, name)
	}
}
