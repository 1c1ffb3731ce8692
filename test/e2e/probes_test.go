package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const probedService = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},
"spec":{"selector":{"vmi.kubevirt.io/id":"web"},"ports":[{"port":80}]}}`

// TestProbesOfGuestsByHTTPAndTCP: by HTTP through masquerade, by TCP to a bridged guest. Who answers
// is ready, and Services send to it until it is paused; who is not alive is ended.
func TestProbesOfGuestsByHTTPAndTCP(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, probedService)
	tcp := func(port int32) v1.Handler {
		return v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}
	}
	web := create(t, ns, tiny("web", ports(80, 7), func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Interfaces[0].Ports[0].Name = "http"
		s.ReadinessProbe = &v1.Probe{PeriodSeconds: 1, Handler: v1.Handler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http"), Path: "/ready"}}}
	}))
	bridge := create(t, ns, tiny("bridge", bridged, func(s *v1.VirtualMachineInstanceSpec) {
		s.LivenessProbe = &v1.Probe{PeriodSeconds: 1, FailureThreshold: 180, Handler: tcp(7)}
		s.ReadinessProbe = &v1.Probe{PeriodSeconds: 1, Handler: tcp(9999)}
	}))
	dead := create(t, ns, tiny("dead", func(s *v1.VirtualMachineInstanceSpec) {
		s.LivenessProbe = &v1.Probe{InitialDelaySeconds: 15, PeriodSeconds: 1, FailureThreshold: 2, Handler: tcp(1)}
	}))

	web.await(v1.Running)
	web.awaitReadiness("False/ContainersNotReady")
	bridge.await(v1.Running)
	bridge.awaitReadiness("True/GuestReady")
	bridge.asked(http.StatusForbidden, "Pausing VMIs with LivenessProbe is currently not supported", "", "virtualmachineinstances", "pause", nil)

	if out, status := web.shell().run("mkdir /srv && touch /srv/ready && httpd -p 80 -h /srv"); status != 0 {
		t.Fatalf("start a web server in the guest: %q", out)
	}
	web.awaitReadiness("True/GuestReady")
	web.awaitServed(true)
	holdsToCondition(t, web)
	web.asked(http.StatusOK, "", "", "virtualmachineinstances", "pause", v1.PauseOptions{})
	web.awaitReadiness("False/GuestNotRunning")
	web.awaitServed(false)
	if err := poll(func() error {
		if c := podCondition(web.pod(), "kubevirt.io/virtual-machine-unpaused"); c.Status != corev1.ConditionFalse || c.Reason != "Paused" {
			return fmt.Errorf("of a paused guest, the pod says %+v", c)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	web.asked(http.StatusOK, "", "", "virtualmachineinstances", "unpause", v1.UnpauseOptions{})
	web.awaitReadiness("True/GuestReady")
	web.awaitServed(true)
	web.awaitEvents("Started", "Paused", "Unpaused")
	if phase := bridge.get().Status.Phase; phase != v1.Running {
		t.Errorf("a guest that is alive is %s", phase)
	}
	if end := dead.await(v1.Failed); end.Status.Reason != "GracePeriodExceeded" {
		t.Errorf("a guest that is not alive ended as %q: %+v", end.Status.Reason, end.Status.Conditions)
	}
}

// awaitReadiness waits until the condition Ready has this status and reason.
func (v vmi) awaitReadiness(want string) {
	v.t.Helper()
	if err := poll(func() error {
		if c := v.condition(v1.ConditionReady); string(c.Status)+"/"+c.Reason != want {
			return fmt.Errorf("VMI %s: Ready is %+v, want %s", v.name, c, want)
		}
		return nil
	}); err != nil {
		v.t.Fatal(err)
	}
}

// awaitServed waits until the Service of the VMI's name sends to its pod, or does not.
func (v vmi) awaitServed(want bool) {
	v.t.Helper()
	address := v.pod().Status.PodIP
	if err := poll(func() error {
		slices := get[discoveryv1.EndpointSliceList](v.t, "-n", v.namespace, "endpointslices", "-l", "kubernetes.io/service-name="+v.name)
		served := false
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				served = served || e.Addresses[0] == address && e.Conditions.Ready != nil && *e.Conditions.Ready
			}
		}
		if served != want {
			return fmt.Errorf("the Service sends to %s: %v, want %v", address, served, want)
		}
		return nil
	}); err != nil {
		v.t.Fatal(err)
	}
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return corev1.PodCondition{}
	}
	return pod.Status.Conditions[i]
}

// holdsToCondition: of launcher pods virt-controller writes one condition, labels and
// annotations, but none by which launcher pods are known, and of other pods nothing.
func holdsToCondition(t *testing.T, v vmi) {
	t.Helper()
	config := configOf(t, "system:serviceaccount:kubevirt:virt-controller")
	config.ContentType = "application/strategic-merge-patch+json"
	status := func(namespace, pod string) string {
		return "/api/v1/namespaces/" + namespace + "/pods/" + pod + "/status?dryRun=All"
	}
	launcher, other := status(v.namespace, v.pod().Name), status("kubevirt", handlerPod(t))
	const ours = `{"status":{"conditions":[{"type":"kubevirt.io/virtual-machine-unpaused","status":"False"}]}}`
	for _, c := range []struct{ path, patch, refusal string }{
		{launcher, ours, ""},
		{other, ours, "launcher pods only"},
		{launcher, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "its own condition"},
		{launcher, `{"status":{"podIP":"192.0.2.1","podIPs":[{"$patch":"replace"},{"ip":"192.0.2.1"}]}}`, "only a condition"},
		{launcher, `{"status":{"phase":"Failed"}}`, "only a condition"},
		{launcher, `{"metadata":{"labels":{"example.com/tier":"web"},"annotations":{"example.com/note":"x","kubeqemu.io/following":"label:example.com/tier"}}}`, ""},
		{other, `{"metadata":{"annotations":{"example.com/note":"x"}}}`, "launcher pods only"},
		{launcher, `{"metadata":{"labels":{"kubevirt.io":"virt-api"}}}`, "the labels by which"},
		{launcher, `{"metadata":{"labels":{"kubevirt.io/created-by":null}}}`, "the labels by which"},
		{launcher, `{"metadata":{"labels":{"vmi.kubevirt.io/id":"other"}}}`, "the labels by which"},
		{launcher, `{"metadata":{"annotations":{"kubevirt.io/domain":"other"}}}`, "the annotations by which"},
		{launcher, `{"metadata":{"annotations":{"kubeqemu.io/other":"x"}}}`, "the annotations by which"},
		{launcher, `{"metadata":{"finalizers":["example.com/stay"]}}`, "no other metadata"},
	} {
		code, status := ask(t, config, http.MethodPatch, c.path, json.RawMessage(c.patch))
		if c.refusal == "" && code != http.StatusOK || c.refusal != "" && (code != http.StatusForbidden || !strings.Contains(status.Message, c.refusal)) {
			t.Errorf("virt-controller patches %s with %s: %d %s, want %q", c.path, c.patch, code, status.Message, c.refusal)
		}
	}
}
