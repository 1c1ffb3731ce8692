package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	poolv1beta1 "github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

type renderOptions struct {
	host        string
	accelerator string
	version     string
	machine     bool
}

func render(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var o renderOptions
	flags := flag.NewFlagSet("render", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.host, "host", "", "YAML `file` with what node and pod say (resolve.Host); without it, every container disk is taken for /disk/disk.qcow2 of 1 GiB, every claim for one with a disk on a file system, and every MTU for 1500")
	flags.StringVar(&o.accelerator, "accelerator", "kvm", "`kvm or tcg`, without --host")
	flags.StringVar(&o.version, "qemu-version", "11.1.3", "the node's QEMU `version`, without --host")
	flags.BoolVar(&o.machine, "machine", false, "print the resolved Machine as JSON instead of the command line")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	files := flags.Args()
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		if err := renderFile(name, o, stdin, stdout); err != nil {
			return err
		}
	}
	return nil
}

func renderFile(name string, o renderOptions, stdin io.Reader, stdout io.Writer) error {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	var m manifest
	reader := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for {
		document, err := reader.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m = append(m, document)
	}
	found := false
	for _, document := range m {
		rendered, err := m.render(document, o, stdout)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		found = found || rendered
	}
	if !found {
		return fmt.Errorf("%s: holds no VirtualMachineInstance, nor a kind that makes some", name)
	}
	return nil
}

// manifest holds a file's documents. A VM's instancetype and preference must be among them.
type manifest [][]byte

// uid stands for the UID that the API server would give. The UUID, the serial number and the
// MACs are computed from it.
const uid = "00000000-0000-4000-8000-000000000000"

// render prints one document, and ignores other kinds.
func (m manifest) render(document []byte, o renderOptions, stdout io.Writer) (bool, error) {
	vmi, err := m.instance(document)
	if vmi == nil || err != nil {
		return false, err
	}
	host, err := o.hostOf(vmi)
	if err != nil {
		return false, err
	}
	machine, errs := resolve.Machine(vmi, host)
	if len(errs) > 0 {
		return false, fmt.Errorf("VirtualMachineInstance %q is invalid: %w", vmi.Name, errs.ToAggregate())
	}
	if o.machine {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		return true, out.Encode(machine)
	}
	_, err = io.WriteString(stdout, qemuargs.Quote(path.Base(layout.QEMU), machine.Args()))
	return true, err
}

// instance reads a VMI, or makes the VMI of a VM, ReplicaSet or pool. It returns nil for other
// kinds.
func (m manifest) instance(document []byte) (vmi *v1.VirtualMachineInstance, err error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, err
	}
	switch kind.GroupVersionKind() {
	case v1.VirtualMachineInstanceGroupVersionKind:
		vmi = &v1.VirtualMachineInstance{}
		err = decodeStrict(document, vmi)
	case v1.VirtualMachineGroupVersionKind:
		vmi, err = m.ofVirtualMachine(document)
	case v1.VirtualMachineInstanceReplicaSetGroupVersionKind:
		vmi, err = ofReplicaSet(document)
	case poolv1beta1.VirtualMachinePoolGroupVersionKind:
		vmi, err = m.ofPool(document)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if vmi.Namespace == "" {
		vmi.Namespace = metav1.NamespaceDefault
	}
	if vmi.UID == "" {
		vmi.UID = uid
	}
	return vmi, nil
}

// ofVirtualMachine is the VMI that the VM would be started as.
func (m manifest) ofVirtualMachine(document []byte) (*v1.VirtualMachineInstance, error) {
	vm := &v1.VirtualMachine{}
	plain, err := passOverMeta(document)
	if err == nil {
		err = decodeStrict(plain, vm)
	}
	if err != nil {
		return nil, err
	}
	return m.start(vm)
}

// ofPool is the VMI of a pool's first VM.
func (m manifest) ofPool(document []byte) (*v1.VirtualMachineInstance, error) {
	pool := &poolv1beta1.VirtualMachinePool{}
	if err := decodeStrict(document, pool); err != nil {
		return nil, err
	}
	if errs := poolv1beta1.Validate(pool); len(errs) > 0 {
		return nil, fmt.Errorf("VirtualMachinePool %q is invalid: %w", pool.Name, errs.ToAggregate())
	}
	return m.start(&v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: pool.Name + "-0", Namespace: pool.Namespace}, Spec: pool.Spec.VirtualMachineTemplate.Spec})
}

