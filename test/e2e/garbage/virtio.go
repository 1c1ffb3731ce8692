package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Registers of a virtio device (virtio 1.2, 4.1.4.3), in its common configuration.
const (
	driverFeatureSelect = 8
	driverFeature       = 12
	deviceFeatureSelect = 0
	deviceFeature       = 4
	numQueues           = 18
	deviceStatus        = 20
	queueSelect         = 22
	queueSize           = 24
	queueEnable         = 28
	queueNotifyOff      = 30
	queueDesc           = 32
	queueDriver         = 40
	queueDevice         = 48
)

// device is a virtio device that its driver was taken off.
type device struct {
	name     string
	common   []byte
	notify   []byte
	specific []byte
	multiple uint32
	bar      uint64 // address of the one with the registers
	pages    []page
}

// page is a page of ours, and where it is in the guest's memory.
type page struct {
	bytes   []byte
	address uint64
}

// virtio writes junk into the devices, in turns, until the time is up.
func virtio(names []string, until time.Time) error {
	var devices []*device
	for _, name := range names {
		d, err := open(name)
		if err != nil {
			return fmt.Errorf("open %s: %w", name, err)
		}
		devices = append(devices, d)
	}
	rounds, broken := 0, 0
	// The same junk each time, so that what it does can be seen again.
	random := rand.New(rand.NewPCG(22, 22))
	for ; time.Now().Before(until); rounds++ {
		d := devices[rounds%len(devices)]
		if d.round(random) {
			broken++
		}
	}
	fmt.Printf("garbage: %d rounds in %d devices, %d needed a reset\n", rounds, len(devices), broken)
	return nil
}

func open(name string) (*device, error) {
	folder := filepath.Join("/sys/bus/pci/devices", name)
	// A driver's registers are nobody else's (CONFIG_IO_STRICT_DEVMEM).
	if err := os.WriteFile(filepath.Join(folder, "driver", "unbind"), []byte(name), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, "enable"), []byte("1"), 0); err != nil {
		return nil, err
	}
	config, err := os.OpenFile(filepath.Join(folder, "config"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer config.Close()
	if _, err := config.WriteAt([]byte{6, 0}, 4); err != nil { // memory, bus master
		return nil, err
	}
	var space [256]byte
	if _, err := config.ReadAt(space[:], 0); err != nil {
		return nil, err
	}
	d := &device{name: name}
	for at := space[0x34]; at != 0; at = space[at+1] {
		if space[at] != 9 { // vendor's
			continue
		}
		kind, bar := space[at+3], space[at+4]
		offset, length := binary.LittleEndian.Uint32(space[at+8:]), binary.LittleEndian.Uint32(space[at+12:])
		if kind < 1 || kind > 4 || kind == 3 {
			continue
		}
		registers, err := mapped(filepath.Join(folder, fmt.Sprintf("resource%d", bar)), offset, length)
		if err != nil {
			return nil, err
		}
		switch kind {
		case 1:
			d.common = registers
			if d.bar, err = barAddress(folder, int(bar)); err != nil {
				return nil, err
			}
		case 2:
			d.notify, d.multiple = registers, binary.LittleEndian.Uint32(space[at+16:])
		case 4:
			d.specific = registers
		}
	}
	if d.common == nil || d.notify == nil {
		return nil, errors.New("it is no virtio device")
	}
	for range 8 {
		p, err := newPage()
		if err != nil {
			return nil, err
		}
		d.pages = append(d.pages, p)
	}
	return d, nil
}

func mapped(file string, offset, length uint32) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := (int(offset+length) + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	all, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", file, err)
	}
	return all[offset : offset+length], nil
}

func barAddress(folder string, bar int) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(folder, "resource"))
	if err != nil {
		return 0, err
	}
	line := strings.Split(string(text), "\n")[bar]
	return strconv.ParseUint(strings.TrimPrefix(strings.Fields(line)[0], "0x"), 16, 64)
}

func newPage() (page, error) {
	size := os.Getpagesize()
	bytes, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_LOCKED|unix.MAP_POPULATE)
	if err != nil {
		return page{}, err
	}
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return page{}, err
	}
	defer f.Close()
	var entry [8]byte
	if _, err := f.ReadAt(entry[:], int64(uintptr(unsafe.Pointer(&bytes[0])))/int64(size)*8); err != nil {
		return page{}, err
	}
	frame := binary.LittleEndian.Uint64(entry[:]) & (1<<55 - 1)
	return page{bytes, frame * uint64(size)}, nil
}

