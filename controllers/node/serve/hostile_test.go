package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/slots"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// device is what the kubelet gave the pod of the VMI vm, whose UID is u1.
const device = "vm9"

// slotted is a Server of that VMI, whose launcher is to dial a slot.
type slotted struct {
	*Server
	slots    *slots.Slots
	sessions *sessions.Set
	pod      types.NamespacedName
}

func newSlotted(t *testing.T) *slotted {
	t.Helper()
	object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u1"}}
	s := &slotted{pod: types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName("vm", "u1", v1.FirstPod)}}
	s.sessions = sessions.NewSet(testr.New(t), func(types.NamespacedName) {})
	t.Cleanup(s.sessions.Close)
	kubelet := nodetest.NewKubelet(map[string][]types.NamespacedName{device: {s.pod}})
	var err error
	if s.slots, err = slots.Open(t.TempDir(), slots.Resource{}, kubelet, testr.New(t), s.sessions); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.slots.Close)
	scheme := apiruntime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s.Server = &Server{Log: logr.Discard(), limits: newVMILimits(), Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build(),
		Launcher: first(s.sessions), Clock: clock.RealClock{}}
	return s
}

// reset presses the reset button as virt-api does.
func reset(handler http.Handler) int {
	path := strings.NewReplacer("{namespace}", "ns", "{name}", "vm", "{operation}", handlerapi.Reset).Replace(handlerapi.Pattern)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPut, path+"?"+handlerapi.UID+"=u1", nil))
	return answer.Code
}

// TestLingeringSocketsTakeOneThread: a launcher that has every answer bring a TCP socket
// that lingers, and dials again each time, takes a thread of virt-handler's, however
// often its users ask.
func TestLingeringSocketsTakeOneThread(t *testing.T) {
	n := newSlotted(t)
	handler := n.handler()
	folder, netns := nodetest.Folder(t, n.slots, device), nodetest.NetNSFile(t, nodetest.PodNetwork(t))
	var hostile sync.WaitGroup
	over := make(chan struct{})
	sent := 0
	closer := &control.Closer{}
	hostile.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
			raw, err := nodetest.DialSlot(folder)
			if err != nil {
				continue
			}
			conn := control.NewConn(raw)
			hello, _ := json.Marshal(nodetest.Hello())
			err = conn.Send(control.Message{Event: control.EventHello, Data: hello, Files: []control.File{{Name: control.FileNetNS, File: netns}}})
			for err == nil {
				var m *control.Message
				if m, err = conn.Receive(); err == nil {
					lingers := nodetest.Lingering(t)
					// The file goes with the first half of the line, so that the one that was
					// sent is the last when it is dropped.
					_, _, err = raw.WriteMsgUnix([]byte(fmt.Sprintf(`{"id":%d,`, m.ID)), unix.UnixRights(int(lingers.Fd())), nil)
					closer.Close(lingers)
					for !closer.Idle() {
						runtime.Gosched()
					}
					if err == nil {
						_, err = raw.Write([]byte(`"return":null,"files":["console"]}` + "\n"))
						sent++
					}
				}
			}
			raw.Close()
		}
	})
	before := taskCount(t)
	var asking sync.WaitGroup
	codes := sync.Map{}
	questions := make(chan struct{})
	for range 20 {
		asking.Go(func() {
			for range questions {
				codes.Store(reset(handler), true)
			}
		})
	}
	highest := 0
	begin := time.Now()
	for i := range 10_000 {
		select {
		case questions <- struct{}{}:
		case <-time.After(testkit.Patience):
			t.Fatalf("nobody asks any more after %d questions: all wait for files to be closed", i)
		}
		if i%200 == 0 {
			highest = max(highest, taskCount(t))
			time.Sleep(20 * time.Millisecond) // so that the launcher dials again
		}
	}
	close(questions)
	asking.Wait()
	close(over)
	n.sessions.Close()
	n.slots.Close()
	hostile.Wait()
	t.Logf("%d questions in %s, %d answers with a socket, at most %d threads more", 10_000, time.Since(begin), sent, highest-before)
	if sent < 2 {
		t.Errorf("only %d answers brought a socket", sent)
	}
	// One that closes, and some of Go's own. Each socket would take another.
	if highest > before+8 {
		t.Errorf("%d threads, %d before", highest, before)
	}
	for code := range codes.Range {
		if code != http.StatusServiceUnavailable && code != http.StatusTooManyRequests {
			t.Errorf("answered with %v", code)
		}
	}
}

func taskCount(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestCallsToASilentLauncherAreBounded: a launcher that answers nothing is not asked without end,
// and who is not heard is told so at once.
func TestCallsToASilentLauncherAreBounded(t *testing.T) {
	n := newSlotted(t)
	handler := n.handler()
	launcher := nodetest.Dial(t, nodetest.Folder(t, n.slots, device))
	launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, nodetest.PodNetwork(t)))
	for n.sessions.Get(n.pod) == nil {
		runtime.Gosched()
	}
	codes := make(chan int, 100)
	for range 100 {
		go func() { codes <- reset(handler) }()
	}
	for range 100 - maxVMICalls {
		if code := testkit.Receive(t, codes, "an answer without a word of the launcher's"); code != http.StatusTooManyRequests {
			t.Errorf("answered with %d", code)
		}
	}
	// virt-handler's own question finds room.
	asked := make(chan error, 1)
	go func() { asked <- n.sessions.Get(n.pod).Call(t.Context(), control.CommandQueryState, nil, nil) }()
	for range maxVMICalls + 1 {
		m, err := launcher.Conn.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if err := launcher.Conn.Send(control.Message{ID: m.ID, Return: []byte("null")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-asked; err != nil {
		t.Errorf("virt-handler's own question: %v", err)
	}
}
