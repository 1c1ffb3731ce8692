package launcher

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestHello(t *testing.T) {
	t.Parallel()
	v := launch(t)
	hello := v.conn.Hello
	if hello.Version != control.Version ||
		!reflect.DeepEqual(hello.State, control.StateReport{State: control.StateWaiting}) {
		t.Errorf("hello %+v", hello)
	}
	version, err := exec.Command(v.QEMU, "-version").Output()
	v.must(err)
	if hello.QEMUVersion == "" || !strings.HasPrefix(string(version), "QEMU emulator version "+hello.QEMUVersion+" ") {
		t.Errorf("version %q, QEMU says %q", hello.QEMUVersion, version)
	}
	var fs unix.Statfs_t
	var theirs, ours unix.Stat_t
	v.must(unix.Fstatfs(int(v.conn.NetNS.Fd()), &fs), unix.Fstat(int(v.conn.NetNS.Fd()), &theirs),
		unix.Stat("/proc/self/ns/net", &ours))
	if fs.Type != unix.NSFS_MAGIC || theirs.Ino != ours.Ino || theirs.Dev != ours.Dev {
		t.Errorf("the file that came is no network namespace of the launcher's (file system %#x)", fs.Type)
	}
}

// TestLauncherMayComeBeforeItsHandler: the launcher may be there before its handler.
func TestLauncherMayComeBeforeItsHandler(t *testing.T) {
	t.Parallel()
	v := prepareVM(t)
	v.handler.Close()
	v.run()
	v.log.Expect("not connected to virt-handler")
	v.handler = launchertest.Listen(t, v.SlotSocket)
	v.conn = launchertest.Accept(t, v.handler)
	v.start()
}

func TestInspectVolumes(t *testing.T) {
	t.Parallel()
	v := launch(t)
	image := func(volume string, write func(path string) error) {
		path := filepath.Join(v.Images, volume, "disk", "image")
		v.must(os.MkdirAll(filepath.Dir(path), 0o755), write(path))
	}
	qemuImg := func(args ...string) func(string) error {
		return func(path string) error {
			return exec.Command(launchertest.Program(v.T, "qemu-img"), append(args, path, "3M")...).Run()
		}
	}
	image("good", qemuImg("create", "-q", "-f", "qcow2"))
	image("raw", qemuImg("create", "-q", "-f", "raw"))
	image("backed", qemuImg("create", "-q", "-f", "qcow2", "-F", "raw", "-b", "/etc/passwd"))
	image("corrupt", func(path string) error { return os.WriteFile(path, []byte("QFI\xfb and no more"), 0o644) })
	image("../outside", qemuImg("create", "-q", "-f", "raw"))
	image("link", func(path string) error { return os.Symlink("/etc/passwd", path) })

	names := []control.ContainerDisk{{Volume: "good"}, {Volume: "raw", Path: "/disk/image"}, {Volume: "backed"},
		{Volume: "corrupt"}, {Volume: "link"}, {Volume: "missing"}, {Volume: "good", Path: "/disk/other"},
		{Volume: "good", Path: "/../../handler.sock"}, {Volume: "../images/good"}, {Volume: "../outside"}}
	var reply control.InspectReply
	v.must(v.call(control.CommandInspect, control.InspectRequest{ContainerDisks: names}, &reply))
	if len(reply.ContainerDisks) != len(names) {
		t.Fatalf("%d answers to %d questions", len(reply.ContainerDisks), len(names))
	}
	good := qemuargs.ImageFacts{Path: filepath.Join(v.Images, "good/disk/image"), Format: qemuargs.QCOW2,
		VirtualSize: 3 << 20, Direct: reply.ContainerDisks[0].Direct}
	raw := qemuargs.ImageFacts{Path: filepath.Join(v.Images, "raw/disk/image"), Format: qemuargs.Raw, VirtualSize: 3 << 20,
		Direct: reply.ContainerDisks[1].Direct}
	for i, want := range []struct {
		facts qemuargs.ImageFacts
		err   string
	}{
		{good, ""}, {raw, ""}, {err: "backing file"}, {err: "cut off"}, {err: "symbolic link"},
		{err: "no such file"}, {err: "no file /disk/other"}, {err: "no file /handler.sock"}, {good, ""},
		{err: "no such file"},
	} {
		got := reply.ContainerDisks[i]
		if want.err != "" && !strings.Contains(got.Error, want.err) || want.err == "" && got != want.facts {
			t.Errorf("%+v: got %+v, want %+v", names[i], got, want)
		}
		if want.err != "" && (got != qemuargs.ImageFacts{Error: got.Error}) {
			t.Errorf("%+v: facts beside the error: %+v", names[i], got)
		}
	}
	if left, err := os.ReadDir(v.Overlays); err != nil || len(left) != 0 {
		t.Errorf("inspect left %v in the overlays' folder (%v)", left, err)
	}
}

