package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Ethernet's types, network order not minded.
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeIPv6 = 0x86dd
)

var everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// mark is in what is sent in a name that is not ours.
const mark = "kubeqemu-e2e-garbage"

// packets opens a link for whole frames.
func packets(name string) (socket int, link *net.Interface, err error) {
	link, err = net.InterfaceByName(name)
	if err != nil {
		return 0, nil, err
	}
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err == nil {
		err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	}
	return socket, link, err
}

// flood sends as much as there is room for: DHCP's questions by thousands of clients, and ARP,
// IPv4 and IPv6 in the victim's name, by the link's own MAC and by others.
func flood(name string, victim netip.Addr, until time.Time) error {
	socket, link, err := packets(name)
	if err != nil {
		return err
	}
	sent := 0
	for time.Now().Before(until) {
		from := link.HardwareAddr
		if sent%3 == 0 {
			from = randomMAC()
		}
		for _, frame := range [][]byte{
			ethernet(everybody, from, typeIPv4, udp(netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255}), 68, 67, discover())),
			ethernet(everybody, from, typeIPv4, udp(victim, netip.AddrFrom4([4]byte{255, 255, 255, 255}), 67, 68, discover())), // a server's
			ethernet(everybody, from, typeIPv4, udp(victim, victim, 9999, 7, []byte(mark))),
			ethernet(everybody, from, typeARP, arp(from, victim)),
			ethernet(everybody, from, typeIPv6, append([]byte{0x60, 0, 0, 0, 0, 0, 59, 1}, make([]byte, 32)...)),
		} {
			err := unix.Send(socket, frame, 0)
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				return fmt.Errorf("send: %w", err)
			}
			if err == nil {
				sent++
			}
		}
	}
	fmt.Printf("garbage: sent %d frames\n", sent)
	return nil
}

func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	binary.LittleEndian.PutUint32(mac[2:], rand.Uint32())
	mac[0] = 2
	return mac
}

func ethernet(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	frame := append(append(bytes.Clone(to), from...), byte(kind>>8), byte(kind))
	return append(frame, payload...)
}

// arp says that the address is at the MAC.
func arp(mac net.HardwareAddr, address netip.Addr) []byte {
	packet := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	for range 2 {
		packet = append(append(packet, mac...), address.AsSlice()...)
	}
	return packet
}

func udp(from, to netip.Addr, fromPort, toPort uint16, payload []byte) []byte {
	header := make([]byte, 28, 28+len(payload))
	header[0], header[8], header[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(header[2:], uint16(28+len(payload)))
	copy(header[12:], from.AsSlice())
	copy(header[16:], to.AsSlice())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(header[20:], fromPort)
	binary.BigEndian.PutUint16(header[22:], toPort)
	binary.BigEndian.PutUint16(header[24:], uint16(8+len(payload)))
	return append(header, payload...) // without a checksum, which IPv4 permits
}

// discover is DHCPDISCOVER by a client that nobody knows.
func discover() []byte {
	packet := make([]byte, 240, 300)
	packet[0], packet[1], packet[2] = 1, 1, 6
	binary.LittleEndian.PutUint32(packet[4:], rand.Uint32())
	copy(packet[28:], randomMAC())
	copy(packet[236:], []byte{99, 130, 83, 99})
	return append(packet, 53, 1, 1, 255)
}

// listen counts what comes over the link and is not the address's, by kind, and
// prints it as JSON.
func listen(name string, address netip.Addr, until time.Time) error {
	socket, _, err := packets(name)
	if err != nil {
		return err
	}
	counts := map[string]int{}
	buffer := make([]byte, 64<<10)
	for {
		left := time.Until(until)
		if left <= 0 {
			break
		}
		timeout := unix.NsecToTimeval(int64(left))
		if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return err
		}
		n, from, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		counts["all"]++
		if kind := foreign(buffer[:n], address); kind != "" {
			counts[kind]++
		}
	}
	return json.NewEncoder(os.Stdout).Encode(counts)
}

// foreign says what of a frame is not the address's, or nothing.
func foreign(frame []byte, address netip.Addr) string {
	if len(frame) < 34 {
		return "short"
	}
	payload := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeARP:
		if sender, _ := netip.AddrFromSlice(payload[14:18]); sender != address {
			return "ARP of " + sender.String()
		}
	case typeIPv4:
		source, _ := netip.AddrFromSlice(payload[12:16])
		if source != address {
			return "IPv4 of " + source.String()
		}
		if bytes.Contains(payload, []byte(mark)) {
			return "marked"
		}
		if len(payload) >= 28 && payload[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(payload[22:]) == 67 {
			return "DHCP"
		}
	case typeIPv6:
		// A link says that it is there, and asks for routers.
		if source, _ := netip.AddrFromSlice(payload[8:24]); payload[6] == 59 || len(payload) >= 40 && !source.IsLinkLocalUnicast() && !source.IsUnspecified() {
			return "IPv6 of " + source.String()
		}
	default:
		return "another protocol"
	}
	return ""
}
