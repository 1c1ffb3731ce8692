package node

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// recordedSession is a session that TestRecordedHandler of package launcher has recorded.
const recordedSession = "../../launcher/testdata/contract.jsonl"

type spoken struct {
	Execute string
	Event   string
	ID      uint64
	Data    json.RawMessage
	Return  json.RawMessage
	Files   []string
}

// recorded is the launcher of a session that was recorded. What it is asked, it
// answers as it did then, and says what it said after that.
type recorded struct {
	*nodetest.Launcher
	t       *testing.T
	answers map[string][]spoken // by command
	files   map[string]*os.File
	asked   []string
}

// readRecorded returns the launcher and its hello.
func readRecorded(t *testing.T, s *nodetest.Launcher) (*recorded, spoken) {
	t.Helper()
	file, err := os.Open(recordedSession)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := &recorded{Launcher: s, t: t, answers: map[string][]spoken{}, files: map[string]*os.File{}}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, control.MaxMessageBytes)
	command := ""
	for lines.Scan() {
		var line struct{ Launcher, Handler *spoken }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line.Handler != nil {
			command = line.Handler.Execute
		} else {
			r.answers[command] = append(r.answers[command], *line.Launcher)
		}
	}
	if err := lines.Err(); err != nil || len(r.answers[""]) != 1 {
		t.Fatalf("no hello: %v", err)
	}
	return r, r.answers[""][0]
}

func (r *recorded) say(m spoken) error {
	out := control.Message{Event: m.Event, ID: m.ID, Data: m.Data, Return: m.Return}
	for _, name := range m.Files {
		out.Files = append(out.Files, control.File{Name: name, File: r.files[name]})
	}
	return r.Conn.Send(out)
}

// serve answers until virt-handler hangs up.
func (r *recorded) serve() {
	for {
		m, err := r.Conn.Receive()
		if err != nil {
			return
		}
		m.Close()
		if len(r.answers[m.Execute]) == 0 {
			r.t.Errorf("today's virt-handler asks the recorded launcher for %s %s", m.Execute, m.Data)
			return
		}
		r.asked = append(r.asked, m.Execute)
		for _, s := range r.answers[m.Execute] {
			if s.Event == "" {
				s.ID = m.ID
			}
			if err := r.say(s); err != nil {
				return
			}
		}
	}
}

// TestRecordedLauncher: today's virt-handler runs a VM with the recorded
// launcher: starts it, learns its states, has its console, grows its disk, ends it.
func TestRecordedLauncher(t *testing.T) {
	n := newNode(t)
	launcher, hello := readRecorded(t, n.Dial(t, "vm1"))
	guest, theirs := testkit.SocketPair(t)
	console, err := theirs.File()
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	launcher.files[control.FileNetNS], launcher.files[control.FileConsole] = nodetest.NetNSFile(t, nodetest.PodNetwork(t)), console
	if err := launcher.say(hello); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); launcher.serve() }()
	n.Await(t)
	s := n.sessions.Get(nodetest.Pod("a"))
	await := func(what string, is func(control.StateReport) bool) {
		t.Helper()
		testkit.Eventually(t, "a VM that has "+what, func() error {
			if state := s.State(); !is(state) {
				return fmt.Errorf("the state is %+v", state)
			}
			return nil
		})
	}

	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "ns", "guest", "0a1b2c3d-0000-4000-8000-000000000001"
	devices := &vmi.Spec.Domain.Devices
	devices.AutoattachPodInterface, devices.AutoattachGraphicsDevice = ptr.To(false), ptr.To(false)
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "guest"}},
		{Name: "data", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}}}
	devices.Disks = []v1.Disk{{Name: "root", Disk: &v1.DiskTarget{}}, {Name: "data", Disk: &v1.DiskTarget{}}}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Mi")}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem)}}}
	v1.Default(vmi)
	r := &Reconciler{Starter: newStarter(), Sessions: n.sessions, Clock: clock.RealClock{}}
	if err := r.Starter.Start(t.Context(), vmi, s, false); err != nil {
		t.Fatal(err)
	}
	await("started", func(s control.StateReport) bool {
		return s.State == control.StateRunning && s.StartedAt != nil && s.QEMUPID > 0
	})
	var asked control.StateReport
	if err := s.Call(t.Context(), control.CommandQueryState, nil, &asked); err != nil || asked.State != control.StateRunning || asked.Machine.Type != "pc-q35-7.2" {
		t.Errorf("query-state: %+v, %v", asked, err)
	}
	stream, err := s.Stream(t.Context(), control.CommandConsole, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Write([]byte("login: ")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 16)
	if n, err := stream.Read(got); string(got[:n]) != "login: " || err != nil {
		t.Errorf("the console says %q, %v", got[:n], err)
	}
	stream.Close()
	r.followSpec(t.Context(), vmi, s)
	await("grown its disk", func(s control.StateReport) bool {
		j := control.NewestJob(s.Jobs, control.JobBecome, control.JobTargetMachine)
		return j != nil && j.State == control.JobDone
	})
	r.followSpec(t.Context(), vmi, s)
	if err := s.Call(t.Context(), control.CommandShutdown, nil, nil); err != nil {
		t.Error(err)
	}
	await("ended", func(s control.StateReport) bool { return s.State == control.StateExited })
	launcher.Raw.Close()
	<-served
	want := []string{control.CommandInspect, control.CommandStart, control.CommandQueryState, control.CommandConsole, control.CommandBecome, control.CommandForgetJob, control.CommandShutdown}
	if !slices.Equal(launcher.asked, want) {
		t.Errorf("it was asked for %q, want %q; one that is asked for its commands knows others than this version: "+
			"record it anew, go test ./launcher -run TestRecordedHandler -record", launcher.asked, want)
	}
}
