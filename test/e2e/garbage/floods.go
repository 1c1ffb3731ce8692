package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch is how many frames go to the kernel at once.
const batch = 64

// sender is what the frames of a flood are made of.
type sender struct {
	mac      net.HardwareAddr
	own      netip.Addr
	gateway  net.HardwareAddr
	receiver netip.Addr
}

// floods make the frame of a number. Each changes what the receiver might remember.
var floods = map[string]func(s sender, i int) []byte{
	"arp": func(s sender, i int) []byte {
		from, claims := s.mac, s.own
		if i%4 > 0 {
			from, claims = randomMAC(), neighbourOf(s.own)
		}
		frame := ethernet(everybody, from, typeARP, arp(from, claims))
		frame[21] = 1 + byte(i%2) // a question or an answer
		copy(frame[38:], gatewayOf(s.own).AsSlice())
		return frame
	},
	"dhcp": func(s sender, i int) []byte {
		message := discover()
		if i%4 == 0 {
			copy(message[28:], s.mac)
		}
		if i%2 == 1 {
			message[242] = 3 // DHCPREQUEST, of no address
		}
		return ethernet(everybody, s.mac, typeIPv4, udp(netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255}), 68, 67, message))
	},
	"nd": func(s sender, i int) []byte {
		kind := []byte{134, 133, 135, 136}[i%4] // router's advertisement and solicitation, neighbour's solicitation and advertisement
		source := make([]byte, 16)
		source[0], source[1] = 0xfe, 0x80
		binary.LittleEndian.PutUint64(source[8:], rand.Uint64())
		from, _ := netip.AddrFromSlice(source)
		return ethernet(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, s.mac, typeIPv6, icmp6(from, netip.MustParseAddr("ff02::1"), kind))
	},
	"macs": func(s sender, i int) []byte {
		return ethernet(everybody, randomMAC(), 0x88b5, make([]byte, 46))
	},
	"udp": func(s sender, i int) []byte {
		from, to := uint16(1024+rand.IntN(64000)), uint16(1024+rand.IntN(64000))
		return ethernet(s.gateway, s.mac, typeIPv4, udp(s.own, s.receiver, from, to, []byte("small")))
	},
}

// neighbourOf is an address near another.
func neighbourOf(a netip.Addr) netip.Addr {
	b := a.As4()
	b[3] = byte(rand.IntN(256))
	return netip.AddrFrom4(b)
}

// gatewayOf is where the gateway of a masqueraded guest is.
func gatewayOf(a netip.Addr) netip.Addr {
	b := a.As4()
	b[3] = 1
	return netip.AddrFrom4(b)
}

// icmp6 is a message of neighbour discovery about its sender, as long as the longest needs.
func icmp6(from, to netip.Addr, kind byte) []byte {
	body := make([]byte, 24)
	body[0] = kind
	copy(body[8:], from.AsSlice())
	packet := append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, 255}, from.AsSlice()...)
	packet = append(append(packet, to.AsSlice()...), body...)
	// The checksum is over a pseudo-header too (RFC 4443, 2.3).
	sum := uint32(len(body)) + unix.IPPROTO_ICMPV6
	for i := 8; i < len(packet); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(packet[42:], ^uint16(sum))
	return packet
}

// newSender reads what the guest knows of its link and its gateway.
func newSender(link *net.Interface, receiver netip.Addr) (sender, error) {
	s := sender{mac: link.HardwareAddr, receiver: receiver}
	addresses, err := link.Addrs()
	if err != nil {
		return s, err
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			s.own = p.Addr()
		}
	}
	table, err := os.ReadFile("/proc/net/arp")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(table)) {
		// IP address, HW type, flags, HW address, mask, device
		if f := strings.Fields(line); len(f) == 6 && f[2] == "0x2" && f[5] == link.Name {
			s.gateway, err = net.ParseMAC(f[3])
		}
	}
	if !s.own.IsValid() || s.gateway == nil || err != nil {
		return s, fmt.Errorf("find the address of %s and its gateway's MAC: %q, %q: %w", link.Name, s.own, s.gateway, err)
	}
	return s, nil
}

// sendMany floods in one way.
func sendMany(way, name string, receiver netip.Addr, until time.Time) error {
	make1, ok := floods[way]
	if !ok {
		return fmt.Errorf("there is no flood %q", way)
	}
	socket, link, err := packets(name)
	if err != nil {
		return err
	}
	s, err := newSender(link, receiver)
	if err != nil {
		return err
	}
	fmt.Println("garbage: begun")
	sent := 0
	for time.Now().Before(until) {
		var frames [batch][]byte
		for i := range frames {
			frames[i] = make1(s, sent+i)
		}
		n, err := sendBatch(socket, frames[:])
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send: %w", err)
		}
		sent += n
	}
	fmt.Printf("garbage: sent %d frames\n", sent)
	return nil
}

// sendBatch is sendmmsg(2).
func sendBatch(socket int, frames [][]byte) (int, error) {
	type message struct {
		header unix.Msghdr
		sent   uint32
	}
	vectors, messages := make([]unix.Iovec, len(frames)), make([]message, len(frames))
	for i, f := range frames {
		vectors[i].Base = &f[0]
		vectors[i].SetLen(len(f))
		messages[i].header.Iov = &vectors[i]
		messages[i].header.SetIovlen(1)
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(socket), uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)), 0, 0, 0)
	runtime.KeepAlive(frames)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// spin keeps all CPUs busy, and sends nothing.
func spin(until time.Time) error {
	fmt.Println("garbage: begun")
	done := make(chan int)
	for range runtime.NumCPU() {
		go func() {
			n := 0
			for ; n%1000 > 0 || time.Now().Before(until); n++ {
			}
			done <- n
		}()
	}
	n := 0
	for range runtime.NumCPU() {
		n += <-done
	}
	fmt.Printf("garbage: sent 0 frames, counted to %d\n", n)
	return nil
}

// latency talks to an echo server, and prints the quartiles of the round trips in microseconds, as JSON.
func latency(server netip.AddrPort, until time.Time) error {
	conn, err := net.DialTimeout("tcp", server.String(), 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	const pause = 10 * time.Millisecond
	var trips []int64
	line := make([]byte, 64)
	for time.Now().Before(until) {
		asked := time.Now()
		conn.SetDeadline(asked.Add(10 * time.Second))
		if _, err := conn.Write(line); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, line); err != nil {
			return err
		}
		trips = append(trips, time.Since(asked).Microseconds())
		time.Sleep(pause)
	}
	slices.Sort(trips)
	if len(trips) == 0 {
		return errors.New("there was no time for a round trip")
	}
	at := func(part int) int64 { return trips[(len(trips)-1)*part/100] }
	return json.NewEncoder(os.Stdout).Encode(map[string]int64{"trips": int64(len(trips)), "quarter": at(25), "median": at(50), "most": at(90)})
}
