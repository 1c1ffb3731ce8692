package series

import (
	"context"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Objects makes series of VirtualMachines and their instances. It is a prometheus.Collector.
type Objects struct {
	// List returns all objects, which the caller does not change.
	List func(context.Context) ([]v1.VirtualMachine, []v1.VirtualMachineInstance, error)
	// PodName is the name of an instance's launcher pod.
	PodName func(*v1.VirtualMachineInstance) string
	// LauncherImage is the image of new launchers.
	LauncherImage string
	// ARM64Image is the image of new launchers of emulated guests of arm64.
	ARM64Image string
	Log        logr.Logger
}

// Describe describes nothing, because series have different labels: empty ones are left out.
func (*Objects) Describe(chan<- *prometheus.Desc) {}

// Collect sends the series of all objects.
func (o *Objects) Collect(to chan<- prometheus.Metric) {
	machines, instances, err := o.List(context.Background())
	if err != nil {
		o.Log.Error(err, "list VirtualMachines and their instances for metrics")
		return
	}
	count := 0
	for i := range instances {
		o.instance(to, &instances[i])
		if o.outdated(&instances[i]) {
			count++
		}
	}
	gauge("kubevirt_vmi_number_of_outdated", "Guests whose launchers are of another image than new ones.").send(to, float64(count))
	transitions := newTransitions()
	for i := range machines {
		machine(to, &machines[i])
		transitions.send(to, &machines[i])
	}
}

// Annotations in which users describe a guest.
const (
	osAnnotation       = "vm.kubevirt.io/os"
	workloadAnnotation = "vm.kubevirt.io/workload"
	flavorAnnotation   = "vm.kubevirt.io/flavor"
)

func guestLabels(annotations map[string]string) labels {
	return labels{"os", annotations[osAnnotation], "workload", annotations[workloadAnnotation], "flavor", annotations[flavorAnnotation]}
}

// stays says whether an instance is to move when it is evicted, and cannot.
func stays(vmi *v1.VirtualMachineInstance) bool {
	reason, _ := vmi.NotMigratable()
	return reason != "" && !vmi.IsFinal() && ptr.Deref(vmi.Spec.EvictionStrategy, "") == v1.EvictionStrategyLiveMigrate
}

// outdated says whether an instance's guest has a launcher of another image than new ones.
func (o *Objects) outdated(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Outdated(o.LauncherImage, o.ARM64Image)
}

// instance sends the series of an instance.
func (o *Objects) instance(to chan<- prometheus.Metric, vmi *v1.VirtualMachineInstance) {
	who := labels{"node", vmi.Status.NodeName, "namespace", vmi.Namespace, "name", vmi.Name}
	more := labels{"phase", strings.ToLower(string(vmi.Status.Phase)), "evictable", strconv.FormatBool(!stays(vmi)), "outdated", strconv.FormatBool(o.outdated(vmi))}
	a := vmi.Annotations
	more = append(more, "instance_type", either(a["kubevirt.io/instancetype-name"], a["kubevirt.io/cluster-instancetype-name"]),
		"preference", either(a["kubevirt.io/preference-name"], a["kubevirt.io/cluster-preference-name"]))
	if m := vmi.Status.Machine; m != nil {
		more = append(more, "guest_os_machine", m.Type) // KubeVirt has the machine type in this label
	}
	if len(vmi.Status.ActivePods) > 0 && !vmi.IsFinal() {
		more = append(more, "vmi_pod", o.PodName(vmi))
	}
	gauge("kubevirt_vmi_info", "A VirtualMachineInstance; always 1.").send(to, 1, who, more, guestLabels(a))
	gauge("kubevirt_vmi_non_evictable", "1 if the VirtualMachineInstance is to be migrated when it is evicted, and cannot be.").send(to, one(stays(vmi)), who)
	migration(to, vmi)
	for _, nic := range vmi.Status.Interfaces {
		if nic.Name == "" {
			continue // the guest made it: any number of series, or one twice
		}
		kind, address := "ExternalInterface", nic.IP
		if !vmi.Spec.OnPods(nic.Name) && !ptr.Deref(nic.IPAM, false) {
			address = "" // the guest says it, and may say another each time: any number of series
		}
		if address == "" {
			kind = "SystemInterface"
		}
		gauge("kubevirt_vmi_status_addresses", "The address of an interface of a VirtualMachineInstance; always 1.").
			send(to, 1, who, labels{"vnic_name", nic.Name, "address", address, "type", kind})
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// machine sends the series of a VirtualMachine.
func machine(to chan<- prometheus.Metric, vm *v1.VirtualMachine) {
	who := labels{"name", vm.Name, "namespace", vm.Namespace}
	status := vm.Status.PrintableStatus
	more := labels{"status", strings.ToLower(string(status)), "status_group", statusGroup(status)}
	if t := vm.Spec.Instancetype; t != nil {
		more = append(more, "instance_type", t.Name)
	}
	if p := vm.Spec.Preference; p != nil {
		more = append(more, "preference", p.Name)
	}
	if m := vm.Spec.Template.Spec.Domain.Machine; m != nil {
		more = append(more, "machine_type", m.Type)
	}
	gauge("kubevirt_vm_info", "A VirtualMachine; always 1.").send(to, 1, who, more, guestLabels(vm.Spec.Template.ObjectMeta.Annotations))
	gauge("kubevirt_vm_create_date_timestamp_seconds", "When a VirtualMachine was created.").send(to, float64(vm.CreationTimestamp.Unix()), who)
}

// statusGroup is KubeVirt's group of a status.
func statusGroup(status v1.VirtualMachinePrintableStatus) string {
	switch status {
	case v1.VirtualMachineStatusProvisioning, v1.VirtualMachineStatusStarting, v1.VirtualMachineStatusWaitingForVolumeBinding:
		return "starting"
	case v1.VirtualMachineStatusRunning:
		return "running"
	case v1.VirtualMachineStatusStopped, v1.VirtualMachineStatusPaused, v1.VirtualMachineStatusStopping, v1.VirtualMachineStatusTerminating:
		return "non_running"
	}
	return "error"
}

// transitions are one metric for each status group: when a VirtualMachine came into its
// present group. The metrics of the other groups are 0. They are counters, as in KubeVirt.
type transitions map[string]metric // by status group

func newTransitions() transitions {
	t := transitions{}
	for _, group := range []string{"starting", "running", "migrating", "non_running", "error"} {
		t[group] = counter("kubevirt_vm_"+group+"_status_last_transition_timestamp_seconds",
			"When the VirtualMachine became "+strings.ReplaceAll(group, "_", " ")+"; 0 if it is not.")
	}
	return t
}

func (t transitions) send(to chan<- prometheus.Metric, vm *v1.VirtualMachine) {
	var last int64
	for _, kind := range []v1.ConditionType{v1.ConditionReady, v1.ConditionFailure, v1.ConditionPaused} {
		for _, c := range vm.Status.Conditions {
			if c.Type == kind {
				last = max(last, c.LastTransitionTime.Unix())
			}
		}
	}
	for group, m := range t {
		value := 0.0
		if group == statusGroup(vm.Status.PrintableStatus) {
			value = float64(last)
		}
		m.send(to, value, labels{"name", vm.Name, "namespace", vm.Namespace})
	}
}
