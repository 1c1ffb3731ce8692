//go:build long

// Package thirdparty runs Kubeqemu beside the real CDI and the real local-path-provisioner, whose
// storage binds at the first consumer. `make third-party` builds both and makes the cluster.
package thirdparty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// patience is how long what CDI does may take.
const patience = 5 * time.Minute

// run runs kubectl, with text as its input.
func run(text string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Stdin = strings.NewReader(text)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// place is a namespace of a test.
type place struct {
	*testing.T
	namespace string
}

func newPlace(t *testing.T, namespace string) place {
	t.Helper()
	p := place{t, namespace}
	if _, err := run("", "create", "namespace", namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			all, _ := run("", "-n", namespace, "get", "vm,vmi,datavolume,pvc,pod,events", "-o", "wide")
			t.Logf("namespace %s:\n%s", namespace, all)
		}
		if _, err := run("", "delete", "namespace", namespace, "--timeout=4m"); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p place) kubectl(args ...string) string {
	p.Helper()
	out, err := run("", append([]string{"-n", p.namespace}, args...)...)
	if err != nil {
		p.Fatal(err)
	}
	return out
}

func (p place) apply(text string) {
	p.Helper()
	if _, err := run(text, "-n", p.namespace, "apply", "-f", "-"); err != nil {
		p.Fatal(err)
	}
}

// until waits for something that comes by itself.
func (p place) until(ask func() error) {
	p.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if err = ask(); err == nil {
			return
		}
	}
	p.Fatal(err)
}

// says waits until a condition of a VM has words in its message.
func (p place) says(vm, condition, words string) {
	p.Helper()
	p.until(func() error {
		got := p.kubectl("get", "vm", vm, "-o", `jsonpath={.status.conditions[?(@.type=="`+condition+`")].message}`)
		if !strings.Contains(got, words) {
			return fmt.Errorf("condition %s of VM %s says %q, want %q in it", condition, vm, got, words)
		}
		return nil
	})
}