// TestLauncherComesBackToARestartedHandler: the launcher comes back by itself, and says the same.
func TestLauncherComesBackToARestartedHandler(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	console := attach(v)
	for range 3 {
		v.handler.Close()
		v.conn.Close()
		console.say("x")
		console.Expect("x") // the guest runs without a handler
		v.handler = launchertest.Listen(t, v.SlotSocket)
		v.conn = launchertest.Accept(t, v.handler)
		sameState(t, v.conn.Hello.State, started)
		var state control.StateReport
		v.must(v.call(control.CommandQueryState, nil, &state))
		sameState(t, state, started)
	}
	console.say("P")
	if end := v.expectState(control.StateExited); end.QEMUPID != started.QEMUPID {
		t.Errorf("QEMU is process %d, was %d", end.QEMUPID, started.QEMUPID)
	}
	v.expectEnd(control.ReasonGuestShutdown, "")
}

func sameState(t *testing.T, got, want control.StateReport) {
	t.Helper()
	if got.StartedAt == nil || !got.StartedAt.Equal(*want.StartedAt) {
		t.Errorf("started at %v, was %v", got.StartedAt, want.StartedAt)
	}
	got.StartedAt = want.StartedAt
	if !reflect.DeepEqual(got, want) {
		t.Errorf("state %+v\nwas %+v", got, want)
	}
}

// TestVMEndsWithoutHandler: the launcher tells how its VM ends although no handler listens.
func TestVMEndsWithoutHandler(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.GraceSeconds = 1
	started := v.boot()
	v.handler.Close()
	v.conn.Close()
	v.signals <- syscall.SIGTERM
	v.expectEnd(control.ReasonGracePeriodOver, "1 seconds")
	v.qemuGone(started)
}

// TestHangingHandlerHoldsUpNothing: a handler that hangs holds up neither the guest nor the end.
func TestHangingHandlerHoldsUpNothing(t *testing.T) {
	t.Parallel()
	v := prepareVM(t)
	v.run()
	raw, err := v.handler.AcceptUnix()
	v.must(err)
	defer raw.Close()
	conn := control.NewConn(raw)
	v.request.GraceSeconds = 1
	data := encode(t, v.request)
	v.must(conn.Send(control.Message{Execute: control.CommandStart, ID: 1, Data: data}))
	v.stdout.Expect(banner)
	// Without being read, the launcher's answers fill the socket, and then its
	// queue; it gives the connection up.
	question := append(encode(t, control.Message{Execute: control.CommandQueryState, ID: 2}), '\n')
	for err == nil {
		raw.SetWriteDeadline(time.Now().Add(patience))
		_, err = raw.Write(question)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the launcher neither reads nor gives up")
	}
	// The next handler does not read either. Its launcher's last state has a moment.
	again, err := v.handler.AcceptUnix()
	v.must(err)
	defer again.Close()
	begin := time.Now()
	attach(v).say("P")
	v.expectEnd(control.ReasonGuestShutdown, "")
	if took := time.Since(begin); took > tooLate {
		t.Errorf("took %s", took)
	}
}