// Registers are written with one instruction of the right width.
func set8(b []byte, at int, v uint8)   { *(*uint8)(unsafe.Pointer(&b[at])) = v }
func set16(b []byte, at int, v uint16) { *(*uint16)(unsafe.Pointer(&b[at])) = v }
func set32(b []byte, at int, v uint32) { *(*uint32)(unsafe.Pointer(&b[at])) = v }
func set64(b []byte, at int, v uint64) { set32(b, at, uint32(v)); set32(b, at+4, uint32(v>>32)) }
func get8(b []byte, at int) uint8      { return *(*uint8)(unsafe.Pointer(&b[at])) }
func get16(b []byte, at int) uint16    { return *(*uint16)(unsafe.Pointer(&b[at])) }
func get32(b []byte, at int) uint32    { return *(*uint32)(unsafe.Pointer(&b[at])) }

// round sets the device up as a driver does, with rings full of junk, and rings
// its bell. It returns whether the device has given up.
func (d *device) round(random *rand.Rand) (broken bool) {
	set8(d.common, deviceStatus, 0)
	for deadline := time.Now().Add(time.Second); get8(d.common, deviceStatus) != 0 && time.Now().Before(deadline); {
	}
	set8(d.common, deviceStatus, 1|2)
	for i := range uint32(2) {
		set32(d.common, deviceFeatureSelect, i)
		features := get32(d.common, deviceFeature)
		if random.IntN(8) == 0 {
			features = random.Uint32() // none that it offered
		}
		set32(d.common, driverFeatureSelect, i)
		set32(d.common, driverFeature, features)
	}
	set8(d.common, deviceStatus, 1|2|8)
	queues := min(int(get16(d.common, numQueues)), 8)
	for q := range queues {
		set16(d.common, queueSelect, uint16(q))
		most := get16(d.common, queueSize)
		size := most
		switch random.IntN(8) {
		case 0:
			size = uint16(random.Uint32())
		case 1:
			size = 0
		}
		set16(d.common, queueSize, size)
		for _, register := range []int{queueDesc, queueDriver, queueDevice} {
			set64(d.common, register, d.somewhere(random, 16))
		}
		set16(d.common, queueEnable, 1)
	}
	for _, p := range d.pages {
		d.fill(p, random)
	}
	set8(d.common, deviceStatus, 1|2|4|8)
	for range 4 {
		q := random.IntN(queues + 1) // or one that there is not
		set16(d.common, queueSelect, uint16(q))
		if at := int(uint32(get16(d.common, queueNotifyOff)) * d.multiple); at+2 <= len(d.notify) {
			set16(d.notify, at, uint16(q))
		}
		if len(d.specific) > 0 && random.IntN(4) == 0 {
			set8(d.specific, random.IntN(len(d.specific)), uint8(random.Uint32()))
		}
	}
	time.Sleep(time.Millisecond)
	return get8(d.common, deviceStatus)&64 != 0
}

// somewhere is an address: a page of ours mostly; now and then, one of n, none, or
// the device's own registers. No other memory: what is to be broken is not the guest.
func (d *device) somewhere(random *rand.Rand, n int) uint64 {
	switch random.IntN(n) {
	case 0:
		return 0xfffffffffffff000
	case 1:
		return d.bar
	case 2:
		return random.Uint64() | 1<<60
	}
	return d.pages[random.IntN(len(d.pages))].address
}

// fill makes a page look like rings: descriptors that lead to each other in
// circles, lengths of gigabytes, and indices that jump.
func (d *device) fill(p page, random *rand.Rand) {
	switch random.IntN(4) {
	case 0: // plain junk
		for i := 0; i < len(p.bytes); i += 4 {
			binary.LittleEndian.PutUint32(p.bytes[i:], random.Uint32())
		}
		return
	case 1: // an available or used ring: flags, index, entries
		binary.LittleEndian.PutUint16(p.bytes, uint16(random.IntN(2)))
		binary.LittleEndian.PutUint16(p.bytes[2:], uint16(random.IntN(1<<random.IntN(17))))
		for i := 4; i < len(p.bytes); i += 2 {
			binary.LittleEndian.PutUint16(p.bytes[i:], uint16(random.IntN(1<<random.IntN(17))))
		}
		return
	}
	for i := 0; i < len(p.bytes); i += 16 {
		length := uint32(random.IntN(len(p.bytes) - 1))
		if random.IntN(8) == 0 {
			length = random.Uint32()
		}
		binary.LittleEndian.PutUint64(p.bytes[i:], d.somewhere(random, 32))
		binary.LittleEndian.PutUint32(p.bytes[i+8:], length)
		binary.LittleEndian.PutUint16(p.bytes[i+12:], uint16(random.IntN(8))) // next, write, indirect
		binary.LittleEndian.PutUint16(p.bytes[i+14:], uint16(random.IntN(256)))
	}
}
