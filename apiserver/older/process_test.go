package older

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain is the child too. What the child does is its question's resource.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Program {
		os.Exit(beChild())
	}
	os.Exit(m.Run())
}

func beChild() int {
	for {
		var question Question
		if err := Read(os.Stdin, &question); errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			return 1
		}
		answer := Answer{Object: question.Object, Unknown: []string{strconv.Itoa(os.Getpid())}}
		switch question.Resource {
		case "hangs":
			time.Sleep(time.Hour)
		case "dies":
			return 3
		case "says junk":
			fmt.Fprint(os.Stdout, "\x00\x00\x00\x04junk")
			continue
		case "says much":
			fmt.Fprint(os.Stdout, "\xff\xff\xff\xff")
			continue
		case "fails":
			answer = Answer{Failure: "the CRD is not there"}
		case "environment":
			answer.Object, _ = json.Marshal(os.Environ())
		}
		if err := Write(os.Stdout, answer); err != nil {
			return 1
		}
	}
}

func newTestProcess(t *testing.T) *Process {
	t.Helper()
	p := NewProcess([]string{"/proc/self/exe", Program})
	t.Cleanup(p.Close)
	return p
}

// ask asks a question that does something to the child, and returns the child's PID.
func ask(t *testing.T, p *Process, does string) (string, error) {
	t.Helper()
	answer, err := p.Ask(t.Context(), Question{Resource: does, Object: json.RawMessage(`{"a":1}`)})
	if err != nil {
		return "", err
	}
	if string(answer.Object) != `{"a":1}` || len(answer.Unknown) != 1 {
		t.Errorf("the answer is %+v", answer)
	}
	return answer.Unknown[0], nil
}

// TestAsk: a child that does what it should not is another's at the next question.
func TestAsk(t *testing.T) {
	p := newTestProcess(t)
	first, err := ask(t, p, "answers")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := ask(t, p, "answers"); err != nil || second != first {
		t.Errorf("a second child, %s after %s: %v", second, first, err)
	}
	last := first
	for does, says := range map[string]string{"dies": "EOF", "says junk": "invalid character", "says much": "may have", "hangs": "no answer in time"} {
		if does == "hangs" {
			p.limit = 500 * time.Millisecond
		}
		if _, err := ask(t, p, does); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a child that %s: %v, want %q", does, err, says)
		}
		p.limit = questionLimit
		next, err := ask(t, p, "answers")
		if err != nil || next == last {
			t.Errorf("after a child that %s: child %s, %v", does, next, err)
		}
		if alive(last) {
			t.Errorf("the child that %s is alive", does)
		}
		last = next
	}
	// What is wrong with a question is not the child's fault.
	if _, err := ask(t, p, "fails"); err == nil || !strings.Contains(err.Error(), "the CRD is not there") {
		t.Errorf("a child that fails: %v", err)
	}
	for what, long := range map[string]Question{
		"object": {Object: json.RawMessage(`"` + strings.Repeat("x", maxFrame) + `"`)},
		"both":   {Object: json.RawMessage(`"` + strings.Repeat("x", maxFrame/2) + `"`), Old: json.RawMessage(`"` + strings.Repeat("x", maxFrame/2) + `"`)},
		"name":   {Object: json.RawMessage(`{}`), Name: strings.Repeat("\x00", maxFrame/6-100)},
	} {
		if _, err := p.Ask(t.Context(), long); !errors.Is(err, ErrTooLong) {
			t.Errorf("a question that is too long, %s: %v", what, err)
		}
	}
	if next, err := ask(t, p, "answers"); err != nil || next != last {
		t.Errorf("afterwards: child %s after %s, %v", next, last, err)
	}
	p.Close()
	if alive(last) {
		t.Error("after Close, the child is alive")
	}
	if _, err := ask(t, p, "answers"); err == nil {
		t.Error("after Close, there is an answer")
	}
}

// TestWrite: < is one byte in what is written, not six.
func TestWrite(t *testing.T) {
	const count = maxFrame / 2
	var frame bytes.Buffer
	written := Question{Name: strings.Repeat("<", 10), Object: json.RawMessage(`"` + strings.Repeat("<", count) + `"`)}
	if err := Write(&frame, written); err != nil || frame.Len() > count+200 {
		t.Fatalf("%d bytes: %v", frame.Len(), err)
	}
	var read Question
	if err := Read(&frame, &read); err != nil || !reflect.DeepEqual(read, written) {
		t.Errorf("read: %v", err)
	}
	if err := Write(&frame, Answer{Failure: strings.Repeat("x", maxFrame)}); !errors.Is(err, ErrTooLong) || frame.Len() > 0 {
		t.Errorf("an answer that is too long: %v, %d bytes", err, frame.Len())
	}
}

func alive(pid string) bool {
	_, err := os.Stat("/proc/" + pid)
	return err == nil
}

// TestIdle: a child that nobody asks ends.
func TestIdle(t *testing.T) {
	p := newTestProcess(t)
	p.idle = 200 * time.Millisecond
	pid, err := ask(t, p, "answers")
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); alive(pid); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the child is alive")
		}
	}
	if next, err := ask(t, p, "answers"); err != nil || next == pid {
		t.Errorf("the next child is %s: %v", next, err)
	}
}

// TestTurns: questions wait for each other, and not for long.
func TestTurns(t *testing.T) {
	p := newTestProcess(t)
	p.limit = time.Second
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := ask(t, p, "answers"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	p.turn <- struct{}{}
	began := time.Now()
	if _, err := ask(t, p, "answers"); !errors.Is(err, ErrBusy) {
		t.Errorf("while another asks: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Ask(ctx, Question{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a client that has gone: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	<-p.turn
}

// TestEnvironment: the child gets nothing of virt-api's.
func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET", "of-virt-api")
	p := newTestProcess(t)
	answer, err := p.Ask(t.Context(), Question{Resource: "environment"})
	if err != nil || !strings.Contains(string(answer.Object), "GOMEMLIMIT") || strings.Contains(string(answer.Object), "of-virt-api") {
		t.Errorf("%s, %v", answer.Object, err)
	}
}

// TestNoProgram: a program that is not there is an error of each question.
func TestNoProgram(t *testing.T) {
	for _, command := range [][]string{nil, {"/nowhere/" + Program}} {
		p := NewProcess(command)
		defer p.Close()
		for range 2 {
			if _, err := p.Ask(t.Context(), Question{}); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%q: %v", command, err)
			}
		}
	}
}
