package virtctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is for a guest that boots emulated, beside others.
const patience = 6 * time.Minute

// bench is the namespace and the folder in which the command lines are run.
type bench struct {
	t         *testing.T
	folder    string
	namespace string
}

const namespace = "virtctl"

// newBench makes the namespace with the objects of testdata/objects.yaml, and the folder with the files that the lines
// name. The kubeconfig in the folder has the namespace, so that a line is typed as a user types it.
func newBench(t *testing.T) *bench {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("KUBECONFIG names no cluster; run `make virtctl`")
	}
	b := &bench{t: t, folder: t.TempDir(), namespace: namespace}
	kubeconfig := b.must("kubectl config view --raw --flatten --minify")
	b.write("kubeconfig", kubeconfig)
	t.Setenv("KUBECONFIG", filepath.Join(b.folder, "kubeconfig"))
	b.must("kubectl delete namespace --ignore-not-found " + namespace + " && kubectl delete --ignore-not-found persistentvolume/virtctl storageclass/virtctl && " +
		"kubectl create namespace " + namespace + " && kubectl config set-context --current --namespace " + namespace)
	t.Cleanup(func() {
		if _, err := b.shell("kubectl delete namespace " + namespace + " && kubectl delete persistentvolume/virtctl storageclass/virtctl"); err != nil {
			t.Error(err)
		}
	})
	// ssh of the machine's user may ask an agent, and read a configuration of its own.
	t.Setenv("SSH_AUTH_SOCK", "")
	t.Setenv("HOME", b.folder)
	for _, key := range []string{"key", "extra", "other"} {
		b.must("ssh-keygen -q -t ed25519 -N '' -C " + key + " -f " + key)
	}
	cdi, err := os.ReadFile("../apiserver/cdi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b.write("cdi.yaml", string(cdi))
	objects, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b.write("objects.yaml", strings.ReplaceAll(string(objects), "PUBLIC-KEY", strings.TrimSpace(b.must("cat key.pub"))))
	b.must("kubectl create -f objects.yaml")
	b.must("kubectl get vm sized -o yaml > sized.yaml")
	b.write("sent.txt", "sent by scp\n")
	b.write("image.raw", strings.Repeat("\x00", 1<<20))
	b.write("password", "secret\n")
	// A viewer of screens as virtctl starts it: the address is its last argument but for options, ADDRESS:PORT.
	b.write("viewer", "#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/${1##*:}\nhead -c 12 <&3 > viewed\n")
	b.write("entrypoint.sh", "#!/bin/busybox sh\nexport PATH=/bin\nexec /bin/busybox sh\n")
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	b.must("chmod 755 viewer entrypoint.sh && f=$PWD && cd '" + repository + "' && cluster pack-image " + tools + " -o $f/tools.tar /bin/busybox:/bin/busybox $f/entrypoint.sh:/entrypoint.sh && " +
		"cluster load-image --name \"$CLUSTER\" $f/tools.tar")
	return b
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.folder, name), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// shell returns what a line of the shell prints.
func (b *bench) shell(line string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", line)
	cmd.Dir = b.folder
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("run %s: %w: %s", line, err, said.Bytes())
	}
	return string(out), err
}

func (b *bench) must(line string) string {
	b.t.Helper()
	out, err := b.shell(line)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// value is what a JSONPath gives of an object, as in vm/vm, and "" of an object that is not there.
func (b *bench) value(object, path string) (string, error) {
	return b.shell("kubectl get --ignore-not-found " + object + " -o jsonpath='" + path + "'")
}

var errEnded = errors.New("the program has ended")

// await asks until there is no error any more, or the program has ended that is asked.
func (b *bench) await(limit time.Duration, ask func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := ask()
		if err == nil || errors.Is(err, errEnded) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// text is what a program has written so far.
type text struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes.String()
}

// program is a command line that runs.
type program struct {
	cmd         *exec.Cmd
	input       io.WriteCloser
	out, errors text
	ended       chan struct{}
}

// start runs a line, in a terminal of its own if it needs one.
func (b *bench) start(line string, terminal bool) (*program, error) {
	p := &program{cmd: exec.Command("bash", "-o", "pipefail", "-c", line), ended: make(chan struct{})}
	p.cmd.Dir = b.folder
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if terminal {
		err = p.inTerminal()
	} else {
		p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errors
		p.input, err = p.cmd.StdinPipe()
	}
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // code says how it ended
		close(p.ended)
	}()
	return p, nil
}

// inTerminal has the program read and write a terminal, whose other end the test holds.
func (p *program) inTerminal() error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)); err != nil {
		return fmt.Errorf("unlock a terminal: %w", err)
	}
	other := os.NewFile(uintptr(fd), "ptmx")
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	p.cmd.SysProcAttr.Setctty = true
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr, p.input = slave, slave, slave, other
	go func() { _, _ = io.Copy(&p.out, other) }() // ends with the last program that has the terminal
	return nil
}

// wait returns the code with which the program ended, once it has.
func (p *program) wait(limit time.Duration) (int, error) {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(limit):
		return 0, fmt.Errorf("it has not ended after %s; it said %s%s", limit, p.out.String(), p.errors.String())
	}
}

func (p *program) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// end interrupts the program, as Ctrl+C does, and kills what is left.
func (p *program) end() error {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT)
	_, err := p.wait(10 * time.Second)
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
	p.input.Close()
	return err
}

// typed types a line into a guest's console until the answer is there, and returns the pattern's first group.
func (b *bench) typed(vmi, line, pattern string) (string, error) {
	p, err := b.start("virtctl console "+vmi, true)
	if err != nil {
		return "", err
	}
	answer, err := p.types(b, line, pattern)
	_ = p.end() // a console that has to be killed is as good
	return answer, err
}

func (p *program) types(b *bench, line, pattern string) (string, error) {
	re, answer := regexp.MustCompile(pattern), ""
	err := b.await(patience, func() error {
		if !p.running() {
			return errEnded
		}
		if _, err := io.WriteString(p.input, line+"\n"); err != nil {
			return err
		}
		// A slow guest takes a second line for the answer to its next question.
		return b.await(20*time.Second, func() error {
			match := re.FindStringSubmatch(p.out.String())
			if match == nil {
				return fmt.Errorf("find %s in the console: %s", pattern, p.out.String())
			}
			answer = match[1]
			return nil
		})
	})
	return answer, err
}
