package guestagent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzReply plays an agent that answers anything: whatever is taken of it is
// bounded, and an answer in order stays in order.
func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"return": [{"name": "eth0", "hardware-address": "52:54:00:00:00:01", "ip-addresses": [{"ip-address": "fe80::1%eth0"}]}]}` + "\n"))
	f.Add([]byte(`{"return": [{"mountpoint": "/", "disk": [{"serial": "\u00e9"}]}]}` + "\n"))
	f.Add([]byte("\xff{\"return\": {\"version\": \"7.2\", \"supported_commands\": [{\"name\": \"x\"}]}}\n"))
	f.Add([]byte("{\"return\": {\"a\": \"" + string(bytes.Repeat([]byte(`\\`), maxString)) + "\"}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		line, err := readReply(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return
		}
		if len(line) > maxReply {
			t.Fatalf("%d bytes were kept", len(line))
		}
		// encoding/json takes any byte in a string, the protocol not the delimiter.
		if first, _, _ := bytes.Cut(data, []byte("\n")); json.Valid(first) && !bytes.Contains(first, []byte{delimiter}) && !json.Valid(line) {
			t.Fatalf("%q has become %q", first, line)
		}
		result, err := parseReply("x", line)
		if err != nil {
			return
		}
		bounded := func(what string, limit int, texts ...string) {
			for _, s := range texts {
				if len(s) > limit || !utf8.ValidString(s) {
					t.Fatalf("%s of %d bytes: %.100q", what, len(s), s)
				}
			}
		}
		links, _ := list[link](result, maxLinks)
		for _, i := range interfaces(links) {
			bounded("interface", maxName, i.Name, i.MAC)
			if len(i.Addresses) > maxAddresses {
				t.Fatalf("%d addresses", len(i.Addresses))
			}
		}
		systems, _ := list[fileSystem](result, maxSystems)
		for _, s := range systems {
			taken := s.taken()
			bounded("file system", maxPath, taken.Name, taken.MountPoint, taken.Type)
		}
		if info, err := parseInfo(result); err == nil && len(info.Commands) > maxCommands {
			t.Fatalf("%d commands", len(info.Commands))
		}
	})
}
