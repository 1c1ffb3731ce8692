package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestImportFaults: importers that are killed, many side by side, VMs that are deleted meanwhile, and a power cut.
func TestImportFaults(t *testing.T) {
	t.Run("killed", importerKilled)
	t.Run("side by side", importersSideBySide)
	t.Run("deleted", deletedWhileImporting)
	t.Run("power cut", powerCutWhileImporting)
}

// volumes are DataVolumes without VMs, in a namespace that has a provisioner and a web server.
type volumes struct {
	claims
	url string
}

// newVolumes starts a web server behind a Service: after a power cut its pod has another address.
func newVolumes(t *testing.T, rate int) volumes {
	t.Helper()
	ns := namespace(t)
	v := volumes{claims: provision(t, ns)}
	serve(t, ns, "web", rate)
	kubectl(t, "-n", ns, "label", "pod", "web", "app=web")
	apply(t, ns, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`)
	v.url = "http://" + get[corev1.Service](t, "-n", ns, "service", "web").Spec.ClusterIP
	return v
}

// create creates a DataVolume that waits for no other pod than its importer.
func (v volumes) create(name string) {
	v.t.Helper()
	apply(v.t, v.namespace, `{"apiVersion":"cdi.kubevirt.io/v1beta1","kind":"DataVolume","metadata":{"name":"`+name+`",
		"annotations":{"cdi.kubevirt.io/storage.bind.immediate.requested":""}},
		"spec":{"storage":{"storageClassName":"e2e-dynamic","resources":{"requests":{"storage":"256Mi"}}},"source":{"http":{"url":"`+v.url+`/disk/tiny.qcow2"}}}}`)
}

// is waits for a phase of a DataVolume.
func (v volumes) is(name string, phases ...string) {
	v.t.Helper()
	if err := poll(func() error {
		got, err := output("", "kubectl", "-n", v.namespace, "get", "datavolume", name, "-o", "jsonpath={.status.phase}")
		if err == nil && !slices.Contains(phases, got) {
			err = fmt.Errorf("DataVolume %s is %s, want %v", name, got, phases)
		}
		return err
	}); err != nil {
		v.t.Fatal(err)
	}
}

// percentage is how much of a DataVolume is filled.
func (v volumes) percentage(name string) float64 {
	v.t.Helper()
	text := kubectl(v.t, "-n", v.namespace, "get", "datavolume", name, "-o", "jsonpath={.status.progress}")
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil {
		return 0 // N/A
	}
	return percent
}

// sum is the SHA-256 of a DataVolume's disk.
func (v volumes) sum(name string) string {
	v.t.Helper()
	uid := kubectl(v.t, "-n", v.namespace, "get", "persistentvolumeclaim", name, "-o", "jsonpath={.metadata.uid}")
	out, err := onNode(`sha256sum < "$1"`, filepath.Join(v.nodeFolder(uid), "disk.img"))
	if err != nil {
		v.t.Fatal(err)
	}
	return strings.Fields(out)[0]
}

// convertedSum is the SHA-256 of the disk that qemu-img makes of the tiny guest's image.
func convertedSum(t *testing.T, size int64) string {
	t.Helper()
	folder := t.TempDir()
	raw := filepath.Join(folder, "disk.img")
	archive := filepath.Join("..", "..", "_output", "images", "tiny-virtio-container-disk.tar")
	if out, err := output("", "sh", "-c", `cd "$1" && tar -xf "$2" && for layer in *.tar.gz; do tar -xzf "$layer"; done && qemu-img convert -O raw disk/tiny.qcow2 "$3"`,
		"sh", folder, absolute(t, archive), raw); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Truncate(raw, size); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// importers are the processes of virt-importer, and how much memory each had at most, in KiB.
func importers(t *testing.T) map[int]int {
	t.Helper()
	out, err := onNode(`for p in $(pidof virt-importer); do echo "$p $(awk '/^VmHWM/{print $2}' /proc/$p/status)"; done; true`)
	if err != nil {
		t.Fatal(err)
	}
	peaks := map[int]int{}
	for line := range strings.Lines(out) {
		var pid, peak int
		if _, err := fmt.Sscan(line, &pid, &peak); err == nil { // else the process has just ended
			peaks[pid] = peak
		}
	}
	return peaks
}

// importerKilled: an importer whose process or pod is ended ten times fills the disk as qemu-img does, and the
// percentage does not fall meanwhile.
func importerKilled(t *testing.T) {
	v := newVolumes(t, 768<<10)
	v.create("killed")
	const kills, processes = 10, 2 // the kubelet's pause before it starts a container again doubles each time
	last := 0.0
	follow := func() float64 {
		now := v.percentage("killed")
		if now < last {
			t.Errorf("the percentage fell from %v to %v", last, now)
		}
		last = max(last, now)
		return now
	}
	gone := ""
	for kill := range kills {
		if err := poll(func() error {
			follow()
			pod, err := getObject[corev1.Pod]("-n", v.namespace, "pod", "importer-killed")
			if err != nil {
				return err
			}
			running := string(pod.UID) != gone && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Running != nil
			if !running || int(pod.Status.ContainerStatuses[0].RestartCount) != min(kill, processes) && kill <= processes || len(importers(t)) == 0 {
				return fmt.Errorf("kill %d: the importer does not run: %+v", kill, pod.Status)
			}
			if began := pod.Status.ContainerStatuses[0].State.Running.StartedAt; time.Since(began.Time) < time.Duration(kill)*time.Second {
				return fmt.Errorf("kill %d: the importer has run since %s", kill, began)
			}
			gone = ""
			if kill >= processes {
				gone = string(pod.UID)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if kill < processes {
			for pid := range importers(t) {
				if _, err := onNode(`kill -KILL "$1"`, fmt.Sprint(pid)); err != nil {
					t.Fatal(err)
				}
			}
		} else {
			kubectl(t, "-n", v.namespace, "delete", "pod", "importer-killed", "--grace-period=1")
		}
	}
	if err := poll(func() error {
		if now := follow(); now < 100 {
			return fmt.Errorf("%v %% are filled", now)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	v.is("killed", "Succeeded")
	if got, want := v.sum("killed"), convertedSum(t, 256<<20); got != want {
		t.Errorf("the disk's SHA-256 is %s, qemu-img's disk has %s", got, want)
	}
	restarts, err := strconv.Atoi(kubectl(t, "-n", v.namespace, "get", "datavolume", "killed", "-o", "jsonpath={.status.restartCount}"))
	if err != nil || restarts < processes {
		t.Errorf("%d restarts are counted (%v)", restarts, err)
	}
}

// importersSideBySide: twenty imports at once all end, none of them is killed for its memory.
func importersSideBySide(t *testing.T) {
	v := newVolumes(t, 2<<20)
	const count = 20
	for i := range count {
		v.create(fmt.Sprintf("beside-%d", i))
	}
	peak, most := 0, 0
	if err := poll(func() error {
		now := importers(t)
		most = max(most, len(now))
		for _, p := range now {
			peak = max(peak, p)
		}
		out, err := output("", "kubectl", "-n", v.namespace, "get", "datavolume", "-o", "jsonpath={.items[*].status.phase}")
		if err == nil && strings.Count(out, "Succeeded") < count {
			err = fmt.Errorf("the DataVolumes are %s", out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d importers at once, the largest had %d MiB", most, peak>>10)
	if restarts := kubectl(t, "-n", v.namespace, "get", "datavolume", "-o", "jsonpath={.items[*].status.restartCount}"); strings.Trim(restarts, "0 ") != "" {
		t.Errorf("importers were started again: %s", restarts)
	}
	want := convertedSum(t, 256<<20)
	for i := range count {
		if got := v.sum(fmt.Sprintf("beside-%d", i)); got != want {
			t.Errorf("disk %d: SHA-256 %s, want %s", i, got, want)
		}
	}
}

// deletedWhileImporting: whenever a VM is deleted while its disk is filled, nothing of the VM is left.
func deletedWhileImporting(t *testing.T) {
	v := newVolumes(t, 512<<10)
	source := `{"http":{"url":"` + v.url + `/disk/tiny.qcow2"}}`
	for name, reached := range map[string]func(volume string){
		"at-once":   func(string) {},
		"scheduled": func(volume string) { v.is(volume, "ImportScheduled", "ImportInProgress") },
		"running":   func(volume string) { v.is(volume, "ImportInProgress") },
		"halfway": func(volume string) {
			if err := poll(func() error {
				if now := v.percentage(volume); now < 20 {
					return fmt.Errorf("%v %% are filled", now)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		},
		"filled": func(volume string) { v.is(volume, "Succeeded") },
	} {
		withTemplates(t, v.namespace, name, map[string]string{"root": source}, "root")
		reached(name + "-root")
		kubectl(t, "-n", v.namespace, "delete", "vm", name, "--timeout=600s")
		nothingLeft(t, v.namespace, name)
		if left := importers(t); len(left) > 0 {
			t.Errorf("after VM %s there are importers: %v", name, left)
		}
	}
}

// powerCutWhileImporting: after a power cut in the middle of an import, the VM runs by itself.
func powerCutWhileImporting(t *testing.T) {
	v := newVolumes(t, 512<<10)
	m := withTemplates(t, v.namespace, "cut", map[string]string{"root": `{"http":{"url":"` + v.url + `/disk/tiny.qcow2"}}`}, "root")
	if err := poll(func() error {
		if now := v.percentage("cut-root"); now < 50 {
			return fmt.Errorf("%v %% are filled", now)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p := power{t}
	p.cut()
	p.cluster("power-on")
	p.back(time.Now(), []vm{m}, []types.UID{""})
	m.runs("")
	if got := m.in(m.shell(), "blockdev --getsize64 /dev/vda"); got != fmt.Sprint(256<<20) {
		t.Errorf("the guest's disk has %s bytes", got)
	}
	kubectl(t, "-n", v.namespace, "delete", "vm", "cut", "--timeout=600s")
	nothingLeft(t, v.namespace, "cut")
}
