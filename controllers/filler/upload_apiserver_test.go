package filler

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// upload: what virtctl image-upload waits for comes to be, in its order.
func upload(p *plane) {
	p.volume("sent", `{source: {upload: {}}, storage: {resources: {requests: {storage: 64Mi}}}}`)
	claim := p.bind("sent")
	if _, ok := claim.Annotations[cdi.UploadTargetAnnotation]; !ok {
		p.t.Errorf("virtctl takes the claim for another's: %v", claim.Annotations)
	}
	p.is("sent", cdi.UploadScheduled, "PVC sent Bound")
	p.pod("sent", corev1.PodRunning, running(), 0)
	p.marked("sent", "Running false")
	p.importers.say(podName("sent"), importer.Progress{})
	p.is("sent", cdi.UploadReady, "Pod is running")
	p.marked("sent", "Running true")
	p.importers.say(podName("sent"), importer.Progress{Done: 1, Total: 2})
	p.is("sent", cdi.UploadReady, "50.00%")
	p.importers.say(podName("sent"), importer.Progress{Anew: 1, AnewReason: "the client is gone"})
	p.is("sent", cdi.UploadReady, "the client is gone")
	p.Said("UploadScheduled", "UploadReady", reasonBrokenOff)
	p.policyOfMarks(claim)
	p.pod("sent", corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}, 0)
	p.is("sent", cdi.Succeeded, "100.0%")
	p.marked("sent", "Succeeded false")
	p.Delete(&cdi.DataVolume{}, "sent")
}

// marked waits until a claim says how far its pod is.
func (p *plane) marked(name, want string) {
	p.t.Helper()
	p.Until(func() string {
		a := get(p, name, &corev1.PersistentVolumeClaim{}).Annotations
		return a[cdi.PodPhaseAnnotation] + " " + a[cdi.PodReadyAnnotation]
	}, func(got string) bool { return got == want })
}

// policyOfMarks: virt-controller may write these annotations, and no others.
func (p *plane) policyOfMarks(claim *corev1.PersistentVolumeClaim) {
	p.t.Helper()
	controller, err := client.New(p.As("system:serviceaccount:kubevirt:virt-controller", "system:serviceaccounts"), client.Options{Scheme: p.Client.Scheme()})
	if err != nil {
		p.t.Fatal(err)
	}
	write := func(key string) error {
		of := &corev1.PersistentVolumeClaim{}
		of.Namespace, of.Name = claim.Namespace, claim.Name
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"x"}}}`, key))
		return controller.Patch(p.t.Context(), of, patch, client.DryRunAll)
	}
	for _, key := range []string{cdi.PodPhaseAnnotation, cdi.PodReadyAnnotation} {
		if err := write(key); err != nil {
			p.t.Errorf("%s: %v", key, err)
		}
	}
	for _, key := range []string{cdi.UploadTargetAnnotation, cdi.ImmediateBindingAnnotation, "note"} {
		if err := write(key); err == nil || !strings.Contains(err.Error(), "kubevirt-controller-claims") {
			p.t.Errorf("%s: %v, want to be forbidden", key, err)
		}
	}
}

// handsOver: with CDI, the API of uploads is CDI's, even if CDI's operator has only changed ours.
func (p *plane) handsOver() {
	p.t.Helper()
	there := func() string {
		service := &metav1.PartialObjectMetadata{}
		service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
		if err := p.Client.Get(p.t.Context(), client.ObjectKey{Name: cdi.UploadService}, service); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%s (%v)", service.Name, err)
		}
		return ""
	}
	gone := func(got string) bool { return got == "" }
	p.Until(there, gone)
	theirs := func(labels string) {
		p.MustApply(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: ` + cdi.UploadService + `, labels: {app.kubernetes.io/managed-by: cdi-operator` + labels + `}}
spec: {group: upload.cdi.kubevirt.io, version: v1beta1, groupPriorityMinimum: 1000, versionPriority: 15, service: {name: cdi-api, namespace: cdi}}
`)
	}
	theirs(", kubevirt.io: virt-api-aggregator") // ours, as CDI's operator has changed it
	p.Until(there, gone)
	theirs("")
	time.Sleep(time.Second) // several looks
	if there() == "" {
		p.t.Error("CDI's own APIService was deleted")
	}
	p.Kubectl("delete", "apiservice", cdi.UploadService)
}
