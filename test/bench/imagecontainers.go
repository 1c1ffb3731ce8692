package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// measureImageContainers measures kubectl apply → Running of a VMI whose container disk a container of its pod hands
// out, beside the same VMI with an image volume, and the memory of such a container.
func measureImageContainers(r *run) {
	kube, count := r.kube(), 0
	r.after(func() error { return setGates(r, `{"featureGates":null,"disabledFeatureGates":null}`) })
	vmi := func() *v1.VirtualMachineInstance {
		count++
		return guestVMI(benchNamespace, fmt.Sprintf("images-%d", count), tinyImage)
	}
	applied := func(containers bool) subject {
		return func(r *run) []float64 {
			r.imagesBy(containers)
			m := follow(r, kube, "vmi", vmi(), 1, 2*patience)
			if got := handsOutDisk(m.pod); got != containers {
				fail("apply a VMI whose disk a container hands out (%t): its pod has it the other way", containers)
			}
			return []float64{m.running[0]}
		}
	}
	r.eachRound(func(r *run) {
		handed, volume := r.abba(applied(true), applied(false))
		r.add("apply-image-container", handed[0], volume[0])
		r.imagesBy(true)
		r.turn(func(r *run) { addImageContainer(r, kube, vmi) })
	})
}

// addImageContainer adds a sample of the memory of the container that hands out a VMI's disk. Then another VMI starts:
// its container has the same program, whose memory both share.
func addImageContainer(r *run, kube client.Client, vmi func() *v1.VirtualMachineInstance) {
	r.removeAfter("vmi")
	start := func(vmi *v1.VirtualMachineInstance, all int) {
		check(apply(r, vmi))
		r.await("the VMI is Running", 50*time.Millisecond, 2*patience, func() bool {
			_, running := r.vmis(kube, benchNamespace)
			return running == all
		})
	}
	first := vmi()
	start(first, 1)
	pod := r.podOfVMI(kube)
	all := processesOf(&pod)
	i := slices.IndexFunc(all, func(p process) bool {
		return strings.HasPrefix(strings.Join(p.Args, " "), imageProgram)
	})
	if i < 0 {
		fail("find the container that hands out a disk: VMI %s has no process of %s", first.Name, imageProgram)
	}
	m := settled(r, all[i].PID)
	r.add("image-container", mib(m.private()))
	start(vmi(), 2)
	shared := settled(r, all[i].PID)
	r.addParts("image-container", mibs(m.RSS, m.PrivateDirty, shared.PSS)...)
}

// imageProgram is how the command of such a container begins.
const imageProgram = "/kubeqemu/program serve-image"

// handsOutDisk reports whether a container of the pod hands out the guest's disk.
func handsOutDisk(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == "disk-"+diskVolume
	})
}

// imagesBy writes whether virt-controller makes pods whose containers hand out images, or pods with image volumes.
func (r *run) imagesBy(containers bool) {
	gates := `{"featureGates":["ImageVolume"],"disabledFeatureGates":null}`
	if containers {
		gates = `{"featureGates":null,"disabledFeatureGates":["ImageVolume"]}`
	}
	check(setGates(r, gates))
	r.pause(time.Second) // virt-controller hears of it by its watch
}

// setGates writes the feature gates of the cluster's configuration.
func setGates(ctx context.Context, gates string) error {
	_, err := command(ctx, nil, "kubectl", "-n", installNamespace, "patch", "kubevirt", "kubevirt", "--type=merge",
		"--patch", `{"spec":{"configuration":{"developerConfiguration":`+gates+`}}}`)
	return err
}
