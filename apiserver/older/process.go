package older

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

const (
	// Program is the program that answers questions. It lies beside virt-api's.
	Program = "virt-schema"
	// questionLimit bounds a question, from waiting for its turn to its answer. The API server
	// waits for 10 s.
	questionLimit = 8 * time.Second
	// idleLimit is how long the program runs without a question: it starts within a second.
	idleLimit = 5 * time.Minute
)

// ErrBusy says that the question's turn did not come in time.
var ErrBusy = errors.New("many objects of older versions are being checked")

// Process asks a child process, one question at a time. The child is started for the first
// question, and ended after idleLimit without a question, or when it does not answer as it should.
type Process struct {
	command     []string
	limit, idle time.Duration
	// turn is held by whoever uses the fields below.
	turn   chan struct{}
	closed bool
	child  *child
	rest   *time.Timer
}

// NewProcess makes a Process of a command. Without a command, it is Program, in the folder of
// this process's own executable.
func NewProcess(command []string) *Process {
	return &Process{command: command, limit: questionLimit, idle: idleLimit, turn: make(chan struct{}, 1)}
}

// Ask asks the child. An error says nothing about the object.
func (p *Process) Ask(ctx context.Context, question Question) (Answer, error) {
	if err := question.check(); err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", Program, err)
	}
	deadline := time.Now().Add(p.limit)
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	select {
	case p.turn <- struct{}{}:
	case <-waiting.Done():
		return Answer{}, ErrBusy
	}
	defer func() { <-p.turn }()
	// A client that goes now ends no child: starting another takes longer than the answer.
	asking, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	answer, err := p.ask(asking, question)
	if err != nil {
		p.end()
		return Answer{}, fmt.Errorf("ask %s: %w", Program, err)
	}
	p.rest = time.AfterFunc(p.idle, p.endIfIdle)
	if answer.Failure != "" {
		return Answer{}, fmt.Errorf("ask %s: %s", Program, answer.Failure)
	}
	return answer, nil
}

func (p *Process) ask(ctx context.Context, question Question) (Answer, error) {
	if p.closed {
		return Answer{}, errors.New("virt-api is ending")
	}
	if p.rest != nil {
		p.rest.Stop()
	}
	if p.child == nil {
		started, err := start(p.command)
		if err != nil {
			return Answer{}, err
		}
		p.child = started
	}
	return p.child.ask(ctx, question)
}

// endIfIdle ends the child, unless somebody is asking a question.
func (p *Process) endIfIdle() {
	select {
	case p.turn <- struct{}{}:
		p.end()
		<-p.turn
	default:
	}
}

// end ends the child, if there is one.
func (p *Process) end() {
	if p.child != nil {
		p.child.end()
		p.child = nil
	}
}

// Close ends the child for good. A question that is being asked ends within its limit.
func (p *Process) Close() {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.closed = true
	if p.rest != nil {
		p.rest.Stop()
	}
	p.end()
}

// child is a running process.
type child struct {
	cmd                *exec.Cmd
	questions, answers *os.File
	end                func()
}

// start starts a child. Its environment holds nothing of virt-api's.
func start(command []string) (*child, error) {
	if len(command) == 0 {
		own, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the folder of %s: %w", Program, err)
		}
		command = []string{filepath.Join(filepath.Dir(own), Program)}
	}
	stdin, questions, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	defer stdin.Close()
	answers, stdout, err := os.Pipe()
	if err != nil {
		questions.Close()
		return nil, fmt.Errorf("start: %w", err)
	}
	defer stdout.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, os.Stderr
	cmd.Env = []string{"GOMEMLIMIT=" + memoryGoal, "GOMAXPROCS=1"}
	if err := cmd.Start(); err != nil {
		questions.Close()
		answers.Close()
		return nil, fmt.Errorf("start: %w", err)
	}
	c := &child{cmd: cmd, questions: questions, answers: answers}
	c.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		questions.Close()
		answers.Close()
		_ = cmd.Wait() // killed
	})
	return c, nil
}

// ask asks one question. When ctx ends, the child is ended, and so the question.
func (c *child) ask(ctx context.Context, question Question) (answer Answer, err error) {
	stop := context.AfterFunc(ctx, c.end)
	defer stop()
	if err = Write(c.questions, question); err == nil {
		err = Read(c.answers, &answer)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer in time: %w", ctx.Err())
	}
	return answer, err
}