// TestProtocolViolations: a connection on which the protocol is broken is
// given up, and only that.
func TestProtocolViolations(t *testing.T) {
	t.Parallel()
	v := prepareVM(t)
	v.run()
	greeted := func() (*net.UnixConn, *control.Conn) {
		raw, err := v.handler.AcceptUnix()
		v.must(err)
		t.Cleanup(func() { raw.Close() })
		conn := control.NewConn(raw)
		hello, err := conn.Receive()
		v.must(err)
		hello.Close()
		return raw, conn
	}
	for _, line := range []string{"no JSON\n", `{"execute":"start","execute2":"x"}` + "\n", `{"event":"state"}` + "\n",
		`{"execute":"start","files":3}` + "\n",
		strings.Repeat("x", control.MaxMessageBytes+1)} {
		raw, conn := greeted()
		go raw.Write([]byte(line))
		if m, err := conn.Receive(); err == nil {
			t.Errorf("after %.40q: message %+v", line, m)
		}
		raw.Close()
	}
	_, conn := greeted()
	for _, execute := range []string{"no-such-command", control.CommandStart, control.CommandInspect,
		control.CommandReject} {
		v.must(conn.Send(control.Message{Execute: execute, ID: 7, Data: []byte(`{"unknown":1}`)}))
		if m, err := conn.Receive(); err != nil || m.ID != 7 || m.Error == nil {
			t.Errorf("%s: answer %+v, error %v", execute, m, err)
		}
	}
}

func TestRefusedCommands(t *testing.T) {
	t.Parallel()
	v := launch(t)
	var remote *control.RemoteError
	zero, err := os.Open("/dev/zero")
	v.must(err)
	defer zero.Close()
	if err := v.call(control.CommandStart, v.request, nil,
		control.File{Name: "tap/default/0", File: zero}); !errors.As(err, &remote) ||
		!strings.Contains(err.Error(), "no use") {
		t.Errorf("start with a file that the machine has no use for: %v", err)
	}
	needs := v.request
	needs.Machine.NICs = []qemuargs.NIC{{Name: "default", Queues: 2}}
	if err := v.call(control.CommandStart, needs, nil,
		control.File{Name: "tap/default/0", File: zero}); !errors.As(err, &remote) ||
		!strings.Contains(err.Error(), `without the file "tap/default/1"`) {
		t.Errorf("start with one file of two: %v", err)
	}
	needs.Machine.NICs = []qemuargs.NIC{{Name: "default", Queues: 1, Vhost: true}}
	if err := v.call(control.CommandStart, needs, nil,
		control.File{Name: "tap/default/0", File: zero}); !errors.As(err, &remote) ||
		!strings.Contains(err.Error(), `without the file "vhost/default/0"`) {
		t.Errorf("start without the file of vhost-net: %v", err)
	}
	if err := v.call(control.CommandStart, needs, nil,
		control.File{Name: "vhost/default/0", File: zero}); !errors.As(err, &remote) ||
		!strings.Contains(err.Error(), `without the file "tap/default/0"`) {
		t.Errorf("start with the file of vhost-net alone: %v", err)
	}
	started := v.boot() // refused starts have changed nothing
	if err := v.call(control.CommandStart, v.request, nil); !errors.As(err, &remote) ||
		!strings.Contains(err.Error(), "running") {
		t.Errorf("second start: %v", err)
	}
	if err := v.call(control.CommandReject, control.Termination{Message: "no"}, nil); !errors.As(err, &remote) {
		t.Errorf("reject of a running VM: %v", err)
	}
	var state control.StateReport
	v.must(v.call(control.CommandQueryState, nil, &state))
	sameState(t, state, started)
}

// TestRefusedFiles: files that come with a refused command are closed. It is
// not parallel, for without garbage collection nothing else closes them.
func TestRefusedFiles(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	v := launch(t)
	for _, command := range []string{"no-such-command", control.CommandInspect, control.CommandStart,
		control.CommandReject, control.CommandQueryState} {
		r, w, err := os.Pipe()
		v.must(err)
		err = v.call(command, map[string]int{"unknown": 1}, nil, control.File{Name: "w", File: w})
		if remote := new(control.RemoteError); command != control.CommandQueryState && !errors.As(err, &remote) {
			t.Errorf("%s: %v", command, err)
		}
		w.Close()
		r.SetReadDeadline(time.Now().Add(patience))
		if _, err := r.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: the launcher holds a file that came with it: %v", command, err)
		}
		r.Close()
	}
}

func TestRejectedVMEndsWithTheReason(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.must(v.call(control.CommandReject,
		control.Termination{Reason: control.ReasonGuestShutdown, Message: "no such disk"}, nil))
	end := v.termination()
	if want := (control.Termination{Reason: control.ReasonStartFailed, Message: "no such disk"}); end != want {
		t.Errorf("ended with %+v, want %+v", end, want)
	}
	v.expectState(control.StateExited)
	testkit.Receive(t, v.conn.Done(), "the end of the connection")
	if err := v.conn.Err(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v", err)
	}
}