// boots waits until a VM's guest runs, and its shell answers on the console.
func (p place) boots(vm string) {
	p.Helper()
	seen := map[string]bool{}
	p.until(func() error {
		got := p.kubectl("get", "vm", vm, "-o", `jsonpath={.status.printableStatus}: {.status.conditions[?(@.type=="Provisioning")].message}`)
		if !seen[got] {
			seen[got] = true
			p.Logf("%s is %s", vm, got)
		}
		if !strings.HasPrefix(got, "Running") {
			return fmt.Errorf("VM %s is %s", vm, got)
		}
		return nil
	})
	pod := p.kubectl("get", "pods", "-l", "kubevirt.io=virt-launcher,vm.kubevirt.io/name="+vm, "-o", "name")
	if pod == "" {
		pod = p.kubectl("get", "pods", "-l", "kubevirt.io=virt-launcher", "-o", "name")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "kubectl", "-n", p.namespace, "exec", "-i", pod, "--", "virt-launcher", "console")
	in, err := cmd.StdinPipe()
	if err != nil {
		p.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	defer func() {
		cancel()
		cmd.Wait()
	}()
	go func() {
		// A guest that still boots drops what is typed.
		for ctx.Err() == nil {
			io.WriteString(in, "echo $((6*7))-up\r")
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
		}
	}()
	var all []byte
	part := make([]byte, 4096)
	for !bytes.Contains(all, []byte("42-up")) {
		n, err := out.Read(part)
		all = append(all, part[:n]...)
		if err != nil {
			p.Fatalf("the console ended (%v) after %q", errors.Join(err, ctx.Err()), all)
		}
	}
}

// storage names the access mode: CDI knows none of local-path-provisioner.
const storage = "storage: {storageClassName: local-path, accessModes: [ReadWriteOnce], resources: {requests: {storage: 256Mi}}}"

// vm is a VM whose only disk is the DataVolume of a source.
func vm(name, source string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %[1]s}
spec:
  runStrategy: Always
  dataVolumeTemplates:
  - metadata: {name: %[1]s-root}
    spec: {%[2]s, %[3]s}
  template:
    metadata: {labels: {vm.kubevirt.io/name: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 0
      domain:
        devices: {disks: [{name: root, disk: {bus: virtio}}], autoattachPodInterface: false}
        memory: {guest: 128Mi}
      volumes: [{name: root, dataVolume: {name: %[1]s-root}}]
`, name, storage, source)
}

const webServer = `apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: "localhost/third-party/web-server:dev", imagePullPolicy: Never}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestVMWithRealCDI: a VM with DataVolumeTemplates on storage that binds at the first consumer reaches its
// shell, and takes its disk with it. CDI begins to clone the first one's disk for a VM of another
// namespace, once that VM's service account may.
func TestVMWithRealCDI(t *testing.T) {
	images := newPlace(t, "images")
	images.apply(webServer)
	images.kubectl("wait", "--for=condition=Ready", "--timeout=2m", "pod/web")
	address := images.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	http := `source: {http: {url: "http://` + address + `/tiny.qcow2"}}`

	images.apply(strings.Replace(vm("imported", http), "accessModes: [ReadWriteOnce], ", "", 1))
	images.says("imported", "Failure", "no accessMode")
	images.kubectl("delete", "vm", "imported", "--timeout=2m")

	images.apply(vm("imported", http))
	images.boots("imported")
	if message := images.kubectl("get", "vm", "imported", "-o", `jsonpath={.status.conditions[?(@.type=="Provisioning")].message}`); message != "" {
		t.Errorf("while the guest runs the VM says %q", message)
	}
	if left := images.kubectl("get", "pods", "-l", "kubevirt.io=virt-consumer", "-o", "name"); left != "" {
		t.Errorf("while the guest runs there is %s", left)
	}
	images.kubectl("patch", "vm", "imported", "--type=merge", "-p", `{"spec":{"runStrategy":"Halted"}}`)
	images.kubectl("wait", "--for=delete", "--timeout=2m", "vmi/imported")
	images.apply("apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataSource\nmetadata: {name: golden}\nspec: {source: {pvc: {namespace: images, name: imported-root}}}\n")

	clones := newPlace(t, "clones")
	clones.apply(vm("cloned", "sourceRef: {kind: DataSource, namespace: images, name: golden}"))
	clones.says("cloned", "Failure", "that service account default of namespace clones may clone")
	images.kubectl("create", "role", "clone", "--verb=create", "--resource=datavolumes.cdi.kubevirt.io/source")
	images.kubectl("create", "rolebinding", "clone", "--role=clone", "--serviceaccount=clones:default")
	// CDI's cloner looks its target up in the cluster's DNS. This cluster has no DNS, so the clone
	// ends here.
	clones.says("cloned", "Provisioning", "DataVolume cloned-root is CloneInProgress")

	images.apply(vm("wrong", `source: {http: {url: "http://`+address+`/none"}}`))
	images.until(func() error {
		if got := images.kubectl("get", "vm", "wrong", "-o", "jsonpath={.status.printableStatus}"); got != "DataVolumeError" {
			return fmt.Errorf("VM wrong is %s", got)
		}
		return nil
	})
	images.says("wrong", "Synchronized", "404")

	for _, of := range []struct {
		place
		vm string
	}{{clones, "cloned"}, {images, "wrong"}, {images, "imported"}} { // a clone in progress holds its source
		of.kubectl("delete", "vm", of.vm, "--timeout=2m")
		of.until(func() error {
			// CDI's own pods of the disk go with it.
			if left := of.kubectl("get", "datavolumes,persistentvolumeclaims,pods", "-o", "name", "--selector=app!=web"); strings.Contains(left, of.vm) {
				return fmt.Errorf("after VM %s there is %s", of.vm, left)
			}
			return nil
		})
	}
}
