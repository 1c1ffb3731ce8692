package stats

import (
	"errors"
	"strings"
	"testing"
)

func TestParseSmaps(t *testing.T) {
	const text = `55d0a0000000-55d0a0001000 r-xp 00000000 08:01 1 /usr/bin/a: b
Size:                  4 kB
Private_Clean:         4 kB
Private_Dirty:         0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0010000000 rw-p 00000000 00:00 0
Size:             262144 kB
Private_Clean:         0 kB
Private_Dirty:    200000 kB
VmFlags: rd wr mr mw me ac dd hg
7f0020000000-7f0030000000 rw-p 00000000 00:00 0
Size:             262144 kB
Private_Clean:         0 kB
Private_Dirty:        16 kB
VmFlags: rd wr mr mw me ac
7f0040000000-7f0040400000 rw-p 00000000 00:00 0
Size:               4096 kB
Private_Clean:         0 kB
Private_Dirty:      1024 kB
VmFlags: rd wr mr mw me ac dd
`
	for guest, want := range map[uint64]uint64{256 << 20: 4 + 16 + 1024, 0: 4 + 200000 + 16 + 1024, 4 << 20: 4 + 16} {
		if got, err := parseSmaps(strings.NewReader(text), guest); err != nil || got != want<<10 {
			t.Errorf("beside %d bytes: %d KiB (%v), want %d", guest, got>>10, err, want)
		}
	}
	rollup := "55d0a0000000-7ffd00000000 ---p 00000000 00:00 0 [rollup]\nRss: 12 kB\nPrivate_Clean: 4 kB\nPrivate_Dirty: 8 kB\n"
	if got, err := parseSmaps(strings.NewReader(rollup), 0); err != nil || got != 12<<10 {
		t.Errorf("a roll-up: %d, %v", got, err)
	}
	for _, bad := range []string{"", "a-b r-xp\nSize: x kB\n", "a-b r-xp\nPrivate_Dirty: 99999999999999999999 kB\n"} {
		if _, err := parseSmaps(strings.NewReader(bad), 0); !errors.Is(err, errProc) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
