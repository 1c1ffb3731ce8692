package admission

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

// launcherPods: nobody but virt-controller makes launcher pods, or changes what
// runs in one; annotations and other labels are everybody's, and so is deletion.
func (s *testServer) launcherPods(t *testing.T) {
	tenant, controller := s.as("tenant"), s.as(controllerAccount)
	of := tiny("owner")
	of.UID = "5d307ca9-b3ef-428c-8861-06e72d69f223"
	v1.Default(of)
	launcher := vmi.Pod(of, vmi.PodConfig{LauncherImage: "launcher:v1"})
	pod := launcher.DeepCopy()
	if err := controller.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plain"}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
	if err := tenant.Create(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	component := plain.DeepCopy()
	component.ResourceVersion, component.UID, component.Name, component.Labels = "", "", "component", map[string]string{v1.AppLabel: "virt-api"}
	if err := tenant.Create(t.Context(), component); err != nil {
		t.Errorf("a pod of a component's: %v", err)
	}
	const gc = "system:serviceaccount:kube-system:generic-garbage-collector"
	label := func(key, value string) string {
		return fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, value)
	}
	owned := func(kind, apiVersion string) string {
		return fmt.Sprintf(`{"metadata":{"ownerReferences":[{"$patch":"replace"},{"kind":%q,"apiVersion":%q,"name":"x","uid":"6d307ca9-b3ef-428c-8861-06e72d69f223","controller":true}]}}`, kind, apiVersion)
	}
	resized := "containers of a launcher pod"
	if served := s.plane.Kubectl("get", "--raw", "/api/v1"); !strings.Contains(served, `"pods/resize"`) {
		resized = "could not find the requested resource" // Kubernetes 1.31 resizes no pod
	}
	const more = `"ephemeralContainers":[{"name":"debugger","image":"busybox"}]`
	for name, c := range map[string]struct {
		who         string
		pod         *corev1.Pod
		subresource string
		patch, says string // says nothing: it is permitted
	}{
		"an annotation":                     {"tenant", pod, "", `{"metadata":{"annotations":{"note":"x"}}}`, ""},
		"a label":                           {"tenant", pod, "", label("team", `"blue"`), ""},
		"an image":                          {"tenant", pod, "", `{"spec":{"containers":[{"name":"compute","image":"mine:v1"}]}}`, "containers of a launcher pod"},
		"an image, by an administrator":     {"admin", pod, "", `{"spec":{"containers":[{"name":"compute","image":"mine:v1"}]}}`, "containers of a launcher pod"},
		"an image, and the label":           {"tenant", pod, "", `{"metadata":{"labels":{"kubevirt.io":null}},"spec":{"containers":[{"name":"compute","image":"mine:v1"}]}}`, "labels of pods: kubevirt.io"},
		"an ephemeral container":            {"tenant", pod, "ephemeralcontainers", `{"spec":{` + more + `}}`, "containers of a launcher pod"},
		"a resize":                          {"tenant", pod, "resize", `{"spec":{"containers":[{"name":"compute","resources":{"requests":{"cpu":"7m"}}}]}}`, resized},
		"the label off":                     {"tenant", pod, "", label(v1.AppLabel, "null"), "labels of pods: kubevirt.io"},
		"the label of another":              {"tenant", pod, "", label(v1.AppLabel, `"virt-api"`), "labels of pods: kubevirt.io"},
		"another VMI's UID":                 {"tenant", pod, "", label(v1.CreatedByLabel, `"x"`), v1.CreatedByLabel},
		"another VMI's name":                {"tenant", pod, "", label(v1.VirtualMachineInstanceIDLabel, `"x"`), v1.VirtualMachineInstanceIDLabel},
		"a name off":                        {"tenant", pod, "", label(v1.VirtualMachineInstanceIDLabel, "null"), v1.VirtualMachineInstanceIDLabel},
		"another VMI":                       {gc, pod, "", owned("VirtualMachineInstance", "kubevirt.io/v1"), "controls"},
		"a ReplicaSet that adopts it":       {"system:serviceaccount:kube-system:replicaset-controller", pod, "", owned("ReplicaSet", "apps/v1"), "no other controller"},
		"a reference that blocks no more":   {gc, pod, "", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"uid":"%s","blockOwnerDeletion":false}]}}`, of.UID), ""},
		"a status by the kubelet":           {"system:node:n1", pod, "status", `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`, ""},
		"a plain pod becomes a launcher":    {"tenant", plain, "", label(v1.AppLabel, `"virt-launcher"`), "labels of pods: kubevirt.io"},
		"a plain pod becomes a VMI's":       {"tenant", plain, "", label(v1.VirtualMachineInstanceIDLabel, `"x"`), v1.VirtualMachineInstanceIDLabel},
		"a plain pod becomes a component":   {"tenant", plain, "", label(v1.AppLabel, `"virt-api"`), ""},
		"a component becomes a launcher":    {"tenant", component, "", label(v1.AppLabel, `"virt-launcher"`), "labels of pods: kubevirt.io"},
		"a plain pod's ephemeral container": {"tenant", plain, "ephemeralcontainers", `{"spec":{` + more + `}}`, ""},
		"passt's profile, ephemeral":        {"tenant", plain, "ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"i","securityContext":{"seccompProfile":{"type":"Localhost","localhostProfile":"kubeqemu/passt.json"}}}]}}`, "profile of passt"},
		"another profile, ephemeral":        {"tenant", plain, "ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"f","image":"i","securityContext":{"seccompProfile":{"type":"Localhost","localhostProfile":"mine/passt.json"}}}]}}`, ""},
		"a plain pod's image":               {"tenant", plain, "", `{"spec":{"containers":[{"name":"c","image":"mine:v1"}]}}`, ""},
		"a plain pod is adopted":            {"tenant", plain, "", owned("ReplicaSet", "apps/v1"), ""},
	} {
		object, patch := c.pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(c.patch))
		var err error
		if c.subresource == "" {
			err = s.as(c.who).Patch(t.Context(), object, patch)
		} else {
			err = s.as(c.who).SubResource(c.subresource).Patch(t.Context(), object, patch)
		}
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}

	for name, change := range map[string]func(*corev1.Pod){
		"a launcher": func(*corev1.Pod) {},
		"a slot":     func(p *corev1.Pod) { p.Labels, p.OwnerReferences = nil, nil },
		"a place for a container with a disk": func(p *corev1.Pod) {
			*p = *unowned(plain)
			one := corev1.ResourceList{images.Resource: resource.MustParse("1")}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		},
		"a slot for an init container": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{*launcher.Spec.Containers[0].DeepCopy()}
			p.Spec.InitContainers[0].Name = "first"
			p.Spec.Containers, p.Labels, p.OwnerReferences = plain.Spec.Containers, nil, nil
		},
		"a launcher's label":   func(p *corev1.Pod) { p.Spec = plain.Spec; p.Labels = map[string]string{v1.AppLabel: "virt-launcher"} },
		"a VMI's label":        func(p *corev1.Pod) { p.Spec = plain.Spec; delete(p.Labels, v1.AppLabel) },
		"a pod that a VMI has": func(p *corev1.Pod) { p.Spec = plain.Spec; p.Labels = nil },
		"a pod with passt's profile": func(p *corev1.Pod) {
			*p = *unowned(plain)
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: localhost(v1.PasstProfile)}
		},
		"a container with passt's profile": func(p *corev1.Pod) {
			*p = *unowned(plain)
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{SeccompProfile: localhost("./kubeqemu//passt.json")}
		},
		"a sidecar with passt's profile": func(p *corev1.Pod) {
			*p = *unowned(plain)
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "image", SecurityContext: &corev1.SecurityContext{SeccompProfile: localhost("kubeqemu/./passt.json")}}}
		},
	} {
		made := launcher.DeepCopy()
		made.Name, made.Spec.NodeName = "made", ""
		change(made)
		for who, by := range map[string]client.Client{"a tenant": tenant, "an administrator": s.admin} {
			if err := by.Create(t.Context(), made.DeepCopy(), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "only virt-controller") {
				t.Errorf("%s makes %s: %v", who, name, err)
			}
		}
	}
	s.launcherLikePods(t, tenant, launcher)
	// With --cascade=orphan the garbage collector takes the owner away; what the pod
	// is stays held.
	orphan := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"%s"}]}}`, of.UID)
	if err := s.as(gc).Patch(t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(orphan))); err != nil || len(pod.OwnerReferences) > 0 {
		t.Errorf("the garbage collector takes the owner away: %v, %v", err, pod.OwnerReferences)
	}
	for name, patch := range map[string]string{"an image": `{"spec":{"containers":[{"name":"compute","image":"mine:v1"}]}}`, "a new owner": owned("ReplicaSet", "apps/v1")} {
		if err := tenant.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err == nil {
			t.Errorf("%s of a pod whose owner has gone", name)
		}
	}
	if err := tenant.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Errorf("a tenant deletes a launcher pod: %v", err)
	}
}

// launcherLikePods: a tenant makes pods that are like launchers but for slot, labels and owner, and none of them becomes a
// VMI's later.
func (s *testServer) launcherLikePods(t *testing.T, tenant client.Client, launcher *corev1.Pod) {
	const (
		uid   = "5d307ca9-b3ef-428c-8861-06e72d69f223"
		toVMI = `{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"owner",` +
			`"uid":"` + uid + `","controller":true}]}}`
	)
	for name, owners := range map[string][]metav1.OwnerReference{
		"harmless": nil,
		"foreign":  {{APIVersion: "foo.example/v1", Kind: "Foo", Name: "owner", UID: uid, Controller: ptr.To(true)}},
	} {
		pod := unowned(launcher)
		pod.Name, pod.OwnerReferences = name, owners
		c := &pod.Spec.Containers[0]
		delete(c.Resources.Limits, vmi.SlotResource)
		delete(c.Resources.Requests, vmi.SlotResource)
		if err := tenant.Create(t.Context(), pod); err != nil {
			t.Errorf("the %s pod: %v", name, err)
			continue
		}
		err := tenant.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(toVMI)))
		if err == nil || !strings.Contains(err.Error(), "only virt-controller makes pods") {
			t.Errorf("a tenant makes the %s pod a VMI's: %v", name, err)
		}
		if err := tenant.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	}
}

// unowned is a new pod as another is.
func unowned(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "made"}, Spec: *pod.Spec.DeepCopy()}
}

func localhost(file string) *corev1.SeccompProfile {
	return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &file}
}

// ownNode: what virt-handler says of a VMI of its node is its own, and nothing else.
func (s *testServer) ownNode(t *testing.T) {
	of := tiny("placed")
	if err := s.as(controllerAccount).Create(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	of.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled, NodeName: "n1", LauncherPods: []v1.LauncherPod{{Name: "p", IPs: []string{"10.0.0.1"}}}}
	if err := s.as(controllerAccount).Status().Update(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	handler := s.onNode(handlerAccount, "n1")
	for patch, says := range map[string]string{
		`{"status":{"launcherPods":null}}`:                                      "which addresses",
		`{"status":{"launcherPods":[{"name":"p","ips":["10.0.0.2"]}]}}`:         "which addresses",
		`{"status":{"launcherPods":[{"name":"q"}],"phase":"Running"}}`:          "which addresses",
		`{"status":{"phase":"Running","interfaces":[{"ipAddress":"fd00::1"}]}}`: "",
	} {
		err := handler.Status().Patch(t.Context(), of.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", patch, err, says)
		}
	}
	// Should a role let it write more than the status, the policy does not.
	for patch, says := range map[string]string{
		`{"spec":{"hostname":"renamed"}}`:        "virt-handler touches no spec",
		`{"metadata":{"annotations":{"a":"b"}}}`: "virt-handler touches no finalizer",
	} {
		err := handler.Patch(t.Context(), of.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("the object itself: %s: %v, want %q", patch, err, says)
		}
	}
}

// launcherPodsStatus: by a launcher pod's status virt-controller writes one condition, and labels
// and annotations, but none by which the pod is known. The API server takes the metadata in it.
func (s *testServer) launcherPodsStatus(t *testing.T) {
	tenant, controller := s.as("tenant"), s.as(controllerAccount)
	of := tiny("observed")
	of.UID = "7d307ca9-b3ef-428c-8861-06e72d69f223"
	v1.Default(of)
	pod := vmi.Pod(of, vmi.PodConfig{LauncherImage: "launcher:v1"})
	if err := controller.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
	if err := tenant.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	const follows = `{"metadata":{"labels":{"example.com/tier":"web"},"annotations":{"example.com/note":"x","kubeqemu.io/following":"label:example.com/tier"}}}`
	const known, annotated = "the labels by which", "the annotations by which"
	for name, c := range map[string]struct {
		pod         *corev1.Pod
		patch, says string // says nothing: it is permitted
	}{
		"the condition":             {pod, `{"status":{"conditions":[{"type":"kubevirt.io/virtual-machine-unpaused","status":"False"}]}}`, ""},
		"another condition":         {pod, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "its own condition"},
		"what follows":              {pod, follows, ""},
		"of another pod":            {other, follows, "launcher pods only"},
		"the launchers' label":      {pod, `{"metadata":{"labels":{"kubevirt.io":"virt-api"}}}`, known},
		"the launchers' label, off": {pod, `{"metadata":{"labels":{"kubevirt.io":null}}}`, known},
		"another VMI's UID":         {pod, `{"metadata":{"labels":{"kubevirt.io/created-by":"x"}}}`, known},
		"another VMI's name":        {pod, `{"metadata":{"labels":{"vmi.kubevirt.io/id":"x"}}}`, known},
		"a label of a new domain":   {pod, `{"metadata":{"labels":{"migration.kubevirt.io/x":"x"}}}`, known},
		"a label of ours":           {pod, `{"metadata":{"labels":{"kubeqemu.io/x":"x"}}}`, known},
		"another VMI's domain":      {pod, `{"metadata":{"annotations":{"kubevirt.io/domain":"x"}}}`, annotated},
		"an annotation, off":        {pod, `{"metadata":{"annotations":{"kubevirt.io/domain":null}}}`, annotated},
		"kubectl's":                 {pod, `{"metadata":{"annotations":{"kubectl.kubernetes.io/default-container":"x"}}}`, annotated},
		"a finalizer":               {pod, `{"metadata":{"finalizers":["example.com/stay"]}}`, "no other metadata"},
		"an address":                {pod, `{"status":{"podIP":"192.0.2.1","podIPs":[{"ip":"192.0.2.1"}]}}`, "only a condition"},
	} {
		err := controller.Status().Patch(t.Context(), c.pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(c.patch)))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	now := &corev1.Pod{}
	if err := controller.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil || now.Labels["example.com/tier"] != "web" || now.Annotations["example.com/note"] != "x" {
		t.Errorf("labels %v, annotations %v (%v)", now.Labels, now.Annotations, err)
	}
	for _, p := range []*corev1.Pod{pod, other} {
		if err := tenant.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	}
}