// start is the VMI that a VM is started as.
func (m manifest) start(vm *v1.VirtualMachine) (*v1.VirtualMachineInstance, error) {
	if vm.UID == "" {
		vm.UID = uid
	}
	size, err := m.size(vm.Spec.Instancetype)
	if err != nil {
		return nil, fmt.Errorf("VirtualMachine %q: %w", vm.Name, err)
	}
	preference, err := m.preference(vm.Spec.Preference)
	if err != nil {
		return nil, fmt.Errorf("VirtualMachine %q: %w", vm.Name, err)
	}
	expanded, errs := instancetype.Expand(vm, size, preference)
	if len(errs) > 0 {
		return nil, fmt.Errorf("VirtualMachine %q is invalid: %w", vm.Name, errs.ToAggregate())
	}
	return expanded.Instance(&v1.KubeVirtConfiguration{}, false), nil
}

// ofReplicaSet is a VMI of a ReplicaSet. It has the ReplicaSet's name.
func ofReplicaSet(document []byte) (*v1.VirtualMachineInstance, error) {
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	plain, err := passOverMeta(document)
	if err == nil {
		err = decodeStrict(plain, rs)
	}
	if err != nil {
		return nil, err
	}
	if errs := v1.ValidateReplicaSet(rs); len(errs) > 0 {
		return nil, fmt.Errorf("VirtualMachineInstanceReplicaSet %q is invalid: %w", rs.Name, errs.ToAggregate())
	}
	return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: rs.Name, Namespace: rs.Namespace}, Spec: rs.Spec.Template.Spec}, nil
}

// passOverMeta drops metadata that a template may hold and no component reads
// (v1.TemplateMeta).
func passOverMeta(document []byte) ([]byte, error) {
	tree := map[string]any{}
	if err := yaml.UnmarshalStrict(document, &tree); err != nil {
		return nil, err
	}
	spec, _ := tree["spec"].(map[string]any)
	template, _ := spec["template"].(map[string]any)
	meta, _ := template["metadata"].(map[string]any)
	maps.DeleteFunc(meta, func(key string, _ any) bool {
		return !slices.Contains([]string{"name", "generateName", "labels", "annotations"}, key)
	})
	return yaml.Marshal(tree)
}

// decodeStrict refuses unknown and duplicate fields, and names their paths.
func decodeStrict(document []byte, into any) error {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(data, into)
	return errors.Join(append(strict, err)...)
}

// hostOf reads the host's facts from the file, or assumes some.
func (o renderOptions) hostOf(vmi *v1.VirtualMachineInstance) (resolve.Host, error) {
	host := resolve.Host{}
	if o.host != "" {
		data, err := os.ReadFile(o.host)
		if err == nil {
			err = decodeStrict(data, &host)
		}
		if err != nil {
			return host, fmt.Errorf("read host facts: %w", err)
		}
		return host, nil
	}
	host = resolve.Host{Accelerator: qemuargs.Accelerator(o.accelerator), QEMUVersion: o.version, OverlayDirect: true,
		ContainerDisks: map[string]qemuargs.ImageFacts{}, Claims: map[string]qemuargs.VolumeFacts{}, NICs: map[string]resolve.NIC{}}
	if host.Accelerator != qemuargs.KVM && host.Accelerator != qemuargs.TCG {
		return host, fmt.Errorf("--accelerator=%q: must be kvm or tcg", o.accelerator)
	}
	for _, v := range vmi.Spec.Volumes {
		if v.Claim() != nil || v.HostDisk != nil {
			host.Claims[v.Name] = qemuargs.VolumeFacts{DiskSize: 1 << 30, Size: 1 << 30, Direct: true}
		}
		if v.ContainerDisk == nil {
			continue
		}
		disk := qemuargs.ImageFacts{Path: path.Join(layout.ImageVolume(v.Name), "disk", "disk.qcow2"), Format: qemuargs.QCOW2, VirtualSize: 1 << 30, Direct: true}
		if p := v.ContainerDisk.Path; p != "" {
			disk.Path = path.Join(layout.ImageVolume(v.Name), p)
		}
		host.ContainerDisks[v.Name] = disk
	}
	if k := vmi.KernelContainer(); k != nil {
		host.Kernel = &qemuargs.KernelFacts{Path: path.Join(layout.KernelDir, k.KernelPath)}
		if k.InitrdPath != "" {
			host.Kernel.Initrd = path.Join(layout.KernelDir, k.InitrdPath)
		}
	}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		host.NICs[nic.Name] = resolve.NIC{MTU: 1500}
	}
	return host, nil
}
