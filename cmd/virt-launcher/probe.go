package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/agent"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// maxProbeAnswer bounds an answer, in bytes. It leaves room for a program's output.
const maxProbeAnswer = 1 << 20

// guestPing asks whether the guest's agent answers. The pod's probes run it.
func guestPing(args []string) int {
	flags := flag.NewFlagSet("guest-ping", flag.ExitOnError)
	socket, request := probeFlags(flags)
	parse(flags, args)
	return probe(*socket, request)
}

// guestExec runs a program in the guest. The pod's probes run it.
func guestExec(args []string) int {
	flags := flag.NewFlagSet("guest-exec", flag.ExitOnError)
	socket, request := probeFlags(flags)
	parseFlags(flags, args)
	if flags.NArg() == 0 {
		fmt.Fprintln(flags.Output(), "virt-launcher: no command to run in the guest: guest-exec [--timeout SECONDS] -- COMMAND [ARGS...]")
		return 2
	}
	request.Program, request.Args = flags.Arg(0), flags.Args()[1:]
	return probe(*socket, request)
}

func probeFlags(flags *flag.FlagSet) (socket *string, request *agent.Request) {
	request = &agent.Request{}
	flags.Int64Var(&request.TimeoutSeconds, "timeout", 10, "how many `seconds` the guest has to answer")
	flags.BoolVar(&request.Readiness, "readiness", false, "fail while the guest has not been started")
	return flags.String("socket", layout.AgentSocket, "`socket` of the running virt-launcher"), request
}

// probe asks the running launcher. It returns 0 for a good answer, the exit code of a program
// in the guest, or 1.
func probe(socket string, request *agent.Request) int {
	answer, err := askLauncher(socket, request)
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "virt-launcher: ask the guest agent: %v\n", err)
		return 1
	case answer.Error != "":
		fmt.Fprintln(os.Stderr, "virt-launcher:", answer.Error)
		return 1
	case answer.Skipped != "":
		fmt.Fprintln(os.Stderr, "virt-launcher: not asked:", answer.Skipped)
		return 0
	}
	os.Stdout.Write(answer.Stdout)
	os.Stderr.Write(answer.Stderr)
	if answer.Signal != 0 {
		fmt.Fprintf(os.Stderr, "virt-launcher: the command was killed by signal %d in the guest\n", answer.Signal)
		return 1
	}
	// A value that is no exit code must not become a success: the kernel keeps its lowest 8
	// bits only.
	if answer.ExitCode < 0 || answer.ExitCode > 255 {
		fmt.Fprintf(os.Stderr, "virt-launcher: the command ended with %d in the guest\n", answer.ExitCode)
		return 1
	}
	return answer.ExitCode
}

func askLauncher(socket string, request *agent.Request) (*agent.Answer, error) {
	deadline := time.Now().Add(time.Duration(max(request.TimeoutSeconds, 1)) * time.Second)
	conn, err := (&net.Dialer{Deadline: deadline}).Dial("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w (the VM has no port for a guest agent)", err)
	}
	defer conn.Close()
	line, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	// One second more, so that the launcher's own answer that the time is over can come.
	if err := conn.SetDeadline(deadline.Add(time.Second)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	data, err := bufio.NewReader(io.LimitReader(conn, maxProbeAnswer)).ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("wait for an answer: %w", err)
	}
	answer := &agent.Answer{}
	return answer, json.Unmarshal(data, answer)
}
