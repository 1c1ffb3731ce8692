package stats

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

func TestParseStat(t *testing.T) {
	// A thread of that name is a guest's user's choice in many programs.
	text := "42 (a) R ( b) S 1 42 42 0 -1 4194560 9001 0 12 0 250 75 0 0 20 0 4 0 123456 789012480 4321 18446744073709551615 1 1\n"
	cpu, resident, err := parseStat([]byte(text))
	if want := (control.CPUStats{User: 2_500_000_000, System: 750_000_000}); err != nil || cpu != want || resident != 4321*uint64(os.Getpagesize()) {
		t.Errorf("CPU %+v, resident %d, %v", cpu, resident, err)
	}
	for _, bad := range []string{"", "42 (qemu) S", "42 (qemu) S 1 42 42 0 -1 4194560 9001 0 12 0 -1 75 0 0 20 0 4 0 123456 789012480 4321"} {
		if _, _, err := parseStat([]byte(bad)); !errors.Is(err, errProc) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestParseThread(t *testing.T) {
	got, err := parseSchedstat([]byte("1500000000 250000000 42\n"))
	if want := (control.VCPUStats{Time: 1_500_000_000, Delay: 250_000_000}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "1", "x y z"} {
		if _, err := parseSchedstat([]byte(bad)); !errors.Is(err, errProc) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for text, want := range map[string]string{
		"CPU 0/KVM (7, #threads: 4)\n---\nwait_sum                 :      12.500000\nwait_count : 3\n": "12500000",
		"se.statistics.wait_sum   : 0.000001\n":                                                        "1",
		"se.exec_start : 1\n":                                                                          "<nil>",
		"wait_sum : NaN\n":                                                                             "<nil>",
		"wait_sum : -1\n":                                                                              "<nil>",
		"wait_sum : 1e300\n":                                                                           "<nil>",
		"wait_sum : nothing\n":                                                                         "<nil>",
	} {
		wait := "<nil>"
		if w := parseWait([]byte(text)); w != nil {
			wait = fmt.Sprint(*w)
		}
		if wait != want {
			t.Errorf("%q: waited %s, want %s", text, wait, want)
		}
	}
}

func TestParseNetworkStatistics(t *testing.T) {
	const heading = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"
	got, err := parseLinks([]byte(heading + "    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n" +
		"  tap0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n"))
	want := map[string]control.NICStats{"lo": {}, "tap0": {Receive: control.TrafficStats{Bytes: 1000, Packets: 10, Errors: 1, Dropped: 2},
		Transmit: control.TrafficStats{Bytes: 2000, Packets: 20, Errors: 3, Dropped: 4}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, bad := range []string{"tap0: 1 2 3", "tap0: a b c d e f g h i j k l m n o p"} {
		if _, err := parseLinks([]byte(bad)); !errors.Is(err, errProc) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
