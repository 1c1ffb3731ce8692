package main

import (
	"os"
	"slices"
	"testing"
)

const smaps = `7f0000000000-7f0000100000 r-xp 00000000 fe:00 1 /usr/bin/qemu-system-x86_64
Size:               1024 kB
Rss:                 100 kB
Pss:                  50 kB
Pss_Dirty:             0 kB
Shared_Clean:         90 kB
Private_Clean:        10 kB
Private_Dirty:         0 kB
VmFlags: rd ex mr mw me sd
7f1000000000-7f1010000000 rw-p 00000000 00:00 0
Size:             262144 kB
Rss:                4096 kB
Pss:                4096 kB
Private_Clean:         0 kB
Private_Dirty:      4096 kB
7f2000000000-7f2010000000 rw-p 00000000 00:00 0
Size:             262144 kB
Rss:                   8 kB
Pss:                   8 kB
Private_Clean:         0 kB
Private_Dirty:         8 kB
7f3000000000-7f3008000000 rwxp 00000000 00:00 0
Size:             131072 kB
Rss:                  16 kB
Pss:                  16 kB
Private_Clean:         0 kB
Private_Dirty:        16 kB
`

func TestParseSmaps(t *testing.T) {
	const ram = 256 << 20
	got, err := parseSmaps([]byte(smaps), ram)
	want := memory{RSS: 124 << 10, PSS: 74 << 10, PrivateDirty: 24 << 10, TranslatedCode: 16 << 10, PrivateClean: 10 << 10,
		GuestRAM: ram, GuestRAMAllocated: 4 << 20}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := parseSmaps([]byte(smaps), 64<<20); err == nil {
		t.Error("guest memory that is not there was found")
	}
	if got, err := parseSmaps([]byte(smaps), 0); err != nil || got.private() != 4096<<10+34<<10 {
		t.Errorf("without a guest: %+v, %v", got, err)
	}
}

func TestMemoryOfOwnProcess(t *testing.T) {
	m := memoryOf(os.Getpid(), 0)
	if m.RSS < m.PSS || m.PSS < m.private() || m.private() == 0 || m.PageTables == 0 {
		t.Errorf("own memory: %+v", m)
	}
	all := processes()
	i := slices.IndexFunc(all, func(p process) bool { return p.PID == os.Getpid() })
	if i < 0 {
		t.Fatal("own process was not found")
	}
	if p := all[i]; p.Parent != os.Getppid() || p.Args[0] != os.Args[0] || len(p.Cgroups) == 0 || p.cpuTime() == 0 {
		t.Errorf("own process: %+v, %s on a CPU", p, p.cpuTime())
	}
	if peak := peakOf(os.Getpid(), all[i].Name); peak < m.RSS || peakOf(os.Getpid(), "another") != 0 {
		t.Errorf("own peak: %d bytes", peak)
	}
}
