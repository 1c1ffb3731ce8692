package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// dirtied is how much memory a guest that is not idle writes to, again and again.
	dirtied = 32 << 20
	// downtimeLimit of all migrations here, in milliseconds.
	downtimeLimit = 300
)

// traveller is a guest that moves.
type traveller struct {
	memory int64 // bytes
	busy   bool  // it writes to its memory all the time
	// bandwidth is what the migration may send in a second, in bytes; 0 is no limit.
	bandwidth int64
}

// gigabit is what a link of 1 Gbit/s carries in a second, in bytes. Most links between two nodes carry less than QEMU
// sends without a limit.
const gigabit = 1_000_000_000 / 8

func (v traveller) String() string {
	text := fmt.Sprintf("%d MiB, %s", v.memory>>20, map[bool]string{false: "idle", true: "writing to 32 MiB"}[v.busy])
	if v.bandwidth != 0 {
		text += fmt.Sprintf(", at most %d MB/s", v.bandwidth/1_000_000)
	}
	return text
}

// id is the end of its rows' IDs.
func (v traveller) id() string {
	return strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(v.String())
}

// bootSector is a guest that fills three quarters of its memory, writes the banner, and then halts or writes on.
func (v traveller) bootSector() []byte {
	const origin, begin = 0x7c00, 1 << 20
	word := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	var code []byte
	emit := func(parts ...[]byte) { code = append(code, slices.Concat(parts...)...) }
	// 16 bits: load a flat segment for code and one for data, and go to 32 bits.
	const protected, table, pointer = 0x18, 0xc0, 0xf0
	emit([]byte{0xfa, 0x31, 0xc0, 0x8e, 0xd8}, // cli; xor ax, ax; mov ds, ax
		[]byte{0x0f, 0x01, 0x16, pointer, 0x7c},                // lgdt [pointer]
		[]byte{0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0}, // mov eax, cr0; or al, 1; mov cr0, eax
		[]byte{0xea, protected, 0x7c, 0x08, 0x00})              // jmp 8:protected
	code = append(code, make([]byte, protected-len(code))...)
	emit([]byte{0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8}, // mov ax, 16; mov ds, ax
		[]byte{0xbf}, word(begin), []byte{0xb9}, word(uint32(v.memory*3/4/4)), // mov edi, begin; mov ecx, words
		[]byte{0x89, 0x3f, 0x83, 0xc7, 0x04},                                 // fill: mov [edi], edi; add edi, 4
		[]byte{0x49, 0x75, 0xf8},                                             // dec ecx; jnz fill
		[]byte{0x66, 0xba, 0xf8, 0x03, 0xb0, banner, 0xee, 0xb0, '\n', 0xee}) // mov dx, COM1; out banner and newline
	if v.busy {
		emit([]byte{0xbf}, word(begin), []byte{0xb9}, word(dirtied/4096), // again: mov edi, begin; mov ecx, pages
			[]byte{0xff, 0x07, 0x81, 0xc7}, word(4096), // next: inc [edi]; add edi, 4096
			[]byte{0x49, 0x75, 0xf5, 0xeb, 0xe9}) // dec ecx; jnz next; jmp again
	} else {
		emit([]byte{0xf4, 0xeb, 0xfd}) // hlt; jmp to hlt
	}
	sector := make([]byte, 512)
	copy(sector, code)
	descriptors := []uint64{0, 0x00cf9a000000ffff, 0x00cf92000000ffff}
	for i, d := range descriptors {
		binary.LittleEndian.PutUint64(sector[table+8*i:], d)
	}
	binary.LittleEndian.PutUint16(sector[pointer:], uint16(8*len(descriptors)-1))
	binary.LittleEndian.PutUint32(sector[pointer+2:], origin+table)
	sector[510], sector[511] = 0x55, 0xaa
	return sector
}

// travellers are the guests that are measured, without a limit and with the link that two nodes often have. Then QEMU
// has the link's bandwidth as its limit, and the channel carries no more: for the last of a guest QEMU knows no limit.
func travellers() (all []traveller) {
	for _, bandwidth := range []int64{0, gigabit} {
		for _, memory := range []int64{256 << 20, 1 << 30} {
			for _, busy := range []bool{false, true} {
				all = append(all, traveller{memory, busy, bandwidth})
			}
		}
	}
	return all
}

// measureMigration measures how a guest moves from one launcher to another, over the mTLS channel of two virt-handlers,
// and beside it from one bare QEMU to another.
func measureMigration(r *run) {
	link := newLink(r)
	r.eachRound(func(r *run) {
		for _, g := range travellers() {
			doing("migrate "+g.String(), func() { r.turn(func(r *run) { link.addMigrations(r, g) }) })
		}
	})
}

// addMigrations adds a migration of launchers, and two of bare QEMUs.
func (l *link) addMigrations(r *run, g traveller) {
	folder := r.folder("")
	ours, machine := l.migrate(r, g, folder)
	bare := migrateBare(r, machine, folder, g.bandwidth, direct)
	farther := migrateBare(r, machine, folder, g.bandwidth, relayed)
	r.add("migration-time-"+g.id(), ours.total, bare.total, farther.total)
	r.add("migration-downtime-"+g.id(), ours.downtime, bare.downtime, farther.downtime)
}

// moved is what a migration took, in milliseconds.
type moved struct{ total, downtime float64 }

// warm takes as much memory as a guest has, and gives it back, right before a target takes it. If the bench's machine
// is virtual, its hypervisor takes back memory that is free for some seconds. The first process to use such memory
// waits for the hypervisor: 1 s of CPU time for 768 MiB was seen. Without warm, the launchers waited, and the bare
// QEMUs got the memory of the launchers' guests.
func warm(bytes int64) {
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	check(err, "take memory")
	// As QEMU does for its guest; a kernel without huge pages has none for QEMU either.
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	check(unix.Munmap(memory))
}
