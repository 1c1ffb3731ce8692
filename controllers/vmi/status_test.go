package vmi

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// podIn returns a pod in a phase, with the launcher's container in a state.
func podIn(phase corev1.PodPhase, state corev1.ContainerState) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: "node1"},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "sidecar",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"reason":"Shutdown"}`}}},
			{Name: ContainerName, State: state},
		}},
	}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

func terminated(t corev1.ContainerStateTerminated) *corev1.Pod {
	phase := corev1.PodFailed
	if t.ExitCode == 0 {
		phase = corev1.PodSucceeded
	}
	return podIn(phase, corev1.ContainerState{Terminated: &t})
}

func without(pod *corev1.Pod, reason, message string) *corev1.Pod {
	pod.Status.ContainerStatuses = nil
	return because(pod, reason, message)
}

func because(pod *corev1.Pod, reason, message string) *corev1.Pod {
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, reason, message
	return pod
}

// failedFirst returns a pod whose kernel could not be copied.
func failedFirst(message string) *corev1.Pod {
	pod := podIn(corev1.PodFailed,
		corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}})
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: "program", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
		{Name: kernelName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1,
			Reason: "Error", Message: message}}}}
	return pod
}

// stoppedFirst returns a pod that the kubelet ended before the launcher ran, with a container that it starts again and
// again.
func stoppedFirst() *corev1.Pod {
	pod := failedFirst("")
	disk := corev1.Container{Name: kernelName, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}
	pod.Spec.InitContainers = []corev1.Container{disk}
	return pod
}

func TestHowAPodEnded(t *testing.T) {
	tests := []struct {
		name  string
		pod   *corev1.Pod
		want  end
		ended bool
	}{
		{"pending", podIn(corev1.PodPending, corev1.ContainerState{}), end{}, false},
		{"running", podIn(corev1.PodRunning, running()), end{}, false},
		{"unknown: no information is no end", podIn(corev1.PodUnknown, running()), end{}, false},
		{"terminated, but the pod is not",
			podIn(corev1.PodRunning, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}), end{}, false},
		{"OOM", terminated(corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}),
			end{v1.Failed, "OOMKilled", "virt-launcher or QEMU used more memory than the pod's limit"}, true},
		{"killed", terminated(corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}),
			end{v1.Failed, "LauncherKilled", "virt-launcher was killed by signal 9, and QEMU with it"}, true},
		{"killed, as the runtime says", terminated(corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Signal: 6}),
			end{v1.Failed, "LauncherKilled", "virt-launcher was killed by signal 6, and QEMU with it"}, true},
		{"ended in a power cut, as containerd says",
			terminated(corev1.ContainerStateTerminated{Reason: "Unknown", ExitCode: 255}),
			end{v1.Failed, "LauncherKilled", "virt-launcher has ended, and QEMU with it, and nobody saw how: its node, or the container runtime, was started anew"}, true},
		{"ended in a power cut, as the kubelet says",
			terminated(corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}),
			end{v1.Failed, "LauncherKilled", "virt-launcher has ended, and QEMU with it, and nobody saw how: its node, or the container runtime, was started anew"}, true},
		{"no kernel in the image", failedFirst("virt-launcher: the container image has \x1bno file /vmlinuz\n"),
			end{v1.Failed, "PodFailed", "the launcher pod failed before the launcher ran: its container kernel " +
				"failed: virt-launcher: the container image has no file /vmlinuz"}, true},
		{"a kernel that says nothing", failedFirst(""), end{v1.Failed, "PodFailed",
			"the launcher pod failed before the launcher ran: its container kernel failed: exit code 1 (Error)"}, true},
		{"a container that ended with its pod", stoppedFirst(),
			end{v1.Failed, "PodFailed", "the launcher pod failed before the launcher ran"}, true},
		{"exit without a word", terminated(corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 3}),
			end{v1.Failed, "Error", "virt-launcher exited with code 3 without saying why "}, true},
		{"exit 0 without a word is no success", terminated(corev1.ContainerStateTerminated{Reason: "Completed"}),
			end{v1.Failed, "Completed", "virt-launcher exited with code 0 without saying why "}, true},
		{"garbage", terminated(corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Message: "panic: oh"}),
			end{v1.Failed, "Error", "virt-launcher exited with code 1 without saying why panic: oh"}, true},
		{"JSON without reason",
			terminated(corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Message: `{"exitCode":0}`}),
			end{v1.Failed, "Error", `virt-launcher exited with code 1 without saying why {"exitCode":0}`}, true},
		{"an unknown reason is no success",
			terminated(corev1.ContainerStateTerminated{Message: `{"reason":"New","message":"m"}`}),
			end{v1.Failed, "Error", `virt-launcher exited with code 0 without saying why {"reason":"New","message":"m"}`}, true},
		{"OOM of QEMU alone",
			terminated(corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 1,
				Message: `{"reason":"QEMUExited","message":"QEMU was killed","signal":"killed"}`}),
			end{v1.Failed, "OOMKilled", "virt-launcher or QEMU used more memory than the pod's limit"}, true},
		{"OOM of something else, before",
			terminated(corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 1,
				Message: `{"reason":"QEMUExited","message":"QEMU aborted","signal":"aborted"}`}),
			end{v1.Failed, "QEMUExited", "QEMU aborted"}, true},
		{"OOM of something else, and the guest powered off",
			terminated(corev1.ContainerStateTerminated{Reason: "OOMKilled",
				Message: `{"reason":"GuestShutdown","message":"off"}`}),
			end{v1.Succeeded, "GuestShutdown", "off"}, true},
		{"killed, but not for memory",
			terminated(corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1,
				Message: `{"reason":"QEMUExited","message":"QEMU was killed","signal":"killed"}`}),
			end{v1.Failed, "QEMUExited", "QEMU was killed"}, true},
		{"evicted, and the guest was quick",
			because(terminated(corev1.ContainerStateTerminated{Message: `{"reason":"Shutdown","message":"off"}`}), "Evicted",
				"low on memory"),
			end{v1.Failed, "Evicted", "low on memory"}, true},
		{"its node was shut down",
			because(terminated(corev1.ContainerStateTerminated{Message: `{"reason":"Shutdown","message":"off"}`}), "Terminated",
				"imminent node shutdown"),
			end{v1.Failed, "Terminated", "imminent node shutdown"}, true},
		{"evicted, and killed", because(terminated(corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}),
			"Evicted", "low on memory"),
			end{v1.Failed, "Evicted", "low on memory"}, true},
		{"its node is out of service",
			podIn(corev1.PodFailed, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}),
			end{v1.Failed, v1.ReasonPodDeleted, "the launcher pod was deleted by force: its node is out of service, or gone"},
			true},
		{"evicted before it ran", without(podIn(corev1.PodFailed, corev1.ContainerState{}), "Evicted", "low on memory"),
			end{v1.Failed, "Evicted", "low on memory"}, true},
		{"failed without any word", without(podIn(corev1.PodFailed, corev1.ContainerState{}), "", ""),
			end{v1.Failed, "PodFailed", "the launcher pod failed before the launcher ran"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ended := podEnd(tt.pod); got != tt.want || ended != tt.ended {
				t.Errorf("got  %+v, %v\nwant %+v, %v", got, ended, tt.want, tt.ended)
			}
		})
	}
}

// TestHowALauncherEndedByItsReason: each reason that a launcher may give, in the launcher's own encoding,
// becomes the VMI's phase, reason and message.
func TestHowALauncherEndedByItsReason(t *testing.T) {
	want := map[control.Reason]v1.VirtualMachineInstancePhase{
		control.ReasonGuestShutdown: v1.Succeeded, control.ReasonShutdown: v1.Succeeded,
		control.ReasonGracePeriodOver: v1.Failed, control.ReasonNeverStarted: v1.Failed, control.ReasonStartFailed: v1.Failed,
		control.ReasonGuestPanic: v1.Failed, control.ReasonQEMUExited: v1.Failed,
	}
	for reason, phase := range want {
		said := control.Termination{Reason: reason, Message: "so it was", Stderr: "early\nlast words\n"}
		got, ended := podEnd(terminated(corev1.ContainerStateTerminated{Message: string(said.Encode())}))
		message := "so it was"
		if phase == v1.Failed {
			message += "; QEMU's last words: early\nlast words"
		}
		if !ended || got != (end{phase, string(reason), message}) {
			t.Errorf("%s: got %+v, %v", reason, got, ended)
		}
	}
}

func TestObserveAPod(t *testing.T) {
	then, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	was := func(phase v1.VirtualMachineInstancePhase,
		conditions ...v1.VirtualMachineInstanceCondition) v1.VirtualMachineInstanceStatus {
		s := v1.VirtualMachineInstanceStatus{Phase: phase}
		for _, c := range conditions {
			s.SetCondition(c, then)
		}
		return s
	}
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionTrue,
		Reason: "GuestRunning"}
	paused := v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue, Reason: "Paused"}
	agent := v1.VirtualMachineInstanceCondition{Type: v1.ConditionAgentConnected, Status: metav1.ConditionTrue}
	frozen := was(v1.Running, ready, agent)
	frozen.FSFreezeStatus = v1.FSFrozen
	pulling := v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse,
		Reason: "ErrImagePull"}
	unbound := podIn(corev1.PodPending, corev1.ContainerState{})
	unbound.Spec.NodeName = ""
	unschedulable := unbound.DeepCopy()
	unschedulable.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes"}}
	deleted := podIn(corev1.PodRunning, running())
	deleted.DeletionTimestamp = &now
	backOff := podIn(corev1.PodPending,
		corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}})
	creating := podIn(corev1.PodPending,
		corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}})
	shutDown := terminated(corev1.ContainerStateTerminated{Message: `{"reason":"Shutdown"}`})

	inPostCopy := func(arrived *metav1.Time) v1.VirtualMachineInstanceStatus {
		s := was(v1.Running, ready)
		s.MigrationState = &v1.VirtualMachineInstanceMigrationState{Decision: v1.DecisionTarget,
			MigrationConfiguration: &v1.MigrationConfiguration{AllowPostCopy: ptr.To(true)},
			SourceState:            &v1.MigrationSourceState{PostCopyTimestamp: &then},
			TargetState:            &v1.MigrationTargetState{DomainReadyTimestamp: arrived}}
		return s
	}
	told := func(reason string) v1.VirtualMachineInstanceCondition {
		return v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}
	}
	tests := []struct {
		name string
		old  v1.VirtualMachineInstanceStatus
		pod  *corev1.Pod
		want string // phase, node, failure's reason, then conditions as Type=Status/Reason
	}{
		{"not bound", was(v1.Pending), unbound, "Scheduling  ; Ready=False/GuestNotRunning"},
		{"unschedulable", was(v1.Scheduling), unschedulable,
			"Scheduling  ; PodScheduled=False/Unschedulable Ready=False/GuestNotRunning"},
		{"bound after all", was(v1.Scheduling,
			v1.VirtualMachineInstanceCondition{Type: v1.ConditionPodScheduled, Status: metav1.ConditionFalse}), creating,
			"Scheduling node1 ; Ready=False/GuestNotRunning"},
		{"image pull back-off", was(v1.Scheduling), backOff,
			"Scheduling node1 ; Synchronized=False/ImagePullBackOff Ready=False/GuestNotRunning"},
		{"image pulled at last", was(v1.Scheduling, pulling), podIn(corev1.PodRunning, running()),
			"Scheduled node1 ; Ready=False/GuestNotRunning"},
		{"made after all, and not written",
			was(v1.Pending, v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse,
				Reason: v1.ReasonFailedCreate}),
			creating, "Scheduling node1 ; Ready=False/GuestNotRunning"},
		{"launcher runs", was(v1.Scheduling), podIn(corev1.PodRunning, running()),
			"Scheduled node1 ; Ready=False/GuestNotRunning"},
		{"guest runs", was(v1.Running, ready), podIn(corev1.PodRunning, running()),
			"Running node1 ; Ready=True/GuestRunning"},
		{"deleted before the guest ran", was(v1.Scheduled), deleted, "Scheduled node1 ; Ready=False/PodTerminating"},
		{"failed before it ran, and kept", was(v1.Scheduled, told(v1.ReasonGuestFailed)), podIn(corev1.PodRunning, running()),
			"Scheduled node1 ; Ready=False/GuestFailed"},
		{"shuts down before it ran", was(v1.Scheduled, told(v1.ReasonGuestShuttingDown)), deleted,
			"Scheduled node1 ; Ready=False/PodTerminating"},
		{"shuts down and was not deleted", was(v1.Scheduled, told(v1.ReasonGuestShuttingDown)),
			podIn(corev1.PodRunning, running()), "Scheduled node1 ; Ready=False/GuestShuttingDown"},
		{"failed, kept, and ended", was(v1.Scheduled, told(v1.ReasonGuestFailed)), shutDown,
			"Succeeded node1 ; Ready=False/Shutdown"},
		{"deleted while the guest runs", was(v1.Running, ready), deleted, "Running node1 ; Ready=False/PodTerminating"},
		{"deleted while the guest does not answer", was(v1.Running, told(v1.ReasonLauncherNotResponding)), deleted,
			"Running node1 ; Ready=False/PodTerminating"},
		{"its source pod was being deleted when it moved", was(v1.Running, told(v1.ReasonPodTerminating)),
			podIn(corev1.PodRunning, running()), "Running node1 ; Ready=False/GuestNotRunning"},
		{"shut down", was(v1.Running, ready, paused), shutDown, "Succeeded node1 ; Ready=False/Shutdown"},
		{"with an agent", was(v1.Running, ready, agent), podIn(corev1.PodRunning, running()),
			"Running node1 ; Ready=True/GuestRunning AgentConnected=True/"},
		{"killed while it was frozen", frozen, terminated(corev1.ContainerStateTerminated{ExitCode: 137}),
			"Failed node1 LauncherKilled; Ready=False/LauncherKilled"},
		{"killed", was(v1.Running, ready), terminated(corev1.ContainerStateTerminated{ExitCode: 137}),
			"Failed node1 LauncherKilled; Ready=False/LauncherKilled"},
		{"killed in post-copy", inPostCopy(nil), terminated(corev1.ContainerStateTerminated{ExitCode: 137}),
			"Failed node1 PostCopyFailed; Ready=False/PostCopyFailed"},
		{"killed after post-copy", inPostCopy(&now), terminated(corev1.ContainerStateTerminated{ExitCode: 137}),
			"Failed node1 LauncherKilled; Ready=False/LauncherKilled"},
		{"shut down in post-copy", inPostCopy(nil), shutDown, "Succeeded node1 ; Ready=False/Shutdown"},
		{"turned away after a power cut", was(v1.Running, ready),
			without(podIn(corev1.PodFailed, corev1.ContainerState{}), "UnexpectedAdmissionError", ""),
			"Failed node1 UnexpectedAdmissionError; Ready=False/UnexpectedAdmissionError"},
		{"evicted at once", was(v1.Pending), without(podIn(corev1.PodFailed, corev1.ContainerState{}), "Evicted", ""),
			"Failed node1 Evicted; Ready=False/Evicted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := *tt.old.DeepCopy()
			observe(&got, tt.pod, now)
			if s := summary(got); s != tt.want {
				t.Errorf("got  %s\nwant %s", s, tt.want)
			}
			if got.FSFreezeStatus != "" {
				t.Errorf("it is still %s", got.FSFreezeStatus)
			}
			if node := tt.pod.Spec.NodeName; node == "" && got.ActivePods != nil ||
				node != "" && got.ActivePods["pod-uid"] != node {
				t.Errorf("active pods %v on node %q", got.ActivePods, node)
			}
			again := *got.DeepCopy()
			observe(&again, tt.pod, metav1.NewTime(now.Add(time.Hour)))
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("the same pod a second time changes the status:\n%s", diff)
			}
		})
	}
}

// TestObserveAddresses: virt-handler believes these addresses, so that they follow
// the pod's to the letter, and are not more than a status may hold.
func TestObserveAddresses(t *testing.T) {
	var status v1.VirtualMachineInstanceStatus
	for _, tt := range []struct {
		name      string
		has, want []string
	}{
		{"before the kubelet has reported", nil, nil},
		{"one family", []string{"10.1.0.7"}, []string{"10.1.0.7"}},
		{"a sandbox that was made anew", []string{"10.1.0.8", "fd00::8"}, []string{"10.1.0.8", "fd00::8"}},
		{"more than Kubernetes permits", []string{"10.1.0.8", "fd00::8", "10.1.0.9"}, []string{"10.1.0.8", "fd00::8"}},
		{"taken away", nil, nil},
	} {
		pod := podIn(corev1.PodPending, corev1.ContainerState{})
		pod.Name = "virt-launcher-x"
		for _, ip := range tt.has {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		observe(&status, pod, metav1.Unix(1000, 0))
		if got := status.LauncherPodIPs("virt-launcher-x"); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if got := status.LauncherPodIPs("virt-launcher-y"); got != nil || len(status.LauncherPods) != 1 {
			t.Errorf("%s: another pod's are %q, of %d pods", tt.name, got, len(status.LauncherPods))
		}
	}
}

// TestObserveTwoPods: what is seen of one of a VMI's pods leaves the other one alone,
// and takes the place of what was seen of it before.
func TestObserveTwoPods(t *testing.T) {
	pod := func(name, uid, node string, ips ...string) *corev1.Pod {
		p := podIn(corev1.PodPending, corev1.ContainerState{})
		p.Name, p.UID, p.Spec.NodeName = name, types.UID(uid), node
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	status := v1.VirtualMachineInstanceStatus{}
	step := func(p *corev1.Pod, pods []v1.LauncherPod, active map[types.UID]string) {
		t.Helper()
		for range 2 {
			observePod(&status, p)
			if diff := cmp.Diff(pods, status.LauncherPods,
				cmpopts.SortSlices(func(a, b v1.LauncherPod) bool { return a.Name < b.Name })); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(active, status.ActivePods); diff != "" {
				t.Error(diff)
			}
		}
	}
	step(pod("first", "1", ""), []v1.LauncherPod{{Name: "first", UID: "1"}}, nil)
	step(pod("first", "1", "n1"), []v1.LauncherPod{{Name: "first", UID: "1"}}, map[types.UID]string{"1": "n1"})
	// The node turned it away, and it was made anew.
	step(pod("first", "2", "n1", "10.0.0.2"), []v1.LauncherPod{{Name: "first", UID: "2", IPs: []string{"10.0.0.2"}}},
		map[types.UID]string{"2": "n1"})
	status.LauncherPods = append(status.LauncherPods, v1.LauncherPod{Name: "target", UID: "3", IPs: []string{"10.0.1.3"}})
	status.ActivePods["3"] = "n2"
	step(pod("first", "2", "n1", "10.0.0.4"),
		[]v1.LauncherPod{{Name: "first", UID: "2", IPs: []string{"10.0.0.4"}},
			{Name: "target", UID: "3", IPs: []string{"10.0.1.3"}}},
		map[types.UID]string{"2": "n1", "3": "n2"})
}

func summary(s v1.VirtualMachineInstanceStatus) string {
	parts := []string{string(s.Phase) + " " + s.NodeName + " " + s.Reason + ";"}
	for _, c := range s.Conditions {
		parts = append(parts, string(c.Type)+"="+string(c.Status)+"/"+c.Reason)
	}
	return strings.Join(parts, " ")
}

// TestContainerThatCannotStartSaysWhy: of a container that is started again and again, the VMI has more than that: the
// words of the last attempt.
func TestContainerThatCannotStartSaysWhy(t *testing.T) {
	pod := podIn(corev1.PodPending,
		corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}})
	first := corev1.ContainerStatus{Name: "disk-root"}
	first.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}
	first.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "StartError",
		Message: `exec: "/kubeqemu/program": permission denied`}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{first}
	status := v1.VirtualMachineInstanceStatus{}
	observe(&status, pod, metav1.Unix(1000, 0))
	if c := status.Condition(v1.ConditionSynchronized); c == nil || c.Reason != "CrashLoopBackOff" ||
		!strings.Contains(c.Message, "back-off 10s") || !strings.Contains(c.Message, "permission denied") {
		t.Errorf("%+v", c)
	}
}
