package control

import (
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control/controltest"
)

// TestKindOfAFileIsToldWithoutItsDriver: what a launcher's file is, is told without asking the file's driver,
// which may never answer.
func TestKindOfAFileIsToldWithoutItsDriver(t *testing.T) {
	number := func(fd int, err error) int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	opened := func(path string) int { t.Helper(); return number(unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)) }
	socket := func(domain, kind int) int {
		t.Helper()
		return number(unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0))
	}
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	number(pipe[1], nil)
	// Names are the tenant's.
	dir := t.TempDir()
	for _, name := range []string{"net:[4026531840]", "socket:[1]"} {
		if err := os.WriteFile(dir+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lingers := controltest.Lingering(t)
	hangs := hanging(t)
	for _, tt := range []struct {
		name string
		fd   int
		is   fileKind
	}{
		{"its network namespace", opened("/proc/thread-self/ns/net"), networkNamespace},
		{"a unix stream", socket(unix.AF_UNIX, unix.SOCK_STREAM), streamSocket},
		{"a unix datagram socket", socket(unix.AF_UNIX, unix.SOCK_DGRAM), ""},
		{"a packet socket of unix", socket(unix.AF_UNIX, unix.SOCK_SEQPACKET), ""},
		{"a TCP socket", socket(unix.AF_INET, unix.SOCK_STREAM), ""},
		{"a TCP socket that lingers", lingers, ""},
		{"a netlink socket", socket(unix.AF_NETLINK, unix.SOCK_RAW), ""},
		{"a file of FUSE whose server does not answer", hangs, ""},
		{"a mount namespace", opened("/proc/thread-self/ns/mnt"), ""},
		{"a folder", opened(dir), ""},
		{"a file that is named like a namespace", opened(dir + "/net:[4026531840]"), ""},
		{"a file that is named like a socket", opened(dir + "/socket:[1]"), ""},
		{"a pipe", pipe[0], ""},
		{"a device", opened("/dev/zero"), ""},
		{"a process", number(unix.PidfdOpen(os.Getpid(), 0)), ""},
		{"an event counter", number(unix.Eventfd(0, unix.EFD_CLOEXEC)), ""},
		{"an epoll", number(unix.EpollCreate1(unix.EPOLL_CLOEXEC)), ""},
		{"memory named like a namespace", number(unix.MemfdCreate("net:[1]", unix.MFD_CLOEXEC)), ""},
		{"no file", 1 << 20, ""},
	} {
		told := make(chan struct{})
		go func() {
			defer close(told)
			for _, kind := range []fileKind{networkNamespace, streamSocket} {
				if got := descriptor(tt.fd).is(kind); got != (kind == tt.is) {
					t.Errorf("%s: is %s: %v", tt.name, kind, got)
				}
			}
		}()
		testkit.Receive(t, told, "the kind of "+tt.name)
	}
}

// TestCloserTakesOneThread: what a launcher sends and what does not close costs one
// thread; a TCP socket that lingers is interrupted.
func TestCloserTakesOneThread(t *testing.T) {
	const each = 12
	files := []int{}
	for range each {
		files = append(files, controltest.Lingering(t))
	}
	runtime.GC()
	before := threads(t)
	c, stuck, begin := &Closer{}, &Closer{}, time.Now()
	for _, fd := range files {
		c.Close(descriptor(fd))
	}
	hangs := hanging(t)
	for range each {
		fd, err := unix.Dup(hangs)
		if err != nil {
			t.Fatal(err)
		}
		stuck.Close(descriptor(fd)) // each close is a FLUSH, which nobody answers
	}
	// A close takes a patience, and this test may have been stopped for many: elapsed says how many may be over.
	fullAfter := func(what string, closer *Closer) {
		t.Helper()
		if full := closer.Full(); !full && time.Since(begin) < (each-maxClosing)*closePatience {
			t.Error(what)
		}
	}
	fullAfter("it does not say that it is full", c)
	if !stuck.Full() {
		t.Error("that of FUSE does not say that it is full")
	}
	// The first is over, and the next is on its way.
	time.Sleep(closePatience * 3 / 2)
	fullAfter("sockets that linger were closed at once", c)
	if !stuck.Full() || stuck.Idle() {
		t.Error("a file of FUSE was closed, though nobody answers")
	}
	// The runtime has some threads of its own: two a close would be twenty.
	if now := threads(t); now > before+8 {
		t.Errorf("%d threads, %d before: %d files that do not close take more than one a launcher", now, before, 2*each)
	}
	testkit.Until(t, "the end of TCP sockets that linger", c.Idle)
}

// TestClientRefusesFiles: an event or an answer that brings what it may not ends
// the connection, and nobody waits for the file to be closed.
func TestClientRefusesFiles(t *testing.T) {
	null := json.RawMessage("null")
	pair := func(t *testing.T) *os.File {
		a, _ := socketpair(t)
		f, err := a.File()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	linger := func(t *testing.T) *os.File { return os.NewFile(uintptr(controltest.Lingering(t)), "lingers") }
	netns := func(t *testing.T) *os.File {
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, tt := range map[string]struct {
		command string
		message Message
		file    func(*testing.T) *os.File
		called  string // the file's name in the message
		ok      bool
	}{
		"hello with its namespace":       {"", Message{Event: EventHello}, netns, FileNetNS, true},
		"hello with another name":        {"", Message{Event: EventHello}, netns, "pid", false},
		"hello with a socket":            {"", Message{Event: EventHello}, linger, FileNetNS, false},
		"a state with a namespace":       {"", Message{Event: EventState}, netns, FileNetNS, false},
		"an unknown event with a file":   {"", Message{Event: "new"}, pair, FileConsole, false},
		"a console":                      {CommandConsole, Message{Return: null}, pair, FileConsole, true},
		"a console with VNC":             {CommandConsole, Message{Return: null}, pair, FileVNC, false},
		"a console that lingers":         {CommandConsole, Message{Return: null}, linger, FileConsole, false},
		"an error with a console":        {CommandConsole, Message{Error: &RemoteError{"no"}}, pair, FileConsole, false},
		"a reset with a socket":          {CommandReset, Message{Return: null}, linger, FileConsole, false},
		"an answer to nobody":            {CommandReset, Message{ID: 99, Return: null}, linger, FileConsole, true},
		"a command with files that came": {CommandReset, Message{Execute: "start"}, linger, FileConsole, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := tt.file(t)
			taken := make(chan string, 1)
			client, launcher := newClient(t, func(m *Message) {
				for _, f := range m.Files {
					taken <- f.Name
				}
				m.Close()
			})
			answered := make(chan error, 1)
			if tt.command != "" {
				go func() {
					if _, may := AnswerFile(tt.command); may {
						stream, err := client.CallForStream(t.Context(), tt.command, nil)
						if err == nil {
							taken <- tt.called
							stream.Close()
						}
						answered <- err
						return
					}
					answered <- client.Call(t.Context(), tt.command, nil, nil)
				}()
				tt.message.ID = max(tt.message.ID, receive(t, launcher).ID)
			}
			tt.message.Files = []File{{tt.called, file}}
			send(t, launcher, tt.message)
			(&Closer{}).Close(file) // the one on its way is the last, unless it is closed already
			if !tt.ok {
				testkit.Receive(t, client.Done(), "the end of the connection")
				if err := client.Err(); !errors.Is(err, ErrProtocol) {
					t.Errorf("the connection ended with %v", err)
				}
				if len(taken) > 0 {
					t.Error("the file was taken")
				}
				return
			}
			if tt.message.ID == 99 { // dropped, and the launcher still owes the answer
				send(t, launcher, Message{ID: 1, Return: null})
			} else if got := <-taken; got != tt.called {
				t.Errorf("got %q", got)
			}
			if tt.command != "" {
				if err := <-answered; err != nil {
					t.Error(err)
				}
			}
			select {
			case <-client.Done():
				t.Errorf("the connection ended: %v", client.Err())
			default:
			}
		})
	}
}

// TestStreamRefusesFiles: files along with a stream's bytes end the stream, and are not
// closed by who reads it.
func TestStreamRefusesFiles(t *testing.T) {
	guest, theirs := socketpair(t)
	file, err := theirs.File()
	if err != nil {
		t.Fatal(err)
	}
	closer := &Closer{}
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	theirs.Close()
	stream, err := newStream(descriptor(fd), false, closer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Write([]byte("login: ")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 16)
	if n, err := stream.Read(got); string(got[:n]) != "login: " || err != nil {
		t.Fatalf("read %q, %v", got[:n], err)
	}
	lingers := controltest.Lingering(t)
	if _, _, err := guest.WriteMsgUnix([]byte("x"), unix.UnixRights(lingers), nil); err != nil {
		t.Fatal(err)
	}
	unix.Close(lingers)
	read := make(chan error, 1)
	go func() {
		_, err := stream.Read(got)
		read <- err
	}()
	// The file itself lingers for an hour.
	if err := testkit.Receive(t, read, "the end of the stream, without the file's"); !errors.Is(err, ErrProtocol) {
		t.Errorf("read %v", err)
	}
	guest.SetReadDeadline(time.Now().Add(testkit.Patience))
	if _, err := guest.Read(got); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stream is still there: %v", err)
	}
}

// TestUnansweredCallsAreBounded: a launcher that does not answer is not asked without end, also
// where nobody waits any more; its answers let it be asked again.
func TestUnansweredCallsAreBounded(t *testing.T) {
	client, launcher := newClient(t, nil)
	over, cancel := contextOver(t)
	for range maxCalls {
		if err := client.Call(over, CommandReset, nil, nil); !errors.Is(err, over.Err()) {
			t.Fatal(err)
		}
	}
	cancel()
	if err := client.Call(t.Context(), CommandReset, nil, nil); !errors.Is(err, ErrBusy) {
		t.Fatalf("one question more: %v", err)
	}
	over, cancel = contextOver(t)
	if err := client.Call(over, CommandQueryState, nil, nil); !errors.Is(err, over.Err()) {
		t.Fatalf("the question whether it is there: %v", err)
	}
	cancel()
	for range 2 {
		send(t, launcher, Message{ID: receive(t, launcher).ID, Return: json.RawMessage("null")})
	}
	testkit.Eventually(t, "a question after an answer", func() error {
		over, cancel := contextOver(t)
		defer cancel()
		if err := client.Call(over, CommandReset, nil, nil); !errors.Is(err, over.Err()) {
			return err
		}
		return nil // it was sent
	})
}

func threads(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
