package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// helloWith returns a hello of n bytes at most, whose Machine has as many of what as fit.
func helloWith(list, what string, n int) []byte {
	head, tail := `{"version":1,"state":{"state":"running","machine":{"`+list+`":[`, `]}}}`
	return []byte(head + strings.TrimSuffix(strings.Repeat(what+",", (n-len(head)-len(tail))/(len(what)+1)), ",") + tail)
}

// allocated returns how many bytes work allocates.
func allocated(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestHostileHello: a hello takes little more memory than it is long, and no hello
// more than some MiB. Without bounds, a message of 1 MiB took 304.
func TestHostileHello(t *testing.T) {
	for name, tt := range map[string]struct {
		hello []byte
		ok    bool
		most  uint64
	}{
		"of empty disks":                 {helloWith("disks", "{}", MaxMessageBytes), false, 1 << 20},
		"of as many as a line holds":     {helloWith("disks", "{}", MaxLineBytes), false, 1 << 20},
		"of NICs":                        {helloWith("nics", "{}", MaxLineBytes), false, 1 << 20},
		"of flags":                       {[]byte(`{"state":{"machine":{"cpu":{"flags":[` + strings.Repeat(`"",`, 50_000) + `""]}}}}`), false, 1 << 20},
		"of the most values":             {helloWith("disks", "{}", MaxMachineValues/2*3), true, 24 << 20},
		"of a long name":                 {[]byte(`{"qemuVersion":"` + strings.Repeat("x", MaxReportBytes) + `"}`), false, 1 << 20},
		"with two Machines":              {[]byte(`{"state":{"machine":{"name":"` + strings.Repeat("x", MaxReportBytes) + `"},"machine":{}}}`), false, 1 << 20},
		"with a Machine of another case": {[]byte(`{"state":{"MACHINE":{"name":"` + strings.Repeat("x", MaxMachineBytes) + `"}}}`), false, 1 << 20},
		"of an unknown field":            {[]byte(`{"version":1,"new":[` + strings.Repeat(`{},`, 1000) + `{}],"state":{"state":"waiting"}}`), true, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			took := allocated(func() { err = Told(tt.hello, &Hello{}) })
			if took > tt.most {
				t.Errorf("%d bytes of hello took %d", len(tt.hello), took)
			}
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrProtocol) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestMachineMustFitAHello: what is started can be told again in a hello, and what cannot is
// refused by the bound's name.
func TestMachineMustFitAHello(t *testing.T) {
	disks := func(n int) *qemuargs.Machine {
		m := &qemuargs.Machine{Version: 1, Name: "ns_vm", Type: "pc-q35-7.2"}
		for i := range n {
			m.Disks = append(m.Disks, qemuargs.Disk{Name: fmt.Sprint("disk-", i), Driver: qemuargs.SCSIDisk, Bus: "scsi0.0", LUN: &i,
				Image: qemuargs.Image{Path: fmt.Sprintf("/var/lib/kubeqemu/claims/disk-%d/disk.img", i), Format: qemuargs.Raw, Volume: qemuargs.FileVolume}})
		}
		return m
	}
	for n, want := range map[int]string{0: "", 1: "", 256: "", 5000: "bytes"} {
		m := disks(n)
		err := CheckMachine(m)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d disks: %v", n, err)
		}
		data, encodeErr := json.Marshal(Hello{Version: Version, Knows: CommandsDigest(), State: StateReport{State: StateRunning, Machine: m}})
		if encodeErr != nil {
			t.Fatal(encodeErr)
		}
		if told := Told(data, &Hello{}); (told == nil) != (err == nil) {
			t.Errorf("%d disks: to be started %v, to be found again %v", n, err, told)
		}
	}
	flags := &qemuargs.Machine{CPU: qemuargs.CPU{Flags: make([]string, MaxMachineValues)}}
	if err := CheckMachine(flags); err == nil || !strings.Contains(err.Error(), "values") {
		t.Errorf("very many flags: %v", err)
	}
}

// TestMessagesAreDecodedInTurns: no more messages are decoded at once than there are turns, and one
// launcher has one of them.
func TestMessagesAreDecodedInTurns(t *testing.T) {
	turns := NewTurns(2)
	decoding := &decodings{}
	var wait sync.WaitGroup
	for range 8 {
		c := &Client{limits: Limits{Decoding: turns}}
		own := &decodings{all: decoding}
		for range 50 {
			wait.Go(func() {
				if err := c.Told([]byte(`{}`), &counted{own}); err != nil {
					t.Error(err)
				}
			})
		}
		defer func() {
			if own.most.Load() != 1 {
				t.Errorf("%d messages of a launcher were decoded at once", own.most.Load())
			}
		}()
	}
	wait.Wait()
	if most := decoding.most.Load(); most > 2 {
		t.Errorf("%d messages were decoded at once", most)
	}
}

// decodings counts how many there are at once.
type decodings struct {
	all       *decodings
	now, most atomic.Int32
}

func (d *decodings) begin() {
	if d.all != nil {
		d.all.begin()
	}
	now := d.now.Add(1)
	for most := d.most.Load(); now > most && !d.most.CompareAndSwap(most, now); most = d.most.Load() {
	}
}

func (d *decodings) end() {
	d.now.Add(-1)
	if d.all != nil {
		d.all.end()
	}
}

type counted struct{ *decodings }

func (c *counted) UnmarshalJSON([]byte) error {
	c.begin()
	defer c.end()
	runtime.Gosched()
	return nil
}
